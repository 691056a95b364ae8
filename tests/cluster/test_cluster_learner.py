"""Whole runs whose learner is two ranks in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import tempfile
from functools import partial

import faulty_rank
import pytest
from small_run import assert_none_lost_or_doubled, dapo, write_recipe

from dapo.checkpoint.store import CheckpointStore, check_manifest
from dapo.learner.driver import LearnerDriver
from dapo.observe.metrics import read_metrics, without_clock
from dapo.observe.rollouts import read_rollouts
from dapo.run import learners
from dapo.types.batch import LearnStep

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]
PATIENCE = 60  # learner.timeout: ranks that are busy with each other must not be taken for frozen on a slow machine


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("runs"))


def train(recipe, name, *over, expect=0):
    """A run over two ranks, unless ``over`` says otherwise: its metrics, and what it said."""
    done = dapo(
        *("train", recipe, "learner.ranks=2", f"run.name={name}", "logging.console=plain", *over), expect=expect
    )
    return read_metrics(recipe.parent / name / "metrics.jsonl"), done


@pytest.fixture(scope="module")
def whole(recipe):
    """A run that nothing happens to."""
    return train(recipe, "whole")[0]


def computed(rows):
    """What does not depend on the clock."""
    return [without_clock(row) for row in rows]


def sampled(recipe, name):
    """Every token of every group, by step."""
    found = {}
    for file in sorted((recipe.parent / name / "rollouts").iterdir()):
        table = read_rollouts(file).to_pylist()
        found[file.name] = [(row["group"], row["disposition"], row["response"]) for row in table]
    return found


@pytest.mark.parametrize("other", ["learner.ranks=1", "learner.context_parallel=2"])
def test_two_ranks_train_as_one_process_does(recipe, whole, other):
    """The same sampled tokens, also where the ranks share each row; float32 sums in another order may differ."""
    alone = train(recipe, other, other)[0]
    assert sampled(recipe, other) == sampled(recipe, "whole")
    exact = ("sampling/generated_tokens", "train/loss_tokens", "train/optimizer_steps", "counters/trained_tokens")
    close = ("train/loss", "train/grad_norm", "train/entropy", "train/ratio_mean")
    assert [row["step"] for row in alone] == [row["step"] for row in whole]
    for one, two in zip(alone[1:], whole[1:], strict=True):
        assert {key: two[key] for key in exact} == {key: one[key] for key in exact}
        for key in close:
            assert two[key] == pytest.approx(one[key], rel=1e-4, abs=1e-7), (one["step"], key)
    assert any(abs(row["train/loss"]) > 1e-3 for row in alone[1:])  # there was something to compare


class Fault:
    """Something happens to a rank once, when it is given the step behind version 3: one step after a checkpoint."""

    def __init__(self, what):
        self.what, self.done = what, False
        self.learn = LearnerDriver.learn

    def __call__(self, group: LearnerDriver, step: LearnStep):
        due = step.version == 3 and not self.done
        if due and self.what == signal.SIGSTOP:
            os.kill(group.workers.facts[1].process, self.what)  # before it is asked: its part of the sums never comes
        handle = self.learn(group, step)
        if due and self.what == signal.SIGKILL:
            os.kill(group.workers.facts[1].process, self.what)
        self.done |= due
        return handle


@pytest.mark.parametrize("what", [signal.SIGKILL, signal.SIGSTOP, "raises"])
def test_steps_after_the_checkpoint_are_undone_and_done_again(recipe, whole, what, monkeypatch, tmp_path):
    """Killed, frozen or out of memory: the run is, row by row and token by token, one that nothing happened to."""
    fault, name = Fault(what), getattr(what, "name", what).lower()
    monkeypatch.setattr(LearnerDriver, "learn", lambda group, step: fault(group, step))
    if what == "raises":
        (tmp_path / "1-3").touch()
        monkeypatch.setattr(learners, "start_worker", partial(faulty_rank.start, tmp_path))
    rows, done = train(recipe, name, f"learner.timeout={PATIENCE}")
    said = {
        signal.SIGKILL: "rank-1 .* was ended by SIGKILL",
        signal.SIGSTOP: "rank 1 of 2 gave no sign|rank 1 of 2 did not answer",
        "raises": "rank 1 of 2 failed first in `learn`: OutOfMemoryError: CUDA out of memory",
    }[what]
    told = done.stdout + done.stderr
    warnings = [line for line in told.replace("\n", " ").split("warning: ") if "All ranks were ended" in line]
    assert len(warnings) == 1, told[-3000:]
    assert re.search(said, warnings[0]), warnings[0]
    assert "Restart 1 of at most 3" in warnings[0]
    assert "resuming after step 2" in told
    assert [row["step"] for row in rows] == list(range(7))
    assert computed(rows) == computed(whole)
    assert sampled(recipe, name) == sampled(recipe, "whole")
    assert_none_lost_or_doubled(recipe.parent / name, 6)


def test_a_rank_that_is_lost_every_time_ends_the_run(recipe, monkeypatch, tmp_path):
    for version in range(6):
        (tmp_path / f"0-{version}").touch()
    monkeypatch.setattr(learners, "start_worker", partial(faulty_rank.start, tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    over = ("cluster.max_learner_restarts=1", "validation.every=0")
    _, done = train(recipe, "again", *over, expect=1)
    assert not list(tmp_path.glob("dapo-*"))  # where they met, twice
    assert "rank 0 of 2 failed first" in done.stderr
    assert CheckpointStore(recipe.parent / "again" / "checkpoints").steps() == []


def test_a_filler_that_is_left_out_of_backward_does_not_pass(recipe, monkeypatch):
    """A planted bug. Ranks then make unequal numbers of backward passes: the run ends, and trains nothing wrong."""
    monkeypatch.setattr(learners, "start_worker", faulty_rank.start_without_fillers)
    over = (
        "cluster.max_learner_restarts=0",
        "validation.every=0",
        "learner.microbatch_tokens=1",
        "trainer.steps=2",
        "rollout.prompts_per_step=3",
        "learner.minibatch_prompts=3",
    )
    rows, done = train(recipe, "fillers", *over, f"learner.timeout={PATIENCE}", expect=1)
    assert "All ranks were ended" in done.stderr
    assert rows == []


def test_checkpoints_that_are_written_while_training_goes_on(recipe, whole):
    """Each step's is begun, the newest are whole, and a resume from one of them is the undisturbed run."""
    over = ("checkpoint.asynchronous=true", "checkpoint.every=1")
    rows, _ = train(recipe, "asynchronous", *over, "trainer.steps=4")
    folder = recipe.parent / "asynchronous" / "checkpoints"
    assert CheckpointStore(folder).steps() == [3, 4]
    for checkpoint in folder.iterdir():
        assert checkpoint.name.startswith("step_")  # nothing half-written is left
        check_manifest(checkpoint)
    dapo("train", "--resume", recipe.parent / "asynchronous", "trainer.steps=6", "logging.console=quiet")
    rows = read_metrics(recipe.parent / "asynchronous" / "metrics.jsonl")
    held_out = [key for key in whole[-1] if key.startswith("validation/")]
    for row, other in zip(computed(rows), computed(whole), strict=True):
        for key in held_out:  # step 4 was the last one once, and was evaluated for that
            row.pop(key, None), other.pop(key, None)
        assert row == other
