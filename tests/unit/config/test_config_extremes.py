"""Numbers that no run can mean are refused when the recipe is read, with the bounds."""

from __future__ import annotations

import re

import pytest
from each import each

from dapo.config import recipe_from_dict
from dapo.config.load import load_recipe
from dapo.config.settings import settings
from dapo.errors import RecipeError

BASE = {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}}


@each(
    "override",
    [
        "learner.timeout=1e308",
        "learner.timeout=1.0e10",
        "learner.timeout=1e-9",
        "cluster.start_timeout=1e-9",
        "cluster.engine_timeout=1e-9",
        "algorithm.kl_coefficient=1e300",
        "algorithm.entropy_coefficient=-1e300",
        "algorithm.entropy_control.delta=1e300",
        "algorithm.entropy_control.max=1e300",
        "algorithm.clip.low=1e300",
        "algorithm.clip.high=1e300",
        "algorithm.clip.dual=1e300",
        "algorithm.advantage.eps=1e300",
        "algorithm.overlong_punishment.factor=1e300",
        "algorithm.correction.cap=1e300",
        "algorithm.dynamic_sampling.max_age=1000000000000000",
        "algorithm.dynamic_sampling.verdict_lag=1000000000000000",
        "learner.learning_rate=1e300",
        "learner.learning_rate=1e-300",
        "learner.eps=1e-300",
        "learner.weight_decay=1e300",
        "learner.max_grad_norm=1e-300",
        "learner.warmup=1000000000000000",
        "learner.microbatch_tokens=1000000000000000",
        "model.lora.lora_alpha=1e300",
        "trainer.steps=1000000000000000",
        "trainer.early_stop.min_change=1e300",
        "trainer.sync_check_tolerance=1e300",
        "checkpoint.seconds=1e300",
        "checkpoint.every=1000000000000000",
        "validation.limit=1000000000000000",
        "sft.learning_rate=1e300",
        "sft.epochs=1000000000000000",
    ],
)
def test_an_extreme_number_is_refused_with_its_bounds(override: str) -> None:
    key, _, value = override.partition("=")
    with pytest.raises(RecipeError) as refused:
        load_recipe("quickstart", [override])
    assert f"{key}: " in str(refused.value)
    assert any(bound in str(refused.value) for bound in (" to ", "at most ", "below ")), value


@pytest.mark.parametrize(
    ("kind", "option"),
    [
        ("algorithm.loss.kind=cispo", "algorithm.loss.cap"),
        ("algorithm.loss.kind=sapo", "algorithm.loss.positive"),
        ("algorithm.loss.kind=kl_cov", "algorithm.loss.coefficient"),
        ("algorithm.correction.kind=truncate_sequence", "algorithm.correction.sequence_cap"),
    ],
)
def test_an_extreme_option_of_a_kind_is_refused_with_its_bounds(kind: str, option: str) -> None:
    with pytest.raises(RecipeError, match=f"{option}: 1e.*\n.*at most 1,000,000"):
        load_recipe("quickstart", [kind, f"{option}=1e300"])


WITHOUT = (
    "slurm.",
    "run.seed",
    "data.train.N.seed",
    "data.validation.N.seed",
    "learner.betas",
    "rollout.stop_token_ids",
)
"""Numbers that other checks bound; a seed may be any of 64 bits."""


def test_every_number_has_an_upper_bound() -> None:
    """A setting that is added to the schema without one is found here."""
    numbers = [s for s in settings().values() if re.search(r"\bnumber", s.expected) and not s.path.startswith(WITHOUT)]
    assert len(numbers) > 60
    unbounded = [
        s.path
        for s in numbers
        if not re.search(r" to |at most |below ", s.expected) and not s.expected.startswith("a list")
    ]
    assert unbounded == []


@pytest.mark.parametrize("port", ["0", "65536", "99999"])
def test_a_port_that_cannot_be_is_refused(port: str) -> None:
    ray = {"launch": {"backend": "ray"}, "learner": {"ranks": 2}}
    with pytest.raises(RecipeError, match=r"cluster\.address"):
        recipe_from_dict({**BASE, **ray, "cluster": {"address": f"127.0.0.1:{port}"}})
    recipe_from_dict({**BASE, **ray, "cluster": {"address": "127.0.0.1:6379"}})


@pytest.mark.parametrize(
    "lora",
    [
        {"target_modules": ["q_proj"], "modules_to_save": ["q_proj"]},
        {"target_modules": ["self_attn.q_proj"], "modules_to_save": ["q_proj"]},
        {"target_modules": []},
        {"target_modules": ["q_proj", "q_proj"]},
    ],
)
def test_lists_of_an_adapter_that_contradict_each_other_are_refused(lora: dict[str, object]) -> None:
    with pytest.raises(RecipeError, match=r"model\.lora\.(target_modules|modules_to_save)"):
        recipe_from_dict({**BASE, "model": {"path": "a/b", "lora": {"rank": 2, **lora}}})
