"""Reference, KL in the reward and the entropy coefficient on their way through the step."""

from __future__ import annotations

import numpy as np
import pytest
from learner_rows import make_groups
from scripted import make_algorithm
from scripted_learner import ScriptedLearner
from scripted_run import make_run

from dapo.loop.reference import reference_logprobs, subtract_kl

KL = {"kl_coefficient": 0.1, "reference": {"refresh_every": 3}}


def test_no_reference_is_asked_for_unless_something_reads_it(tmp_path):
    run = make_run(tmp_path)
    run()
    assert "reference" not in run.learner.calls
    assert all(
        row.reference_logprobs is None for step in run.learner.steps for rows in step.minibatches for row in rows
    )
    assert [step.refresh_reference for step in run.learner.steps] == [False] * 4


def test_rows_carry_what_the_reference_says_and_refreshes_come_when_due(tmp_path):
    run = make_run(tmp_path, section=KL, changes={"needs_reference": True})
    run()
    assert run.log.calls(1)[:4] == ["collect", "shape", "sleep", "learner reference"]  # the engine has let go by then
    assert [step.refresh_reference for step in run.learner.steps] == [False, False, True, False]
    start = ScriptedLearner()
    for step in run.learner.steps:
        for row in (row for rows in step.minibatches for row in rows):
            (expected,) = start.logprobs([row]).result()
            np.testing.assert_array_equal(row.reference_logprobs, expected)


def shaped(changes=None, seed=0):
    algorithm = make_algorithm(
        shape=lambda rewards, lengths, truncated: (rewards, np.zeros(len(rewards))),
        truncated_vote=True,
        needs_reference=True,
        **(changes or {}),
    )
    groups = make_groups(seed, 2, 3)
    for group in groups:
        algorithm.shape_group(group)
    return algorithm, groups


@pytest.mark.parametrize("against", ["sampler", "learner"])
def test_the_kl_comes_off_the_reward_before_the_advantage(against):
    """R - 0.1 x sum of (policy - reference), the policy being whatever the ratio runs against."""
    algorithm, groups = shaped({"kl_in_reward": 0.1})
    learner = ScriptedLearner()
    learner.scores = learner.scores * 1.5  # the policy has learned, the reference stays
    references = reference_logprobs(groups, algorithm, learner)
    before = [group.rewards_G.copy() for group in groups]
    metrics = subtract_kl(groups, references, algorithm, learner, against)
    taken = []
    for group, raw in zip(groups, before, strict=True):
        for index, completion in enumerate(group.completions_G):
            reference = ScriptedLearner()._log_p()[completion.token_ids]
            own = completion.logprobs if against == "sampler" else learner._log_p()[completion.token_ids]
            taken.append(-0.1 * float((own.astype(np.float64) - reference).sum()))
            assert group.rewards_G[index] == pytest.approx(raw[index] + taken[-1], abs=1e-5)
    assert metrics == {"reward/kl_penalty": pytest.approx(np.mean(taken), abs=1e-5)}
    assert np.ptp(taken) > 0.01
    assert learner.calls.count("logprobs") == (against == "learner")


def test_members_that_do_not_vote_are_not_asked_for():
    algorithm, groups = shaped({"kl_in_reward": 0.1})
    groups[0].voters_G = np.array([True, False, True])
    references = reference_logprobs(groups, algorithm, ScriptedLearner())
    assert sorted(references) == [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)]
    before = groups[0].rewards_G.copy()
    subtract_kl(groups, references, algorithm, ScriptedLearner(), "sampler")
    assert (groups[0].rewards_G != before).tolist() == [True, False, True]


def test_kl_in_the_reward_reaches_the_advantages_of_a_run(tmp_path):
    section = KL | {"kl_in_reward": True}
    run = make_run(tmp_path / "kl", section=section, changes={"needs_reference": True, "kl_in_reward": 0.1})
    plain = make_run(tmp_path / "plain")
    run()
    plain()
    assert run.recorder.rows[1]["reward/kl_penalty"] == 0  # the policy is the reference
    assert run.recorder.rows[2]["reward/kl_penalty"] != 0
    assert "reward/kl_penalty" not in plain.recorder.rows[2]

    def advantages(run, step):
        return [row.advantage for rows in run.learner.steps[step - 1].minibatches for row in rows]

    assert advantages(run, 1) == advantages(plain, 1)
    assert advantages(run, 2) != advantages(plain, 2)


def test_the_entropy_coefficient_of_a_step_is_told_and_follows_the_last_steps_entropy(tmp_path):
    """The scripted policy's entropy is 4.3 nats: below 9, so the coefficient climbs by 0.01 a step."""
    section = {"entropy_control": {"target": 9.0, "delta": 0.01, "max": 0.025}}
    run = make_run(tmp_path, section=section)
    run()
    expected = [0.0, 0.01, 0.02, 0.025]
    assert [step.entropy_coefficient for step in run.learner.steps] == pytest.approx(expected)
    assert [run.recorder.rows[n]["train/entropy_coefficient"] for n in (1, 2, 3, 4)] == pytest.approx(expected)
    fixed = make_run(tmp_path / "fixed", section={"entropy_coefficient": -0.02})
    fixed()
    assert [step.entropy_coefficient for step in fixed.learner.steps] == [-0.02] * 4


def test_the_entropy_coefficient_survives_a_resume(tmp_path):
    section = {"entropy_control": {"target": 9.0, "delta": 0.01}}
    make_run(tmp_path, section=section, steps=2)()
    run = make_run(tmp_path, section=section, resume=True)
    run()
    assert [step.entropy_coefficient for step in run.learner.steps] == pytest.approx([0.02, 0.03])
