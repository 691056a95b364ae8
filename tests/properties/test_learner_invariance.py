"""The gradient of a batch does not depend on micro-batches, row order, packing, padding or masked rows.

Tolerances are 1e-6 although the models are float64: transformers' norms compute in float32.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from learner_rows import SCALED, make_algorithm, make_groups, masked, rows_of, with_extra

from dapo.algorithms.correction import importance_correction
from dapo.algorithms.objective import clip_objective
from dapo.algorithms.variants.cispo import cispo_objective
from dapo.config import schema
from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import WorkerHere
from dapo.learner.step import PolicyStep
from dapo.learner.worker import Worker
from dapo.metrics.stats import values
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import LearnStep, Row
from dapo.types.extra import cut_extra

OBJECTIVES = [
    clip_objective(low=0.2, high=0.28, dual=3.0),
    clip_objective(low=3e-4, high=4e-4, ratio="sequence"),
    cispo_objective(cap=1.1),
    SCALED,
]
REDUCTIONS = ["token_mean", "prompt_mean", "sequence_mean", "sequence_sum"]


@pytest.fixture(
    scope="module",
    params=[pytest.param({}, marks=pytest.mark.whole), {"kv_heads": 1, "tied": False}],
    ids=["llama", "llama-gqa-untied"],
)
def workers(tmp_path_factory, request):
    """Packed and padded workers with equal float64 weights that never move: only gradients are looked at."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), hidden=16, heads=2, ffn=24, **request.param)
    return [
        Worker(
            PolicyStep(
                load_model(folder, dtype=torch.float64, attention_mode=mode),
                OBJECTIVES[0],
                schema.LearnerSection(),
                0.9,
                correction,
            )
        )
        for mode in ("packed", "padded")
    ]


def correction(learner, sampler, mask):
    return importance_correction(learner, sampler, kind="truncate", cap=1.2, floor=0.5, loss_mask=mask)


@st.composite
def batches(draw: st.DrawFn) -> list[Row]:
    """Groups of production's making, some of their tokens masked (as those of other turns will be)."""
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    groups = make_groups(
        int(random.integers(2**32)),
        draw(st.integers(1, 3)),
        draw(st.integers(2, 5)),
        length=lambda r: int(r.integers(1, 13)),
        versions=(0, 1),
    )
    for group in groups:
        group.completions_G = [replace(c, generated=random.random(len(c)) < 0.8) for c in group.completions_G]
    return with_extra(rows_of(groups, make_algorithm(draw(st.sampled_from(REDUCTIONS)))))


def gradient_of(worker, rows, objective, tokens, against="learner"):
    """All gradients as one vector, and the metrics, of a training step whose update is left out."""
    worker.step.objective, worker.settings = objective, schema.LearnerSection(microbatch_tokens=tokens)
    learner = LearnerDriver(WorkerHere(worker))
    found = []

    def step(rate):
        found.extend(p.grad.flatten() for p in worker.loaded.model.parameters() if p.grad is not None)
        worker.loaded.model.zero_grad(set_to_none=True)
        return 0.0, True

    worker.step.optimizer.step = step
    metrics = values(learner.learn(LearnStep([rows], [1.0], 1, against)).result().stats)
    learner.publish(1)
    return (torch.cat(found) if found else torch.zeros(0)), metrics


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=batches(),
    objective=st.sampled_from(OBJECTIVES),
    tokens=st.integers(1, 60),
    order=st.randoms(use_true_random=False),
    padded=st.booleans(),
    against=st.sampled_from(["sampler", "learner"]),
)
def test_gradient_and_metrics_do_not_depend_on_the_layout(workers, rows, objective, tokens, order, padded, against):
    whole, metrics = gradient_of(workers[0], rows, objective, 10**6, against)
    shuffled = order.sample(rows, len(rows))
    other, other_metrics = gradient_of(workers[padded], shuffled, objective, tokens, against)
    torch.testing.assert_close(other, whole, rtol=1e-6, atol=1e-6)
    for key in metrics.keys() - {"train/micro_batches", "train/packed_tokens"}:
        np.testing.assert_allclose(other_metrics[key], metrics[key], rtol=1e-5, atol=1e-6, err_msg=key)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=batches(), objective=st.sampled_from(OBJECTIVES), tokens=st.integers(1, 60), idle=st.integers(1, 3))
def test_rows_without_advantage_run_forward_only_and_change_nothing(workers, rows, objective, tokens, idle):
    rows = [replace(row, advantage=0.0) if n % idle == 0 else row for n, row in enumerate(rows)]
    careful = replace(objective, zero_advantage_is_free=False)
    expected, expected_metrics = gradient_of(workers[0], rows, careful, tokens, "sampler")
    found, metrics = gradient_of(workers[0], rows, objective, tokens, "sampler")
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for key in metrics.keys() - {"train/micro_batches", "train/packed_tokens"}:
        np.testing.assert_allclose(metrics[key], expected_metrics[key], rtol=1e-5, atol=1e-6, err_msg=key)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=batches(), objective=st.sampled_from(OBJECTIVES))
def test_masking_a_row_is_deleting_it(workers, rows, objective):
    some = [masked(row) if n % 2 else row for n, row in enumerate(rows)]
    found, _ = gradient_of(workers[0], some, objective, 10**6)
    deleted, _ = gradient_of(workers[0], rows[::2], objective, 10**6)
    torch.testing.assert_close(found, deleted, rtol=0, atol=1e-12)


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=batches(), objective=st.sampled_from(OBJECTIVES))
def test_masking_trailing_tokens_is_deleting_them(workers, rows, objective):
    kept = [max(1, len(row.token_ids) // 2) for row in rows]
    some = [
        replace(row, loss_mask=row.loss_mask & (np.arange(len(row.token_ids)) < n))
        for row, n in zip(rows, kept, strict=True)
    ]
    short = [
        replace(
            row,
            extra=cut_extra(row.extra, len(row.token_ids) - n),
            **{name: getattr(row, name)[:n] for name in ("token_ids", "sampler_logprobs", "versions", "loss_mask")},
        )
        for row, n in zip(rows, kept, strict=True)
    ]
    found, _ = gradient_of(workers[0], some, objective, 10**6)
    deleted, _ = gradient_of(workers[0], short, objective, 10**6)
    torch.testing.assert_close(found, deleted, rtol=1e-9, atol=1e-9)
