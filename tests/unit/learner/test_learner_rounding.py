"""On tokens of the present weights every ratio is 1 but for rounding: no loss may make a gradient of that rounding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from every_loss import every_loss
from learner_here import LearnerHere
from learner_rows import make_rows, with_sampler
from transformers import AutoModelForCausalLM

from dapo.algorithms.losses import LossInputs
from dapo.algorithms.objective import Objective, clip_objective, with_terms
from dapo.config import schema
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import LearnStep, Row

OBJECTIVES: dict[str, Objective] = {
    **every_loss(),
    **{
        kind: with_terms(clip_objective(low=0.2, high=0.28), kl_coefficient=0.5, kl_estimator=kind)
        for kind in ("k1", "k2", "k3")
    },
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, heads=2, ffn=48)


def learner(folder: Path, objective: Objective, mode: Any, dtype: torch.dtype, **settings: Any) -> LearnerHere:
    loaded = load_model(folder, dtype=dtype, attention_mode=mode)
    return LearnerHere(loaded, objective, schema.LearnerSection(**settings), 1.0, None)


def update(own: LearnerHere, rows: Sequence[Row], against: Any) -> torch.Tensor:
    """The gradient of one optimiser step, which is then not made."""
    found: list[torch.Tensor] = []

    def step(rate: float) -> tuple[float, bool]:
        found.extend(p.grad.flatten().clone() for p in own.loaded.model.parameters() if p.grad is not None)
        own.loaded.model.zero_grad(set_to_none=True)
        return 0.0, True

    own.step.optimizer.step = step  # type: ignore[method-assign]
    own.learn(LearnStep([rows], [1.0], 1, against)).result()
    return torch.cat(found)


def test_what_precision_costs_is_measured_by_the_model_as_transformers_has_it(folder: Path) -> None:
    """Two plain models, one of bfloat16 numbers and one with the same numbers in float32."""
    rows = make_rows(0, 2, 3, length=lambda random: int(random.integers(4, 12)))
    found = learner(folder, OBJECTIVES["k1"], "packed", torch.bfloat16).rounding(rows)
    rounded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).float()
    expected = []
    for row in rows:
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]))[None]
        own = slice(len(row.prompt_ids) - 1, -1)
        with torch.no_grad():
            low, high = (model(ids).logits[0, own].float().log_softmax(-1) for model in (rounded, exact))
        chosen = torch.from_numpy(row.token_ids)[:, None]
        expected.append((low - high).abs().gather(-1, chosen)[:, 0])
    assert found is not None
    np.testing.assert_allclose(found, torch.cat(expected).numpy(), atol=1e-6)
    assert found.mean() > 1e-4
    in_float32 = learner(folder, OBJECTIVES["k1"], "packed", torch.float32).rounding(rows)
    assert in_float32 is not None
    assert 0.0 < in_float32.mean() < 1e-6
    assert learner(folder, OBJECTIVES["k1"], "packed", torch.float64).rounding(rows) is None


@pytest.mark.parametrize("name", OBJECTIVES)
def test_layout_and_the_side_of_the_old_numbers_do_not_change_an_update(folder: Path, name: str) -> None:
    """The sampler's numbers are those of the other layout: what an engine of the same weights records."""
    rows = make_rows(0, 3, 4, length=lambda random: int(random.integers(8, 20)))
    rows = [replace(row, extra={"marked": np.arange(len(row.token_ids)) % 3 == 0}) for row in rows]
    packed, padded = (learner(folder, OBJECTIVES[name], mode, torch.float32) for mode in ("packed", "padded"))
    recorded = padded.logprobs(rows).result()
    assert any((a != b).any() for a, b in zip(recorded, packed.logprobs(rows).result(), strict=True)), "no rounding"
    rows = with_sampler(rows, recorded)
    rows = [replace(row, reference_logprobs=row.sampler_logprobs) for row in rows]
    expected = update(packed, rows, "learner")
    for own, against in ((packed, "sampler"), (padded, "sampler"), (padded, "learner")):
        distance = (update(own, rows, against) - expected).norm() / expected.norm()
        assert distance < 2e-5, f"{against}: {distance:.2%} of the update"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_first_minibatch_has_ratios_of_exactly_one(folder: Path, dtype: torch.dtype) -> None:
    """Whatever the number format: the learner's old numbers are those of the passes that train."""
    seen: list[torch.Tensor] = []

    def loss(inputs: LossInputs) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        seen.append((inputs.logprobs - inputs.old_logprobs).detach()[inputs.loss_mask])
        return -inputs.logprobs * inputs.advantages, {}

    own = learner(folder, Objective(loss), "packed", dtype, microbatch_tokens=150)
    rows = make_rows(0, 6, 4, length=lambda random: int(random.integers(8, 20)))
    half = len(rows) // 2
    own.learn(LearnStep([rows[:half], rows[half:]], [1e-2, 1e-2], 1, "learner")).result()
    first, second = seen[: len(seen) // 2], seen[len(seen) // 2 :]
    assert len(first) > 1
    assert all((part == 0).all() for part in first)
    assert any((part != 0).any() for part in second)
