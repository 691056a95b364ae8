"""Drawn runs in which the wall clock decides: the clock decides in each, and every planted fault is seen."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dapo.config.deployment import Deployment
from dapo.config.load import load_recipe

BENCHMARKS = Path(__file__).resolve().parents[3] / "benchmarks"
NUMBERS = range(1, 13)
ENDS = ("trained", "filled", "discarded", "expired")
ACCOUNT = {
    "groups/waiting": 0,
    "groups/unfinished": 1,
    "cost/held_tokens": 3,
    **{f"total/groups/{name}": 2 for name in ENDS},
    "total/groups/dispatched": 9,
    **{f"total/cost/{name}_tokens": 5 for name in (*ENDS, "rejected")},
    "counters/generated_tokens": 28,
}
ROWS = [{"step": 0, "validation/accuracy": 0.5}] + [
    {"step": step, "policy/staleness_max": age, **ACCOUNT} for step, age in ((1, 0), (2, 1))
]
FATES = {1: [(0, 0, "trained"), (0, 1, "trained"), (1, 0, "carried")], 2: [(1, 0, "trained"), (2, 0, "discarded")]}


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import combinations_clock

    return combinations_clock


def write_run(run, rows=ROWS, fates=FATES, status="finished"):
    """Write what a run of two steps leaves; ``fates``: by step, the group, sample and disposition of each response."""
    (run / "rollouts").mkdir(parents=True)
    (run / "checkpoints/step_000001").mkdir(parents=True)
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for step, responses in fates.items():
        columns = map(list, zip(*responses, strict=True))
        table = pa.table(dict(zip(("group", "sample", "disposition"), columns, strict=True)))
        pq.write_table(table, run / "rollouts" / f"step_{step:06d}.parquet")
    write_status(run, status)


def write_status(run, state, said=""):
    written = {"state": state, "said": said, "step": 2, "steps": 5, "pid": 1, "host": "here", "started": 1.0}
    (run / "status.json").write_text(json.dumps(written | {"updated": 2.0, "doing": "none judged yet"}))


# ---------------------------------------------------------------------- draws


def test_a_number_draws_the_same_run_and_others_draw_others(clock):
    assert clock.drawn(3, 0.5) == clock.drawn(3, 0.5) != clock.drawn(4, 0.5)


def test_in_every_drawn_run_the_clock_decides(clock):
    for number in NUMBERS:
        words = clock.command(clock.drawn(number, 0.5).overrides, Path("work"), "run", number, 1)[2:]
        recipe = load_recipe("quickstart", [word.replace("{url}", "http://127.0.0.1:1") for word in words]).recipe
        assert Deployment(recipe).by_the_clock
        assert recipe.rollout.max_staleness == clock.drawn(number, 0.5).staleness


def test_rewards_of_all_kinds_are_drawn(clock):
    words = "\n".join(word for number in range(40) for word in clock.drawn(number, 0.5).overrides)
    kinds = [*clock.FUNCTIONS, *clock.GAMES, "kind: service", "environment.rows=turns"]
    kinds += ["rollout.engines=2", "learner.ranks=2", "model.lora", "model.dtype=bfloat16"]
    assert [kind for kind in kinds if kind not in words] == []


def test_signals_are_drawn_without_a_change_of_the_settings(clock):
    never, always = ([clock.drawn(number, share) for number in NUMBERS] for share in (0.0, 1.0))
    assert [one.overrides for one in never] == [one.overrides for one in always]
    assert not any(one.signals for one in never)
    assert {sent.number for one in always for sent in one.signals} == {signal.SIGTERM, signal.SIGKILL}


# ---------------------------------------------------------------------- planted faults


def test_a_sound_run_breaks_nothing(clock, tmp_path):
    write_run(tmp_path)
    assert clock.broken(tmp_path, staleness=1) == []


LATE = {"step": 2, "validation/accuracy": 0.5}  # the evaluation of the last step, in a line of its own


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*ROWS, ROWS[1]], ["step 1 is recorded 2 times"]),
        ([ROWS[0], ROWS[2]], ["step 1 is recorded 0 times"]),
        ([*ROWS, LATE], []),
        ([*ROWS[:2], ROWS[2] | {"groups/unfinished": 0}], ["groups: 8 have an end or are held, 9 began"]),
        ([*ROWS[:2], ROWS[2] | {"groups/unfinished": 0}, LATE], ["groups: 8 have an end or are held, 9 began"]),
        ([*ROWS[:2], ROWS[2] | {"cost/held_tokens": 4}], ["tokens: 29 have an end or are held, 28 began"]),
        ([*ROWS[:2], ROWS[2] | {"policy/staleness_max": 2}], ["step 2 trained tokens of age 2, 1 is the bound"]),
    ],
)
def test_a_fault_in_the_metrics_is_seen(clock, tmp_path, rows, said):
    write_run(tmp_path, rows)
    assert [line.strip() for line in clock.broken(tmp_path, staleness=1)] == said


@pytest.mark.parametrize(
    ("row", "seen"),
    [
        ((0, 1, "trained"), "response 1 of group 0 ended 2 times: trained in step_000001, trained in step_000002"),
        ((0, 1, "discarded"), "response 1 of group 0 ended 2 times: trained in step_000001, discarded in step_000002"),
        ((0, 1, "copied"), None),  # meant to train again
    ],
)
def test_a_response_that_ends_twice_is_seen(clock, tmp_path, row, seen):
    write_run(tmp_path, fates=FATES | {2: [*FATES[2], row]})
    assert clock.broken(tmp_path, staleness=1) == ([seen] if seen else [])


@pytest.mark.parametrize(
    ("code", "before", "after", "fine"),
    [
        (130, None, "interrupted", True),
        (143, None, "interrupted", True),
        (143, None, None, True),
        (143, "running", "running", True),  # SIGKILL ended the command before, and this one ended before it began
        (0, None, "finished", True),
        (130, None, "running", False),
        (143, None, "failed", False),
        (1, None, "interrupted", False),
    ],
)
def test_a_stop_ends_the_command_and_is_said(clock, tmp_path, code, before, after, fine):
    found = []
    for state in (before, after):
        if state is not None:
            write_status(tmp_path, state)
        found.append(clock.status_of(tmp_path))
    assert (clock.badly_stopped(code, *found) == []) == fine


class Scripted:
    """Runs no command: each one leaves what its turn says, and ends with its code (None: it takes too long)."""

    def __init__(self, *turns):
        self.turns, self.asked = list(turns), []

    def run(self, words, output, limit, begun):
        self.asked.append((words[1], begun is not None))
        output.write_text("the last line of its output\n")
        leave, code = self.turns.pop(0)
        leave()
        return code


class NothingLeft:
    def __init__(self, *left):
        self._left = list(left)

    def watched(self):
        return open(os.devnull)

    def left(self):
        return self._left


def outcome(clock, tmp_path, *turns, signals=(), left=()):
    """Return the word and the lines of a drawn run, and what was asked of the runner."""
    runner, one = Scripted(*turns), clock.Drawn([], staleness=1, every=1, signals=list(signals))
    words = ["train", "quickstart"]
    return *clock.train(runner, NothingLeft(*left), one, words, tmp_path / "run", 60.0), runner.asked


def nothing():
    pass


def test_a_run_that_hangs_is_an_outcome_of_its_own_which_no_other_hides(clock, tmp_path):
    word, lines, _ = outcome(clock, tmp_path, (lambda: write_run(tmp_path / "run", status="running"), None))
    assert word == "hangs" not in clock.FINE
    assert "status running, step 2: none judged yet" in lines


def test_a_run_that_ends_without_an_error_is_sound(clock, tmp_path):
    assert outcome(clock, tmp_path, (lambda: write_run(tmp_path / "run"), 0))[:2] == ("ended", [])


@pytest.mark.parametrize(
    ("state", "said", "word"),
    [("failed", "groups are held", "failed"), ("unfilled", "all are wrong", "unfilled"), ("unfilled", "", "failed")],
)
def test_a_run_that_ends_with_an_error_fails_unless_it_says_why_no_batch_fills(clock, tmp_path, state, said, word):
    def leave():
        write_run(tmp_path / "run")
        write_status(tmp_path / "run", state, said)

    assert outcome(clock, tmp_path, (leave, 1))[0] == word


def test_each_signal_goes_to_one_command_and_the_next_resumes_if_there_is_a_checkpoint(clock, tmp_path):
    signals = [clock.Sent(number, 0, 60.0) for number in (signal.SIGKILL, signal.SIGTERM)]
    turns = [(nothing, -9), (lambda: write_run(tmp_path / "run", status="interrupted"), 143), (nothing, 0)]
    word, lines, asked = outcome(clock, tmp_path, *turns, signals=signals)
    assert (word, lines) == ("ended", [])
    assert asked == [("quickstart", True), ("quickstart", True), ("--resume", False)]


def test_a_command_that_ends_before_its_signal_is_not_resumed(clock, tmp_path):
    turn = (lambda: write_run(tmp_path / "run"), 0)
    assert outcome(clock, tmp_path, turn, signals=[clock.Sent(signal.SIGTERM, 0, 60.0)] * 3)[0] == "ended"


def test_a_signal_comes_after_the_rows_that_this_command_records(clock, tmp_path):
    write_run(tmp_path, ROWS[:2])
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    with clock.Sent(signal.SIGTERM, rows=1, seconds=0.0).to(tmp_path) as begun:
        begun(sleeper.pid)
        assert sleeper.poll() is None
        repeat_step(tmp_path)
        assert sleeper.wait(60) == -signal.SIGTERM


def test_a_signal_is_not_sent_after_its_command(clock, tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    for sent in (clock.Sent(signal.SIGTERM, 5, 0.0), clock.Sent(signal.SIGTERM, 0, 600.0)):
        with sent.to(tmp_path) as begun:
            begun(sleeper.pid)
    assert sleeper.poll() is None
    sleeper.kill()
    assert sleeper.wait(60) == -signal.SIGKILL


def test_a_fault_that_a_resume_brings_is_seen(clock, tmp_path):
    turns = [(lambda: write_run(tmp_path / "run"), -9), (lambda: repeat_step(tmp_path / "run"), 0)]
    word, lines, _ = outcome(clock, tmp_path, *turns, signals=[clock.Sent(signal.SIGKILL, 0, 60.0)])
    assert (word, lines) == ("broken", ["step 2 is recorded 2 times"])


def repeat_step(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(ROWS[2]) + "\n")


def test_a_command_that_leaves_a_process_is_seen(clock, tmp_path):
    word, (line,), _ = outcome(clock, tmp_path, (lambda: write_run(tmp_path / "run"), 0), left=[77])
    assert word == "broken"
    assert "77" in line


def test_a_process_that_outlives_its_command_is_found_and_ended(clock, monkeypatch):
    monkeypatch.setattr(clock, "LAST", 0.0)
    mark = f"test-{os.getpid()}"
    words = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
    orphan = subprocess.Popen(words, env=os.environ | {clock.MARKER: mark}, stdout=subprocess.PIPE)
    assert orphan.stdout.readline()

    class Here:
        process = os.getpid()

    assert clock.Processes(Here, mark).left() == [orphan.pid]
    assert orphan.wait(30) == -signal.SIGKILL
    assert clock.Processes(Here, mark).left() == []
