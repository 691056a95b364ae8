import contextlib
import logging
import warnings

from dapo.observe.log import logging_to
from dapo.observe.spans import Phases, peak_rss_mib


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
    phases = Phases(spans.append, clock)
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
    assert [(s.name, s.start, s.seconds, s.depth) for s in spans] == [
        ("score", 3.0, 4.0, 1),
        ("generate", 1.0, 14.0, 0),
        ("score", 15.0, 16.0, 0),
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
