"""Losses and advantages by name, from the recipe to the rows and the gradient."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from each import each
from learner_rows import make_groups

from dapo.algorithms.correction import OffPolicyMask
from dapo.config import recipe_from_dict
from dapo.config.presets import PRESETS
from dapo.run.algorithm import make_algorithm, make_correction, make_objective
from dapo.types.batch import Score

BASE = {
    "model": {"path": "m"},
    "data": {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]},
}


def recipe(*overrides, **sections):
    return recipe_from_dict({**BASE, **sections}, list(overrides)).recipe


def rows_of(r, groups=None):
    algorithm = make_algorithm(r)
    groups = groups or make_groups(0, 3, 4)
    for group in groups:
        algorithm.shape_group(group)
    algorithm.assign_advantages(groups)
    return algorithm.rows(groups), groups


@each("name", PRESETS)
def test_every_preset_makes_its_objective_and_passes_without_a_warning_of_its_own(name):
    several = {"learner": {"minibatch_prompts": 4}, "rollout": {"prompts_per_step": 8}} if name == "kl-cov" else {}
    loaded = recipe_from_dict({**BASE, "preset": name, "model": {"path": "m"}, **several})
    objective = make_objective(loaded.recipe)
    assert ("marked" in objective.reads) == (name in ("clip-cov", "kl-cov"))
    assert ("reference" in objective.needs) == (name in ("grpo-paper", "grpo-verl"))
    assert [w for w in loaded.warnings if "nothing reads" in w or "algorithm.loss" in w] == []


def test_kl_cov_is_warned_of_where_its_penalty_has_no_slope():
    def warned(*overrides):
        settings = ["rollout.prompts_per_step=8", *overrides]
        return any("kl_cov" in line for line in recipe_from_dict({**BASE, "preset": "kl-cov"}, settings).warnings)

    assert warned()
    assert not warned("learner.minibatch_prompts=4")
    assert not warned("rollout.max_staleness=1", "algorithm.old_logprobs=sampler", "model.dtype=float32")
    assert warned("rollout.max_staleness=1", "algorithm.old_logprobs=learner")


@pytest.mark.parametrize("name", ["clip-cov", "kl-cov"])
def test_rows_carry_the_marks_of_the_whole_optimiser_step(name):
    settings = ["algorithm.loss.share=0.1"] + (["algorithm.loss.above=0.0"] if name == "clip-cov" else [])
    rows, groups = rows_of(recipe(*settings, preset=name))
    marked = sum(int(row.extra["marked"].sum()) for row in rows)
    assert marked == int(0.1 * sum(int(row.loss_mask.sum()) for row in rows))
    again, _ = rows_of(recipe(*settings, preset=name), groups[::-1])
    by_key = {(row.group, row.sample): row.extra["marked"] for row in again}
    for row in rows:
        np.testing.assert_array_equal(row.extra["marked"], by_key[row.group, row.sample])
    other, _ = rows_of(recipe(*settings, "run.seed=2", preset=name))
    same = all(np.array_equal(a.extra["marked"], b.extra["marked"]) for a, b in zip(rows, other, strict=True))
    assert same == (name == "kl-cov")  # chance has a part in the other alone
    assert all(row.extra == {} for row in rows_of(recipe())[0])


def test_gdpo_sees_each_reward_and_the_length_penalty():
    rewards = [{"name": "accuracy", "kind": "exact"}, {"name": "brief", "kind": "regex", "pattern": "x", "weight": 0.5}]
    groups = make_groups(0, 2, 4)
    for group in groups:
        group.scores_G = [
            Score({"accuracy": float(i % 2), "brief": float(i == 0)}, i % 2 + 0.5 * (i == 0)) for i in range(4)
        ]
    plain, _ = rows_of(recipe("algorithm.reward_scaling.enabled=false", preset="grpo", rewards=rewards), groups)
    own, _ = rows_of(recipe(preset="gdpo", rewards=rewards), groups)
    # right -0.866, 0.866, -0.866, 0.866 and half of brief 1.5, -0.5, -0.5, -0.5, over the std of both groups' sums
    assert [round(row.advantage, 2) for row in own[:4]] == [-0.15, 0.81, -1.47, 0.81]
    assert [round(row.advantage, 2) for row in plain[:4]] == [-0.26, 0.78, -1.31, 0.78]
    long = recipe(
        "algorithm.overlong_punishment={enabled: true, max_length: 8, cache_length: 8}",
        "rollout.max_response_tokens=8",
        preset="gdpo",
        rewards=rewards,
    )
    punished, _ = rows_of(long, groups)
    assert [row.advantage for row in punished] != [row.advantage for row in own]


def test_an_advantage_function_of_ones_own_may_ask_for_the_parts(monkeypatch, tmp_path):
    (tmp_path / "mine_parts.py").write_text(
        "import numpy as np\n\n\n"
        "def first_right(rewards_PG, voters_PG, parts_PG):\n"
        "    return [np.where(v, p['accuracy'] - p['accuracy'][v].mean(), 0.0) for v, p in zip(voters_PG, parts_PG)]\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    groups = make_groups(0, 2, 4)
    for group in groups:
        group.scores_G = [replace(s, values={"accuracy": float(i == 0)}) for i, s in enumerate(group.scores_G)]
    rows, _ = rows_of(recipe("algorithm.advantage.kind=mine_parts:first_right"), groups)
    assert [row.advantage for row in rows[:4]] == [0.75, -0.25, -0.25, -0.25]


def test_a_correction_gets_its_options_alone():
    """A cap below the masks' default floor bounds a truncation, which has no floor."""
    settings = ["algorithm.old_logprobs=learner", "algorithm.correction={kind: truncate, cap: 0.4}"]
    correction = make_correction(recipe(*settings))
    zeros = np.zeros(2, np.float32)
    np.testing.assert_allclose(correction(zeros, zeros, np.array([True, False])), [0.4, 1.0])


@pytest.mark.parametrize("against", ["sampler", "learner"])
def test_the_off_policy_mask_works_against_either(against):
    settings = [f"algorithm.old_logprobs={against}", "algorithm.correction={kind: mask_off_policy, threshold: 0.3}"]
    assert make_correction(recipe(*settings)) == OffPolicyMask(0.3)
