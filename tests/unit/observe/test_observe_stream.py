"""A console that nobody reads any more, and the log that holds what it said."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from dapo.errors import Terminated
from dapo.loop.interrupt import outside_of_steps
from dapo.observe.console import Console, UnbreakableStream
from dapo.observe.log import logging_to
from dapo.observe.status import StatusWriter, read_status
from dapo.types.evaluation import EvaluationProgress
from dapo.types.evidence import CollectProgress, Shares

ROOT = Path(__file__).parents[3]

# What a run does with its console, in a process of its own: its standard streams are replaced.
SPEAKER = """
import sys
from dapo.observe.console import Console
from dapo.observe.log import logging_to
from contextlib import ExitStack
from pathlib import Path
with logging_to(Path(sys.argv[1])), Console(sys.argv[2]) as console:
    console.start("r", 3)
    for step in range(1, 4):
        console.step(step, {"reward/accuracy": 0.5})
        console.warn("a warning")
        print("a library speaks", file=sys.stderr, flush=True)
        print("a library speaks", flush=True)
Path(sys.argv[1] + ".done").touch()
"""


@pytest.mark.whole
@pytest.mark.parametrize("mode", ["plain", "quiet"])
def test_a_reader_that_goes_away_ends_nothing(tmp_path, mode):
    """`train 2>&1 | head`: both streams have the same reader, which is gone before the first word."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-c", SPEAKER, tmp_path / "log.txt", mode],
        stdout=write,
        stderr=write,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        check=False,
        timeout=120,
    )
    os.close(write)
    assert done.returncode == 0
    assert (tmp_path / "log.txt.done").exists()
    log = (tmp_path / "log.txt").read_text()
    assert log.count("the console is silent from here on") == 1
    assert "step 3/3  accuracy 50.0%" in log
    assert log.count("warning: a warning") == 3


@pytest.mark.parametrize("code", [errno.EPIPE, errno.EIO, errno.ENOSPC])
def test_a_stream_that_fails_is_silent_from_then_on(code):
    """A dead pipe, a closed terminal, a full disk under `> out.txt`."""

    class Failing:
        tried = 0

        def write(self, text):
            Failing.tried += 1
            raise OSError(code, os.strerror(code))

        def flush(self):
            raise OSError(code, os.strerror(code))

        def fileno(self):
            raise OSError("no descriptor")

    stream = UnbreakableStream(Failing())
    stream.flush()
    assert stream.silent
    assert stream.write("four") == 4
    assert Failing.tried == 0


def test_a_word_in_the_middle_of_another_does_not_silence():
    class Busy:
        def write(self, text):
            raise RuntimeError("reentrant call")

    stream = UnbreakableStream(Busy())
    stream.write("x")
    assert not stream.silent


def test_a_closed_terminal_does_not_end_a_run_and_the_signal_is_given_back():
    before = signal.getsignal(signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        with outside_of_steps():
            os.kill(os.getpid(), signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as under nohup
        with outside_of_steps():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_sigterm_outside_of_steps_lets_go_of_all_that_was_started():
    before, ended = signal.getsignal(signal.SIGTERM), []

    def run():
        with outside_of_steps(), ExitStack() as started:
            started.callback(ended.append, "an engine")
            os.kill(os.getpid(), signal.SIGTERM)
            signal.pause()

    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with pytest.raises(Terminated):
            run()
        assert ended == ["an engine"]
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_the_log_holds_what_the_console_said_whatever_its_mode(tmp_path, capsys):
    for mode in ("plain", "quiet"):
        with logging_to(tmp_path / mode), Console(mode) as console:
            console.say("loading\x1b[2J")
            console.start("r", 2)
            console.step(1, {"reward/accuracy": 0.25})
            console.evaluation(1, {"validation/accuracy": 0.5})
            console.sample("a?", "b", 0.0, 0.1)
            console.print("the end")
    for mode in ("plain", "quiet"):
        log = (tmp_path / mode).read_text()
        for said in ("loading␛[2J", "step 1/2  accuracy 25.0%", "held-out 50.0%", "accuracy 0, reward 0.1", "the end"):
            assert said in log, (mode, said)
    assert "the end" in capsys.readouterr().out


def test_a_warning_of_the_log_is_shown_once_and_written_once(tmp_path, capsys):
    console = Console("plain")
    with logging_to(tmp_path / "log", console.show_warning) as package:
        package.warning("verifier failed")
        console.warn("disk nearly full")
    log, out = (tmp_path / "log").read_text(), capsys.readouterr().out
    for said in ("verifier failed", "disk nearly full"):
        assert log.count(said) == out.count(said) == 1


def test_an_evaluation_says_now_and_then_how_far_it_is(capsys):
    now = [0.0]
    console = Console("plain", clock=lambda: now[0])
    console.start("r", 2)
    for scored in range(0, 301, 50):
        console.evaluating(EvaluationProgress(min(300, 100 + scored), scored, 300))
        now[0] += 40
    lines = [line for line in capsys.readouterr().out.splitlines() if "evaluating" in line]
    assert lines == [  # at 80 and 160 s: not more than once a minute
        "evaluating: 200 of 300 answered, 100 scored, about 2:40 left",
        "evaluating: 300 of 300 answered, 200 scored, about 1:20 left",
    ]


def test_a_batch_without_a_judged_group_says_what_it_waits_for(capsys):
    now = [0.0]
    console = Console("plain", clock=lambda: now[0])
    console.start("r", 2)
    now[0] = 61.0
    console.filling(CollectProgress(1, 0, 16, 0, Shares(), waiting=12))
    assert "step 1: 0 of 16 groups kept, none judged yet, 12 responses wait for their score" in capsys.readouterr().out


def test_status_says_what_is_being_done_and_forgets_it_with_the_step(tmp_path):
    now = [1000.0]
    writer = StatusWriter(tmp_path / "status.json", 10, clock=lambda: now[0])
    writer.doing("evaluating: 1 of 9 answered, 0 scored")
    assert read_status(tmp_path / "status.json").doing == ""  # within a second of the last write
    now[0] += 1.5
    writer.doing("evaluating: 5 of 9 answered, 4 scored")
    found = read_status(tmp_path / "status.json")
    assert (found.doing, found.updated) == ("evaluating: 5 of 9 answered, 4 scored", 1001.5)
    now[0] += 1.5
    writer.step(1)
    assert read_status(tmp_path / "status.json").doing == ""
    now[0] += 1.5
    writer.doing("x")
    writer.end("finished")
    assert read_status(tmp_path / "status.json").doing == ""
