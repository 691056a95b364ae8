import contextlib
import logging
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo.metrics.phases import Phases
from dapo.observe.jsonl import read_jsonl
from dapo.observe.log import logging_to
from dapo.observe.run_folder import RunFolder
from dapo.observe.spans import MOST_LINES, SpanLog, merge_spans, peak_rss_mib
from dapo.types.protocols import Span


def test_records_go_to_the_file_and_warnings_also_to_the_console(tmp_path):
    path, warned = tmp_path / "r" / "log.txt", []
    with logging_to(path, warned.append) as log:
        log.info("hello %s", "there")
        logging.getLogger("dapo.loop.trainer").warning("careful")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old api", DeprecationWarning, stacklevel=1)
    text = path.read_text()
    assert "INFO dapo: hello there\n" in text
    assert "WARNING dapo.loop.trainer: careful\n" in text
    assert "old api" in text
    assert warned == ["careful"]


def test_afterwards_nothing_is_left_and_a_second_run_appends(tmp_path):
    path, package = tmp_path / "log.txt", logging.getLogger("dapo")
    before = (list(package.handlers), package.level, package.propagate)
    assert package.propagate  # an earlier run in this process has put it back
    for number in (1, 2):
        with logging_to(path):
            package.info("run %d", number)
    package.error("outside")
    assert (list(package.handlers), package.level, package.propagate) == before
    assert [line.split(": ")[1] for line in path.read_text().splitlines()] == ["run 1", "run 2"]


def test_messages_can_neither_steer_a_terminal_nor_forge_a_record(tmp_path):
    path = tmp_path / "log.txt"
    with logging_to(path) as log:
        log.info("\x1b[2J bad\n2030-01-01 00:00:00,000 ERROR dapo: forged \ud800")
    text = path.read_text()
    assert "␛[2J bad\n    2030-01-01" in text
    assert "\x1b" not in text


def test_secrets_that_a_message_quotes_are_hidden_in_the_file_and_on_the_console(tmp_path):
    path, warned = tmp_path / "log.txt", []
    with logging_to(path, warned.append) as log:
        log.warning("refused: %s, see %s", "Bearer mine-0123456789", "http://me:s3cr3t@host/")
    (shown,) = warned
    assert shown == "refused: Bearer <hidden-secret>, see http://<hidden-secret>@host/"
    assert path.read_text().endswith(f"{shown}\n")


def test_a_console_that_fails_stops_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(logging, "raiseExceptions", False)

    def broken(_):
        raise OSError("terminal gone")

    with logging_to(tmp_path / "log.txt", broken) as log:
        log.warning("still here")
    assert "still here" in (tmp_path / "log.txt").read_text()


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_phases_are_exclusive_and_add_up_to_the_step():
    clock, spans = Clock(), []
    phases = Phases(spans.append, clock, epoch=lambda: 5000.0)
    phases.step = 3
    clock.now += 1
    with phases("generate"):
        clock.now += 2
        with phases("score"):
            clock.now += 4
        clock.now += 8
    with phases("score"):
        clock.now += 16
    taken = phases.take()
    assert taken == {"time/generate": 10.0, "time/score": 20.0, "time/other": 1.0, "time/step": 31.0}
    assert spans == [
        Span(3, "score", 5003.0, 4.0, 4.0),  # seconds since 1970: the timer was made at 5000
        Span(3, "generate", 5001.0, 14.0, 14.0),
        Span(3, "score", 5015.0, 16.0, 16.0),
    ]
    clock.now += 3
    assert phases.take() == {"time/other": 3.0, "time/step": 3.0}


def test_take_inside_a_phase_and_an_exception_keep_the_account():
    clock = Clock()
    phases = Phases(clock=clock)
    with contextlib.suppress(ValueError), phases("learn"):
        clock.now += 2
        assert phases.take() == {"time/learn": 2.0, "time/other": 0.0, "time/step": 2.0}
        clock.now += 5
        raise ValueError
    clock.now += 1
    assert phases.take() == {"time/learn": 5.0, "time/other": 1.0, "time/step": 6.0}


def test_peak_memory_is_in_mib():
    import numpy as np

    before = peak_rss_mib()
    block = np.ones(64 * 2**20, dtype=np.uint8)
    assert 5 < before <= peak_rss_mib() < 64 * 1024
    assert peak_rss_mib() >= 64
    del block


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="elsewhere there is only the other count")
def test_peak_memory_is_none_of_the_process_that_started_this_one():
    """As ``ru_maxrss`` says it, which a started program takes over."""
    import numpy as np

    block = np.ones(200 * 2**20, dtype=np.uint8)
    code = "from dapo.observe.spans import peak_rss_mib; print(peak_rss_mib())"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120).stdout
    assert 5 < float(said) < 180
    del block


def test_neighbours_of_one_name_are_merged_as_little_as_is_enough():
    """Five stretches in at most four lines: pairs of ``g``, and the ``s`` alone."""
    g = [Span(1, "g", start, 1.0, 1.0) for start in (10.0, 12.0, 14.0, 17.0)]
    s = Span(1, "s", 11.0, 0.5, 0.5)
    assert merge_spans([*g, s], 5) == [g[0], s, g[1], g[2], g[3]]
    assert merge_spans([*g, s], 4) == [
        Span(1, "g", 10.0, 3.0, 2.0, 2),  # from 10 to 13, busy for two of the three seconds
        s,
        Span(1, "g", 14.0, 4.0, 2.0, 2),
    ]
    assert merge_spans([*g, s], 2) == [Span(1, "g", 10.0, 8.0, 4.0, 4), s]
    assert merge_spans([*g, s], 1) == merge_spans([*g, s], 2)  # a step loses no name
    twice = merge_spans(merge_spans([*g, s], 4), 2)
    assert twice == merge_spans([*g, s], 2)  # what is merged can be merged further


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 100), st.floats(0, 5)), max_size=60), st.integers(3, 70))
def test_merging_keeps_every_second_and_stretch(stretches, most):
    spans = [Span(2, name, start, seconds, seconds) for name, start, seconds in stretches]
    merged = merge_spans(spans, most)
    assert len(merged) <= most
    assert [m.start for m in merged] == sorted(m.start for m in merged)
    for name in "abc":
        before, after = ([s for s in group if s.name == name] for group in (spans, merged))
        assert sum(s.count for s in after) == len(before)
        assert sum(s.busy for s in after) == pytest.approx(sum(s.seconds for s in before))
        if before:
            assert min(s.start for s in after) == min(s.start for s in before)
            assert max(s.start + s.seconds for s in after) == pytest.approx(max(s.start + s.seconds for s in before))


def test_what_a_step_does_after_it_was_recorded_comes_later_under_its_own_step(tmp_path):
    log = SpanLog(tmp_path / "spans.jsonl")
    log.add(Span(1, "learn", 1000.1234567, 2.0, 2.0))
    log.flush()  # the step is recorded in the middle of ``report``
    log.add(Span(1, "report", 1003.0, 0.5, 0.5))
    log.add(Span(2, "generate", 1004.0, 1.0, 1.0))
    assert [line["name"] for line in read_jsonl(tmp_path / "spans.jsonl")] == ["learn"]
    log.flush()
    log.add(Span(2, 'a "name"\n', 1005.0, 0.25, 0.25))
    log.close()
    lines = read_jsonl(tmp_path / "spans.jsonl")
    assert [(line["step"], line["name"]) for line in lines] == [
        (1, "learn"),
        (1, "report"),
        (2, "generate"),
        (2, 'a "name"\n'),
    ]
    assert lines[0] == {"step": 1, "name": "learn", "start": 1000.123457, "seconds": 2.0, "busy": 2.0, "count": 1}


def test_a_step_has_at_most_200_lines_with_what_comes_later(tmp_path):
    log = SpanLog(tmp_path / "spans.jsonl")
    for step in (1, 2):
        for n in range(30_000):  # more than is held
            log.add(Span(step, "generate" if n % 2 else "score", 1000.0 + n, 1.0, 1.0))
        log.flush()
        for n in range(300):
            log.add(Span(step, "report", 40_000.0 + n, 1.0, 1.0))
    log.close()
    lines = read_jsonl(tmp_path / "spans.jsonl")
    for step in (1, 2):
        of_step = [line for line in lines if line["step"] == step]
        assert 100 < len(of_step) <= MOST_LINES == 200
        assert sum(line["count"] for line in of_step) == 30_300
        assert sum(line["busy"] for line in of_step) == 30_300


def test_spans_of_a_killed_run_are_cut_back_and_go_on(tmp_path):
    run = RunFolder.create(tmp_path, "r")
    log = SpanLog(run.spans)
    for step in (1, 2, 3):
        log.add(Span(step, "learn", 1000.0 + step, 1.0, 1.0))
        log.flush()
    with run.spans.open("a") as file:
        file.write('{"step": 4, "name": "le')  # killed here
    run.cut_back(2)
    log = SpanLog(run.spans)
    log.add(Span(3, "learn", 2000.0, 1.0, 1.0))
    log.close()
    assert [(line["step"], line["start"]) for line in read_jsonl(run.spans)] == [(1, 1001.0), (2, 1002.0), (3, 2000.0)]
