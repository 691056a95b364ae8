"""What the embedded engine is told: the longest sequence, and what the learner will hold beside its cache."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from dapo.config import schema
from dapo.run import engines

N = 1_000_000


def recipe(dtype: str, kl: float = 0.0, offload: bool = False) -> schema.Recipe:
    task = [{"task": "signed_sum"}]
    return schema.Recipe.model_validate(
        {
            "model": {"path": "m", "dtype": dtype},
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
    assert engines.learner_state(recipe(dtype, kl, offload), facts) == bytes_each * N


@pytest.mark.parametrize("training", [True, False])
def test_the_embedded_engine_hears_of_both(monkeypatch, training):
    told = {}
    monkeypatch.setattr(engines, "EmbeddedEngine", lambda loaded, **options: told.update(options))
    facts = SimpleNamespace(parameters=N, name="m", exact_positions=None)
    engines.make_engine(recipe("bfloat16"), facts, None, longest=99, weights=None, run=None, learner=training)
    assert told == {"slots": None, "longest": 99, "reserve": 12 * N if training else 0}
