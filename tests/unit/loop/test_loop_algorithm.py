"""What the algorithm asks of the learner, plans for it, and takes from it: reference, KL in the reward, entropy."""

from __future__ import annotations

import numpy as np
import pytest
from learner_rows import make_groups
from scripted import make_algorithm
from scripted_learner import ScriptedLearner
from scripted_run import make_run

from dapo.algorithms.algorithm import Algorithm, Passes
from dapo.algorithms.entropy import EntropyControl
from dapo.types.batch import Score, StepBatch

KL = {"needs_reference": True, "refresh_every": 3}


def test_no_reference_is_asked_for_unless_something_reads_it(tmp_path):
    run = make_run(tmp_path)
    run()
    assert "reference" not in run.learner.calls
    assert all(
        row.reference_logprobs is None for step in run.learner.steps for rows in step.minibatches for row in rows
    )
    assert [step.refresh_reference for step in run.learner.steps] == [False] * 4


def test_rows_carry_what_the_reference_says_and_refreshes_come_when_due(tmp_path):
    run = make_run(tmp_path, changes=KL)
    run()
    assert run.log.calls(1)[:4] == ["collect", "sleep", "learner reference", "shape"]  # the engine has let go by then
    assert [step.refresh_reference for step in run.learner.steps] == [False, False, True, False]
    start = ScriptedLearner()
    for step in run.learner.steps:
        for row in (row for rows in step.minibatches for row in rows):
            (expected,) = start.logprobs([row]).result()
            np.testing.assert_array_equal(row.reference_logprobs, expected)


def of_two_groups(changes=None, seed=0):
    algorithm = make_algorithm(
        shape=lambda rewards, lengths, truncated: (rewards, np.zeros(len(rewards))),
        truncated_vote=True,
        needs_reference=True,
        **(changes or {}),
    )
    return algorithm, make_groups(seed, 2, 3)


def planned(algorithm, groups, learner):
    """Return the metrics of the planned batch, after the learner was asked."""
    batch = StepBatch(1, groups, groups)
    found = {of: learner.logprobs(rows, of).result() for of, rows in algorithm.asks(batch).items()}
    algorithm.plan(batch, found, version=0, rate=lambda number: 0.1)
    return batch.metrics


def planned_epochs(step=0, seed=0, epochs=3):
    """A step of three epochs over six groups, two of them in a minibatch."""
    settings = {"truncated_vote": True, "passes": Passes(2, epochs, seed)}
    algorithm = make_algorithm(shape=lambda rewards, lengths, truncated: (rewards, np.zeros(len(rewards))), **settings)
    groups = make_groups(0, 6, 3)
    batch = StepBatch(step + 1, groups, groups)
    made = algorithm.plan(batch, {}, version=step, rate=lambda number: float(number), traced={0, 5})
    return made, batch.metrics


def groups_of(step):
    return [[row.group for row in rows[::3]] for rows in step.minibatches]


def test_epochs_draw_whole_groups_anew_from_seed_step_and_epoch():
    step, _ = planned_epochs()
    drawn = groups_of(step)
    assert drawn[:3] == groups_of(planned_epochs(epochs=1)[0]) == [[0, 1], [2, 3], [4, 5]]
    for epoch in (drawn[3:6], drawn[6:]):
        assert sorted(group for part in epoch for group in part) == list(range(6))
        assert all(part == sorted(part) for part in epoch)
        assert epoch != drawn[:3]
    assert drawn[3:6] != drawn[6:]
    assert groups_of(planned_epochs()[0]) == drawn
    assert groups_of(planned_epochs(step=1)[0]) != drawn != groups_of(planned_epochs(seed=1)[0])
    for rows in step.minibatches:  # token_mean of their own minibatch
        assert sum(row.loss_weights().sum() for row in rows) == pytest.approx(1.0)
    assert step.learning_rates == list(range(9))  # each optimiser step asks the schedule for its own


def test_tokens_of_several_epochs_count_once_and_are_traced_in_the_last():
    (step, metrics), (once, of_once) = planned_epochs(), planned_epochs(epochs=1)
    assert metrics == of_once
    tokens = sum(int(row.loss_mask.sum()) for rows in once.minibatches for row in rows)
    assert metrics["sampling/trained_tokens"] == tokens > 0
    assert sum(len(rows) for rows in step.first_pass) == 18
    traced = [{row.group for row in rows if row.traced} for rows in step.minibatches]
    assert traced[:6] == [set()] * 6
    assert set().union(*traced[6:]) == {0, 5}


def test_a_run_of_two_epochs_counts_its_steps_and_resumes_to_the_same_minibatches(tmp_path):
    def run(folder, **options):
        made = make_run(folder, changes={"passes": Passes(1, 2, 3)}, **options)
        made()
        return made

    whole, started = run(tmp_path / "whole"), run(tmp_path / "halves", steps=2)
    rest = run(tmp_path / "halves", resume=True)
    assert [groups_of(step) for step in whole.learner.steps] == [
        groups_of(step) for half in (started, rest) for step in half.learner.steps
    ]
    assert any(groups_of(step)[:4] != groups_of(step)[4:] for step in whole.learner.steps)
    for made in (whole, rest):
        assert made.trainer.counters.optimizer_steps == sum(len(s.minibatches) for s in whole.learner.steps) == 32
        assert made.trainer.counters.trained_tokens == sum(
            int(row.loss_mask.sum()) for step in whole.learner.steps for rows in step.first_pass for row in rows
        )


@pytest.mark.parametrize("against", ["sampler", "learner"])
def test_the_kl_comes_off_the_reward_before_the_advantage(against):
    """R - 0.1 x sum of (policy - reference), the policy being whatever the ratio runs against."""
    algorithm, groups = of_two_groups({"kl_in_reward": 0.1, "ratio_against": against})
    learner = ScriptedLearner()
    learner.scores = learner.scores * 1.5  # the policy has learned, the reference stays
    metrics = planned(algorithm, groups, learner)
    taken = []
    for group in groups:
        raw = [score.reward for score in group.scores_G]
        for index, completion in enumerate(group.completions_G):
            reference = ScriptedLearner()._log_p()[completion.token_ids]
            own = completion.logprobs if against == "sampler" else learner._log_p()[completion.token_ids]
            taken.append(-0.1 * float((own.astype(np.float64) - reference).sum()))
            assert group.rewards_G[index] == pytest.approx(raw[index] + taken[-1], abs=1e-5)
    assert metrics["reward/kl_penalty"] == pytest.approx(np.mean(taken), abs=1e-5)
    assert np.ptp(taken) > 0.01
    assert learner.calls.count("logprobs") == (against == "learner")


def test_members_that_do_not_vote_are_not_asked_for():
    algorithm, groups = of_two_groups({"kl_in_reward": 0.1})
    groups[0].scores_G[1] = Score({"accuracy": 1.0}, 0.5, reason="timeout")
    (asked,) = algorithm.asks(StepBatch(1, groups, groups)).values()
    assert [row.group for row in asked] == [0, 0, 1, 1, 1]
    np.testing.assert_array_equal(asked[1].token_ids, groups[0].completions_G[2].token_ids)
    planned(algorithm, groups, ScriptedLearner())
    raw = [score.reward for score in groups[0].scores_G]
    assert (groups[0].rewards_G != raw).tolist() == [True, False, True]


def test_kl_in_the_reward_reaches_the_advantages_of_a_run(tmp_path):
    run = make_run(tmp_path / "kl", changes=KL | {"kl_in_reward": 0.1})
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
    run = make_run(tmp_path, changes={"entropy": EntropyControl(0.0, target=9.0, step=0.01, high=0.025)})
    run()
    expected = [0.0, 0.01, 0.02, 0.025]
    assert [step.entropy_coefficient for step in run.learner.steps] == pytest.approx(expected)
    assert [run.recorder.rows[n]["train/entropy_coefficient"] for n in (1, 2, 3, 4)] == pytest.approx(expected)
    fixed = make_run(tmp_path / "fixed", changes={"entropy_coefficient": -0.02})
    fixed()
    assert [step.entropy_coefficient for step in fixed.learner.steps] == [-0.02] * 4


def test_the_entropy_coefficient_survives_a_resume(tmp_path):
    def resumed(changes=None, **options):
        changes = changes or {"entropy": EntropyControl(0.0, target=9.0, step=0.01)}
        return make_run(tmp_path, changes=changes, **options)

    resumed(steps=2)()
    run = resumed(resume=True, steps=3)
    run()
    assert [step.entropy_coefficient for step in run.learner.steps] == pytest.approx([0.02])
    fixed = resumed({"entropy_coefficient": 0.3}, resume=True)
    fixed()
    assert [step.entropy_coefficient for step in fixed.learner.steps] == [0.3]


class Counting(Algorithm):
    """Takes the half of each rate when it has learned from an odd number of steps, and measures that."""

    def __init__(self, **settings):
        super().__init__(**settings)
        object.__setattr__(self, "seen", 0)

    def plan(self, batch, logprobs, *, version, rate, traced=()):
        return super().plan(batch, logprobs, version=version, rate=lambda n: rate(n) / (1 + self.seen % 2))

    def learned(self, step, metrics):
        object.__setattr__(self, "seen", self.seen + 1)
        return {"train/entropy_coefficient": metrics["train/entropy"] + step.learning_rates[0]}

    def state(self):
        return {"seen": self.seen}

    def load(self, state):
        object.__setattr__(self, "seen", state["seen"])


def test_an_algorithm_of_ones_own_plans_measures_and_keeps_its_state_without_the_trainers_help(tmp_path):
    def run(folder, **options):
        made = make_run(folder, kind=Counting, **options)
        made()
        return made

    whole = run(tmp_path / "whole")
    assert whole.rates[::2] == pytest.approx([0.1 / 3, 0.2 / 6, 0.1, 0.05])
    rows = whole.recorder.rows
    assert [rows[n]["train/entropy_coefficient"] - rows[n]["train/entropy"] for n in (1, 2, 3, 4)] == pytest.approx(
        whole.rates[::2]
    )
    run(tmp_path / "parted", steps=3)
    rest = run(tmp_path / "parted", resume=True)
    assert rest.rates == whole.rates[-len(rest.rates) :] == [0.05, 0.05]
    np.testing.assert_array_equal(rest.learner.scores, whole.learner.scores)
