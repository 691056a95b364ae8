"""Whole runs whose engine works in a process of its own while the learner learns."""

from __future__ import annotations

import os
import re
import signal

import pytest
from small_run import assert_none_lost_or_doubled, write_recipe

import dapo
from dapo.config.deployment import Deployment
from dapo.errors import MachineError
from dapo.learner.driver import LearnerDriver
from dapo.loop.sampling.collector import StreamingCollector
from dapo.observe.metrics import read_metrics, without_clock

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

OVERLAP = {"rollout.max_staleness": 2, "rollout.turn_steps": 8, "run.if_exists": "backup"}
OF_THE_ENGINES = re.compile(r"cluster/|decode_steps|prefill_tokens|slot_use")
LOCKSTEP = OVERLAP | {"rollout.overlap_turns": 3}


def rows(run):
    return {row["step"]: without_clock(row) for row in read_metrics(run.path / "metrics.jsonl")}


def assert_rows_equal(found, expected, steps):
    for step in steps:
        assert {k: v for k, v in found[step].items() if not k.startswith("cluster/")} == {
            k: v for k, v in expected[step].items() if not k.startswith("cluster/")
        }


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("overlap"))


@pytest.fixture(scope="module")
def whole(recipe):
    return dapo.train(str(recipe), **LOCKSTEP, **{"run.name": "whole"})


def test_no_recorded_token_is_older_than_promised(whole):
    seen = set()
    for step, row in rows(whole).items():
        if not step:
            continue
        seen.add(row["policy/staleness_max"])
        assert row["policy/staleness_max"] <= 2
        trained = [r for r in whole.rollouts(step=step) if r["disposition"] == "trained"]
        assert len(trained) == 4 * 4
        assert all(0 <= step - 1 - version <= 2 for response in trained for version in response["versions"])
    assert max(seen) >= 1  # it did work beside the learner


def test_the_learners_process_computes_what_the_driver_would(whole, recipe, monkeypatch):
    """To the digit: rows of every step, and the weights of the last one."""
    assert (whole.path / "hosts" / "learner.txt").exists()
    monkeypatch.setattr(Deployment, "learner", "here")
    inside = dapo.train(str(recipe), **LOCKSTEP, **{"run.name": "inside"})
    assert not (inside.path / "hosts" / "learner.txt").exists()
    assert_rows_equal(rows(whole), rows(inside), range(7))
    ours, theirs = (next(run.path.glob("checkpoints/step_000006/learner/*.safetensors")) for run in (whole, inside))
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_learner_that_is_killed_costs_no_more_than_steps(whole, recipe, monkeypatch):
    """Its process ends in the middle of step 4: the run goes on from the checkpoint of step 2, to the same digits."""
    shot = []
    learn = LearnerDriver.learn

    def dying(learner, step):
        handle = learn(learner, step)
        if step.version == 3 and not shot:
            (facts,) = learner.workers.facts
            shot.append(facts.process)
            os.kill(facts.process, signal.SIGKILL)
        return handle

    monkeypatch.setattr(LearnerDriver, "learn", dying)
    run = dapo.train(str(recipe), **LOCKSTEP, **{"run.name": "killed"})
    assert len(shot) == 1
    assert_rows_equal(rows(run), rows(whole), range(7))
    assert_none_lost_or_doubled(run.path, 6)


def test_a_run_left_in_the_middle_goes_on_as_if_it_had_not_been(whole, recipe):
    with dapo.Trainer(str(recipe), **LOCKSTEP, **{"run.name": "left"}) as trainer:
        for step in trainer:
            if step.step == 3:
                break
    run = dapo.resume(trainer.run)
    assert_rows_equal(rows(run), rows(whole), range(1, 7))


def test_an_engine_that_is_killed_in_the_middle_of_responses_changes_no_digit(whole, recipe, monkeypatch):
    """One engine, beside learning and between two steps, with responses of several weights."""
    pump, calls, killed = StreamingCollector.pump, [], []

    def dying(collector, timeout=None):
        calls.append(collector.step)
        if len(calls) in (6, 12):
            (member,) = collector.engine._processes.at_work()
            killed.append((member.facts.process, len(member.work.owned)))
            os.kill(member.facts.process, signal.SIGKILL)
        return pump(collector, timeout)

    monkeypatch.setattr(StreamingCollector, "pump", dying)
    run = dapo.train(str(recipe), **LOCKSTEP, **{"run.name": "engine"})
    assert len(killed) == len({process for process, _ in killed}) == 2
    assert any(owned for _, owned in killed)
    assert sum(row.get("cluster/engine_losses", 0) for row in rows(run).values()) == 2
    ours, theirs = (  # an engine that is led to its place again decodes what the lost one had decoded
        {step: {k: v for k, v in row.items() if not OF_THE_ENGINES.search(k)} for step, row in rows(one).items()}
        for one in (run, whole)
    )
    assert ours == theirs


def test_what_fails_while_collecting_costs_no_step_over_ranks_either(recipe, monkeypatch):
    over_ranks = OVERLAP | {"rollout.overlap_turns": 1, "learner.ranks": 2, "trainer.steps": 4, "checkpoint.every": 0}
    whole = dapo.train(str(recipe), **over_ranks, **{"run.name": "ranks"})
    judge, failed = StreamingCollector._judge, []

    def fails(collector, group):
        if collector.step == collector.phases.step >= 3:  # and not beside learning
            failed.append(collector.step)
            raise MemoryError("no memory left")
        judge(collector, group)

    monkeypatch.setattr(StreamingCollector, "_judge", fails)
    with pytest.raises(MachineError, match="no memory left"):
        dapo.train(str(recipe), **over_ranks, **{"run.name": "failed"})
    run = dapo.Run(whole.path.parent / "failed")
    assert run.checkpoints == [failed[0] - 1]
    monkeypatch.setattr(StreamingCollector, "_judge", judge)
    run = dapo.resume(run)
    assert_rows_equal(rows(run), rows(whole), range(1, 5))


def test_the_staleness_may_change_on_a_resume_and_back(recipe):
    run = dapo.train(str(recipe), **{"run.name": "changes", "run.if_exists": "backup", "trainer.steps": 2})
    run = dapo.resume(run, **{"rollout.max_staleness": 2, "rollout.overlap_turns": 3, "trainer.steps": 4})
    run = dapo.resume(run, **{"rollout.max_staleness": 0, "trainer.steps": 6})
    found = rows(run)
    assert_none_lost_or_doubled(run.path, 6)
    assert [found[step].get("cluster/engines") for step in (1, 3, 5)] == [None, 1, None]
    assert found[4]["policy/staleness_max"] >= 1


def test_the_clock_may_decide(recipe):
    run = dapo.train(str(recipe), **OVERLAP, **{"run.name": "free"})
    found = rows(run)
    assert_none_lost_or_doubled(run.path, 6)
    assert all(row["policy/staleness_max"] <= 2 for step, row in found.items() if step)


def test_log_probabilities_behind_a_change_of_weights_are_the_learners(recipe):
    """Large updates, and responses of which a third see several versions: tokens of the present weights have no gap."""
    long = {"rollout.max_response_tokens": 96, "rollout.slots": 16, "rollout.turn_steps": 4}
    exact = {"algorithm.old_logprobs": "sampler", "learner.minibatch_prompts": None, "validation.every": 0}
    run = dapo.train(str(recipe), **(LOCKSTEP | long | exact | {"run.name": "long"}))
    trained = [r for step in range(2, 7) for r in run.rollouts(step=step) if r["disposition"] == "trained"]
    crossing = [r for r in trained if len(set(r["versions"])) > 1]
    assert len(crossing) > len(trained) / 3
    found = rows(run)
    assert max(found[step]["train/gap_mean_current"] for step in range(2, 7)) < 1e-5
    assert min(found[step]["train/gap_mean_older"] for step in range(2, 7)) > 0.1  # the weights do change
