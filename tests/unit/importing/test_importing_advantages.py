"""Normalisations of rewards and advantages, clips, truncated rewards and rewards of whole batches, imported."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from each import each

from dapo.config.load import recipe_from_dict
from dapo.importing.convert import import_text
from dapo.run.algorithm import make_algorithm
from tests.unit.importing.test_importing_systems import imported

AREAL = (
    "gconfig: {n_samples: 4}\ntotal_train_steps: 3\ntrain_dataset: {batch_size: 8, path: x.jsonl}\nactor:\n  path: m\n"
)


def areal(norms: str, tmp_path: Any) -> Any:
    return imported(AREAL + norms, "a.yaml", tmp_path, system="areal")[1].algorithm


@each(
    ("norms", "baseline", "scale"),
    [
        ("", "none", "none"),
        ("  reward_norm: null", "none", "none"),
        ("  reward_norm: {eps: 1.0e-5}", "batch_mean", "batch_std"),
        ("  reward_norm: {mean_level: group, std_level: batch, group_size: 4}", "mean", "batch_std"),
        ("  reward_norm: {mean_level: batch, std_level: group, group_size: 4}", "batch_mean", "group_std"),
        ("  reward_norm: {mean_level: null, std_level: null}", "none", "none"),
        ("  reward_norm: {mean_leave1out: true, std_level: null}", "batch_leave_one_out", "none"),
        (
            "  reward_norm: {mean_level: group, mean_leave1out: true, std_level: null, group_size: 4}",
            "leave_one_out",
            "none",
        ),
    ],
)
def test_reward_norm_of_areal(norms: str, baseline: str, scale: str, tmp_path: Any) -> None:
    found = areal(norms, tmp_path)
    assert (found.advantage.baseline, found.advantage.scale) == (baseline, scale)
    assert found.advantage_norm is None


def test_a_leave_one_out_mean_with_the_deviation_of_the_group_is_worked_out(tmp_path: Any) -> None:
    norm = "  reward_norm: {mean_level: group, std_level: group, mean_leave1out: true, group_size: 4, eps: 0.5}"
    a = areal(norm, tmp_path)
    made = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}}
    recipe = recipe_from_dict({**made, "algorithm": {"advantage": a.advantage.model_dump()}}).recipe
    found = make_algorithm(recipe).advantages([[0.0, 0.0, 0.0, 1.0]], [[True] * 4])
    # each less the mean of the others: -1/3 three times, and 1; sum of squares 4/3, over 3; plus eps
    deviation = (4 / 9) ** 0.5 + 0.5
    np.testing.assert_allclose(found, [np.array([-1 / 3, -1 / 3, -1 / 3, 1]) / deviation])


def test_adv_norm_of_areal(tmp_path: Any) -> None:
    norm = areal("  adv_norm: {mean_level: batch, std_level: group, std_unbiased: false, eps: 0.5}", tmp_path)
    assert norm.advantage_norm.model_dump() == {
        "mean": "batch",
        "std": "group",
        "leave_one_out": False,
        "ddof": 0,
        "eps": 0.5,
    }


def test_groups_of_another_size_than_the_prompts_are_said() -> None:
    made = import_text(AREAL + "  adv_norm: {mean_level: group, std_level: null}", "a.yaml", "areal")
    assert "actor.adv_norm.group_size is 1 in AReaL; a group here is all responses to a prompt" in made.reading.said


@each(
    ("system", "text", "expected"),
    [
        ("verl", "algorithm: {adv_estimator: reinforce_plus_plus}", ("none", "none", 1)),
        ("verl", "algorithm: {adv_estimator: reinforce_plus_plus_baseline}", ("mean", "none", 1)),
        ("skyrl", "trainer: {algorithm: {advantage_estimator: reinforce++}}", ("none", "none", 1)),
        ("nemo-rl", "grpo: {adv_estimator: {name: reinforce_plus_plus}}", ("mean", "none", 0)),
        ("nemo-rl", "grpo: {adv_estimator: {name: reinforce_plus_plus, minus_baseline: false}}", ("none", "none", 0)),
    ],
)
def test_reinforce_plus_plus(system: str, text: str, expected: tuple[str, str, int]) -> None:
    made = import_text(text, "a.yaml", system)
    lines = {key: line.value for key, line in made.reading.lines.items()}
    assert lines.get("algorithm.advantage.baseline", "mean") == expected[0]
    assert lines["algorithm.advantage.scale"] == expected[1]
    assert lines.get("algorithm.advantage_norm.ddof", 1) == expected[2]
    assert lines["algorithm.advantage_norm.eps"] == 1e-8
    assert not any("advantage" in caution for caution in made.reading.cautions)


def test_clips_and_truncated_rewards() -> None:
    text = "grpo: {advantage_clip_low: -20, advantage_clip_high: null, reward_shaping: {%s}}"
    on = import_text(text % "enabled: true, stop_properly_penalty_coef: 0.25", "a.yaml", "nemo-rl").reading
    lines = {key: line.value for key, line in on.lines.items()}
    assert lines["algorithm.advantage_clip.low"] == -20.0
    assert "algorithm.advantage_clip.high" not in lines
    assert lines["algorithm.truncated_factor"] == 0.25
    assert not lines["algorithm.overlong_punishment.enabled"]
    assert not on.cautions
    off = import_text(text % "enabled: false, stop_properly_penalty_coef: 0.25", "a.yaml", "nemo-rl").reading
    assert "algorithm.truncated_factor" not in off.lines
    skyrl = import_text("generator: {zero_reward_on_non_stop: true}", "a.yaml", "skyrl").reading
    assert skyrl.lines["algorithm.truncated_factor"].value == 0.0


def test_luspo_of_trl_is_a_sum_over_each_response() -> None:
    command = "trl grpo --model_name_or_path m --loss_type luspo --importance_sampling_level sequence"
    made = import_text(command, "a.sh", "trl").reading
    assert made.lines["algorithm.loss.reduction"].value == "sequence_sum"
    assert made.lines["algorithm.loss.ratio"].value == "sequence"
    assert not made.cautions


BATCH = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo reward_model.reward_manager=batch"


def test_rewards_of_whole_batches_name_the_setting(tmp_path: Any) -> None:
    assert any("rewards.N.per=group" in caution for caution in import_text(BATCH, "a.sh", "verl").reading.cautions)
    script = (
        "from trl import GRPOConfig, GRPOTrainer\n\n\ndef ranked(completions, **kwargs):\n    return [0.0]\n\n\n"
        'GRPOTrainer(model="m", reward_funcs=[ranked], args=GRPOConfig(max_steps=3))\n'
    )
    assert any("rewards.N.per=group" in said for said in import_text(script, "a.py", "trl").reading.said)


@pytest.mark.parametrize("level", ["batch", "group"])
def test_a_level_that_areal_does_not_know_is_said(level: str) -> None:
    made = import_text(AREAL + f"  adv_norm: {{mean_level: {level}s}}", "a.yaml", "areal")
    assert any("AReaL knows batch, group and null" in caution for caution in made.reading.cautions)
