"""A stop in the middle of a step, at every moment at which it may come: what is left goes on to the digit."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest
from scripted import ScriptedEngine, make_collector, random_world
from scripted_run import STEPS as RUN
from scripted_run import make_run
from test_loop_worlds import LateGroupScorer, LateScorer

from dapo.checkpoint.tree import load_tree, save_tree

STEPS = 3


class Asked(BaseException):
    """What ``look`` raises."""


class Look:
    """Raises when it is called for the ``at``-th time."""

    def __init__(self, at):
        self.left = at

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            raise Asked


def world(number, *, whole_groups=False, **changes):
    """A collector whose groups are rejected, scored late, carried and replaced."""
    length, accuracy = random_world(number, mean_length=6, kept=0.4)
    settings = {"prompts": 3, "group": 2, "capacity": 5, "lag": 4, "lookahead": 0.5, "max_age": 2, "limit": 30}
    collector = make_collector(length=length, accuracy=accuracy, **{**settings, **changes})
    late = lambda g, i: (g * 7 + i * 3 + number) % 5  # noqa: E731
    collector.rollouts.scorer = LateGroupScorer(accuracy, late, 2) if whole_groups else LateScorer(accuracy, late)
    collector.rollouts.by_group = whole_groups
    return collector


def seen(batch):
    """Everything of a batch that a run would record, in order."""
    groups = [
        (
            group.id,
            group.disposition,
            [(c.token_ids.tolist(), c.logprobs.tolist(), c.versions.tolist(), c.finish) for c in group.completions_G],
            [(score.reward, score.reason) for score in group.scores_G],
        )
        for group in [*batch.groups_P, *batch.finished]
    ]
    return groups, {name: "nan" if value != value else value for name, value in batch.metrics.items()}


def untouched(make):
    collector = make()
    looks = collector.rollouts.look = Look(0)
    steps = [seen(collector.collect(step)) for step in range(1, STEPS + 1)]
    return steps, -looks.left


def stopped_and_resumed(make, at, folder):
    """Stop at the ``at``-th look, write the state, and go on with a new collector."""
    collector, steps, state = make(), [], None
    collector.rollouts.look = Look(at)
    for step in range(1, STEPS + 1):
        try:
            steps.append(seen(collector.collect(step)))
        except Asked:
            left = collector.leave()
            save_tree(collector.state(), folder, "state")
            state = load_tree(folder, "state")
            collector = make()
            collector.engine.version = step - 1
            collector.load(state)
            steps.append(seen(collector.collect(step)))
    assert state is not None
    return steps, left


WORLDS = {
    "late scores": {},
    "no lag": {"lag": 0},
    "few slots": {"capacity": 2},
    "rounds": {"oversample": 2.0},
    "discards": {"unfinished": "discard", "surplus": "discard"},
    "drains": {"unfinished": "drain"},
    "copies": {"mode": "replace"},
    "fills": {"cap": {"groups": 2.0, "then": "fill"}},
    "a cap of tokens": {"cap": {"tokens": 60, "groups": 40.0, "then": "train_partial"}},
    "drops": {"on_max_age": "drop", "max_age": 1},
    "no selection": {"mode": "off"},
}


@pytest.mark.parametrize("whole_groups", [False, True])
@pytest.mark.parametrize("name", WORLDS)
def test_a_stop_at_any_moment_changes_no_digit(name, whole_groups, tmp_path):
    def make():
        return world(len(name), whole_groups=whole_groups, **WORLDS[name])

    expected, looks = untouched(make)
    assert looks > STEPS
    kept = 0
    for at in range(1, looks + 1):
        steps, left = stopped_and_resumed(make, at, tmp_path)
        assert steps == expected, f"{name}, at look {at} of {looks}"
        kept += left.kept and left.responses > 0
    assert kept > looks / 3


# ---------------------------------------------------------------- whole runs


class Signal:
    """Sends SIGTERM at the ``at``-th look of a run, whatever goes on there."""

    def __init__(self, stopping, at):
        self.look, self.left = stopping.look, at

    def __call__(self):
        self.left -= 1
        if self.left == 0:
            signal.raise_signal(signal.SIGTERM)
        self.look()


def signalled(folder, at, **world):
    """Return a run that was sent SIGTERM at its ``at``-th look, and its looks."""
    run = make_run(folder, **world)
    looks = run.trainer.stopping.look = Signal(run.trainer.stopping, at)
    run()
    return run, at - looks.left


def rows_of(*runs):
    """The lines of runs that follow each other; a line that was made up belongs to the one before."""
    rows = {}
    for run in runs:
        for step in run.recorder.rows:
            rows[step] = rows.get(step, {}) | run.recorder.row(step)
    return rows


def weights(run):
    return run.learner.scores.tolist()


@pytest.mark.parametrize("turns", [None, 3])
def test_a_signal_at_any_moment_of_a_run_changes_no_digit(tmp_path, turns):
    length, accuracy = random_world(5, mean_length=5, kept=0.5)
    world = {"length": length, "accuracy": accuracy, "lag": 3, "lookahead": 0.5, "turns": turns}
    world |= {"max_age": 2} if turns else {}
    whole, looks = signalled(tmp_path / "whole", 0, **world)
    assert whole.trainer.finished
    stopped_in = set()
    for at in range(1, looks + 1):
        part, _ = signalled(tmp_path / str(at), at, **world)
        assert not part.trainer.finished
        stopped_in.add(part.trainer.stopping.left is not None)
        run = make_run(tmp_path / str(at), resume=True, **world)
        assert run()
        assert [*part.trained, *run.trained] == whole.trained
        assert rows_of(part, run) == rows_of(whole)
        assert weights(run) == weights(whole)
        assert run.saved[-1] == RUN
    assert stopped_in == {True, False}


# ---------------------------------------------------------------- engines that cannot say how they stand


class Mute(ScriptedEngine):
    """Repeats its digits, and cannot go on in another process."""

    def suspended(self):
        return None


def test_where_the_engine_cannot_go_on_a_step_is_sampled_anew_to_the_same_digits(tmp_path):
    def make():
        collector = world(3)
        collector.rollouts.engine = collector.engine = Mute(collector.engine.length, 5)
        return collector

    expected, looks = untouched(make)
    kept = set()
    for at in range(1, looks + 1):
        steps, left = stopped_and_resumed(make, at, tmp_path)
        assert steps == expected
        kept.add(left.kept)
    assert False in kept


def test_where_digits_do_not_repeat_the_work_is_kept_and_every_token_has_an_account(tmp_path):
    def make():
        collector = world(3)
        collector.timing = replace(collector.timing, repeats=False)
        collector.rollouts.engine = collector.engine = Mute(collector.engine.length, 5)
        return collector

    expected, looks = untouched(make)
    for at in range(1, looks + 1):
        steps, left = stopped_and_resumed(make, at, tmp_path)
        assert left.kept
        assert len(steps) == len(expected)
        _, totals = steps[-1]
        fates = ("trained", "filled", "rejected", "discarded", "expired")
        spent = sum(totals[f"total/cost/{fate}_tokens"] for fate in fates)
        assert totals["total/sampling/generated_tokens"] == spent + totals["cost/held_tokens"]
