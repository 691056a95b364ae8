"""What the embedded engine is told: the longest sequence, and what the learner will hold beside its cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dapo.config import schema
from dapo.config.deployment import deployment_of
from dapo.engines import factory
from dapo.models.adapter import adapter_parameters
from dapo.run import engines
from dapo.run.given import Context
from dapo.run.held import learner_holds

N = 1_000_000


def recipe(dtype: str, kl: float = 0.0, offload: bool = False, rank: int | None = None) -> schema.Recipe:
    task = [{"task": "signed_sum"}]
    return schema.Recipe.model_validate(
        {
            "model": {"path": "m", "dtype": dtype, "lora": {"rank": rank}},
            "data": {"train": task},
            "rewards": [{"name": "accuracy"}],
            "algorithm": {"kl_coefficient": kl, "reference": {"offload": offload}},
        }
    )


@pytest.mark.parametrize(
    ("dtype", "kl", "offload", "bytes_each"),
    [
        ("float32", 0.0, False, 8),  # two moments
        ("bfloat16", 0.0, False, 12),  # and a float32 master
        ("bfloat16", 0.1, False, 14),  # and the reference
        ("bfloat16", 0.1, True, 12),
        ("float32", 0.1, False, 12),
    ],
)
def test_what_a_learner_holds_between_two_steps(dtype, kl, offload, bytes_each):
    facts = SimpleNamespace(parameters=N)
    assert learner_holds(recipe(dtype, kl, offload), facts).beside_weights == bytes_each * N


def test_an_adapters_learner_holds_the_adapters_state_alone():
    with_adapter = recipe("bfloat16", rank=8)
    shapes = {"model.layers.0.self_attn.q_proj.weight": (64, 32), "lm_head.weight": (1000, 32)}
    facts = SimpleNamespace(parameters=N, shapes=shapes)
    found = learner_holds(with_adapter, facts).beside_weights
    assert found == 12 * adapter_parameters(shapes, with_adapter.model.lora)
    assert 0 < found <= 12 * 8 * (64 + 32)


def test_a_reference_that_is_the_model_without_its_adapter_is_not_held_twice():
    shapes = {"model.layers.0.self_attn.q_proj.weight": (64, 32), "lm_head.weight": (1000, 32)}
    facts = SimpleNamespace(parameters=N, shapes=shapes)
    without, against = (learner_holds(recipe("bfloat16", kl=kl, rank=8), facts) for kl in (0.0, 0.1))
    assert against == without


@pytest.mark.parametrize("training", [True, False])
def test_the_embedded_engine_hears_of_both(monkeypatch, training):
    told = {}
    monkeypatch.setattr(factory, "EmbeddedEngine", lambda loaded, **options: told.update(options))
    facts, low = SimpleNamespace(parameters=N, name="m", exact_positions=None), recipe("bfloat16")
    context = Context(low, None, [], None, facts, object(), longest=99)
    engines.start_engine(low, deployment_of(low), context, training=training)
    reserve = 12 * N if training else 0
    memory = {"slots": None, "longest": 99, "reserve": reserve, "shares_weights": True, "cuda_graphs": None}
    assert told == memory | {"recompute_cache": True, "record_routes": False, "keeps": False}
