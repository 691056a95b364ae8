"""The presets against their values, written out by hand."""

from __future__ import annotations

from typing import Any

import pytest
from each import each

from dapo.config import recipe_from_dict
from dapo.config.checks import correction_kind, penalty_interval, ratio_against
from dapo.config.presets import PRESETS, preset_settings
from dapo.config.schema import Recipe
from dapo.config.settings import settings
from dapo.run.engines import describe_engine

SMALL = {"model": {"path": "someone/model"}, "data": {"train": [{"task": "signed_sum"}]}}
BOTH = {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]}


def preset(name: str) -> Recipe:
    return recipe_from_dict({**SMALL, "preset": name}).recipe


TABLE: dict[str, dict[str, Any]] = {
    "algorithm.clip.low": {"dapo": 0.2, "dapo-paper": 0.2, "dapo-verl": 0.2, "grpo": 0.2, "dr-grpo": 0.2, "gspo": 3e-4},
    "algorithm.clip.high": {
        "dapo": 0.28,
        "dapo-paper": 0.28,
        "dapo-verl": 0.28,
        "grpo": 0.2,
        "dr-grpo": 0.2,
        "gspo": 4e-4,
    },
    "algorithm.clip.dual": {"dapo": None, "dapo-paper": None, "dapo-verl": 10, "grpo": None, "dr-grpo": None},
    "algorithm.loss.kind": {
        "dapo": "clip",
        "dapo-paper": "clip",
        "dapo-verl": "clip",
        "grpo": "clip",
        "dr-grpo": "clip",
        "cispo": "cispo",
        "sapo": "sapo",
        "clip-cov": "clip_cov",
        "kl-cov": "kl_cov",
        "scalerl-loss": "cispo",
    },
    "algorithm.loss.ratio": {**dict.fromkeys(PRESETS, "token"), "gspo": "sequence"},
    "algorithm.loss.cap": {"scalerl-loss": 5},
    "algorithm.loss.reduction.kind": {
        "dapo": "token_mean",
        "dapo-paper": "prompt_mean",
        "dapo-verl": "token_mean",
        "grpo": "sequence_mean",
        "gspo": "sequence_mean",
        "dr-grpo": "constant",
        "grpo-paper": "sequence_mean",
        "grpo-trl": "token_mean",
        "grpo-verl": "token_mean",
        "cispo": "token_mean",
        "sapo": "sequence_mean",
        "clip-cov": "token_mean",
        "gdpo": "sequence_mean",
        "scalerl-loss": "prompt_mean",
    },
    "algorithm.advantage.baseline": dict.fromkeys(PRESETS, "mean"),
    "algorithm.advantage.scale": {
        "dapo": "group_std",
        "dapo-paper": "group_std",
        "dapo-verl": "group_std",
        "grpo": "group_std",
        "dr-grpo": "none",
        "scalerl-loss": "batch_std",
    },
    "algorithm.advantage.ddof": dict.fromkeys(PRESETS, 1),
    "algorithm.advantage.eps": {
        "dapo": 1e-6,
        "dapo-paper": 1e-6,
        "dapo-verl": 1e-6,
        "grpo": 1e-4,
        "gspo": 1e-4,
        "scalerl-loss": 1e-6,
    },
    "algorithm.dynamic_sampling.mode": {
        "dapo": "filter",
        "dapo-paper": "filter",
        "dapo-verl": "filter",
        "grpo": "off",
        "gspo": "off",
        "dr-grpo": "off",
        "scalerl-loss": "mask",
    },
    "algorithm.dynamic_sampling.surplus": {"dapo": "carry", "dapo-paper": "discard", "dapo-verl": "discard"},
    "algorithm.dynamic_sampling.unfinished": {"dapo-paper": "drain", "dapo-verl": "drain"},
    "algorithm.dynamic_sampling.oversample": {"dapo": None, "dapo-paper": None, "dapo-verl": 3},
    "algorithm.dynamic_sampling.cap.groups": {"dapo-paper": 20, "dapo-verl": 30},
    "algorithm.dynamic_sampling.cap.then": {"dapo": "stop", "dapo-paper": "stop", "dapo-verl": "stop"},
    "algorithm.overlong_punishment.enabled": {
        "dapo": True,
        "dapo-paper": True,
        "dapo-verl": True,
        "grpo": False,
        "dr-grpo": False,
        "gspo": False,
        "scalerl-loss": False,
    },
    "algorithm.overlong_punishment.factor": {"dapo": 1, "dapo-paper": 1, "dapo-verl": 1},
    "algorithm.overlong_filtering": {
        "dapo": True,
        "dapo-paper": False,
        "dapo-verl": False,
        "grpo": False,
        "dr-grpo": False,
        "gspo": False,
        "scalerl-loss": False,
    },
    "algorithm.reward_scaling.enabled": {
        "dapo": True,
        "dapo-paper": True,
        "dapo-verl": True,
        "grpo": False,
        "dr-grpo": False,
        "gspo": False,
        "scalerl-loss": True,
    },
    "algorithm.reward_scaling.target_min": {"dapo": -1, "scalerl-loss": -1},
    "algorithm.reward_scaling.target_max": {"dapo": 1, "scalerl-loss": 1},
    "algorithm.kl_coefficient": {**dict.fromkeys(PRESETS, 0), "grpo-paper": 0.04, "grpo-verl": 0.001},
    "algorithm.entropy_coefficient": dict.fromkeys(PRESETS, 0),
    "algorithm.advantage.kind": {**dict.fromkeys(PRESETS, "group"), "gdpo": "gdpo"},
    "learner.schedule": dict.fromkeys(PRESETS, "constant"),
    "learner.schedule_unit": dict.fromkeys(PRESETS, "rollout"),
    "learner.warmup": {
        "dapo": 10,
        "dapo-paper": 20,
        "dapo-verl": 10,
        "grpo": 10,
        "gspo": 10,
        "dr-grpo": 10,
        "scalerl-loss": 10,
    },
    "model.fp32_head": {
        "dapo": False,
        "dapo-paper": False,
        "dapo-verl": False,
        "grpo": False,
        "dr-grpo": False,
        "gspo": False,
        "scalerl-loss": True,
    },
}


@each(("path", "by_preset"), TABLE.items())
def test_presets_are_as_the_table_says(path: str, by_preset: dict[str, Any]) -> None:
    for name, expected in by_preset.items():
        value: Any = preset(name)
        for part in path.split("."):
            value = getattr(value, part, settings()[path].default)  # an option of another kind
        assert value == expected, f"{name}: {path}"


@pytest.mark.parametrize("name", ["dapo-paper", "dapo-verl"])
def test_the_papers_run(name: str) -> None:
    recipe = preset(name)
    assert (recipe.rollout.prompts_per_step, recipe.rollout.group_size) == (512, 16)
    assert recipe.learner.minibatch_prompts == 32  # 16 optimiser steps, each of 512 responses
    assert (recipe.learner.learning_rate, recipe.learner.weight_decay, recipe.learner.max_grad_norm) == (1e-6, 0.1, 1.0)
    assert penalty_interval(recipe) == (20480, 4096)
    assert recipe.rollout.max_response_tokens == 20480
    assert (recipe.rollout.temperature, recipe.rollout.top_p) == (1.0, 1.0)
    validation = recipe.validation
    assert (validation.samples, validation.temperature, validation.top_p) == (32, 1.0, 0.7)


def test_the_default_cache_is_a_fifth_of_the_response_limit() -> None:
    given = {**SMALL, "rollout": {"max_response_tokens": 1000}}
    assert penalty_interval(recipe_from_dict(given).recipe) == (1000, 200)


@each(
    ("engine", "dtype", "sampler"),
    [
        ("embedded", "float32", True),
        ("embedded", "bfloat16", False),
        *((engine, dtype, False) for engine in ("generate", "vllm") for dtype in ("float32", "bfloat16")),
    ],
)
def test_old_logprobs_follow_the_engine_and_the_precision(engine: str, dtype: str, sampler: bool) -> None:
    given = {**SMALL, "model": {"path": "m", "dtype": dtype}, "rollout": {"engine": engine}}
    recipe = recipe_from_dict(given).recipe
    assert ratio_against(recipe) == ("sampler" if sampler else "learner")
    assert correction_kind(recipe) == ("none" if sampler else "truncate")
    said = describe_engine(recipe)
    assert ("the sampler's own" if sampler else "the learner's; correction of the gap: truncate") in said
    assert ratio_against(recipe_from_dict(given, ["algorithm.old_logprobs=sampler"]).recipe) == "sampler"


def test_the_preset_gspo_is_grpo_but_for_ratio_and_clip() -> None:
    """And passes without a warning, in which it differs from ratio: sequence on another preset."""
    loaded = recipe_from_dict({**SMALL, "preset": "gspo", "data": BOTH})
    assert loaded.warnings == ()
    mine, theirs = loaded.recipe.algorithm, preset("grpo").algorithm
    assert {name for name, value in mine if value != getattr(theirs, name)} == {"clip", "loss"}


def test_presets_cannot_be_spoilt_by_their_users() -> None:
    preset_settings("grpo")["algorithm"]["clip"]["high"] = 9.0
    assert preset("grpo").algorithm.clip.high == 0.2


def test_no_preset_differs_from_itself() -> None:
    for name in PRESETS:
        assert recipe_from_dict({**SMALL, "preset": name}).difference == {}
