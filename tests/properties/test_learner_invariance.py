"""The gradient of a batch does not depend on micro-batches, row order, packing, padding or masked rows.

Tolerances are 1e-6 although the models are float64: transformers' norms compute in float32.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dapo.algorithms.losses import cispo_loss, clipped_loss
from dapo.config import schema
from dapo.contracts.types import TrainRow
from dapo.learner.local import LocalLearner
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model

LOSSES = [
    functools.partial(clipped_loss, low=0.2, high=0.28, dual=3.0),
    functools.partial(clipped_loss, low=3e-4, high=4e-4, ratio="sequence"),
    functools.partial(cispo_loss, cap=1.1),
]


@pytest.fixture(scope="module", params=[{}, {"kv_heads": 1, "tied": False}], ids=["llama", "llama-gqa-untied"])
def learners(tmp_path_factory, request):
    """Packed and padded learners with equal float64 weights that never move: only gradients are looked at."""
    folder = make_tiny_model(tmp_path_factory.mktemp("model"), hidden=16, heads=2, ffn=24, **request.param)
    return [
        LocalLearner(load_model(folder, dtype=torch.float64, attention_mode=mode), LOSSES[0], schema.Learner(), 0.9)
        for mode in ("packed", "padded")
    ]


@st.composite
def batches(draw: st.DrawFn) -> list[TrainRow]:
    random = np.random.default_rng(draw(st.integers(0, 2**32)))
    rows = []
    for group in range(draw(st.integers(1, 3))):
        prompt = random.integers(3, 78, draw(st.integers(1, 6)))
        for length in draw(st.lists(st.integers(1, 12), min_size=1, max_size=5)):
            rows.append(
                TrainRow(
                    group,
                    prompt,
                    random.integers(3, 78, length),
                    weights=random.uniform(0, 0.3, length).astype(np.float32),
                    advantages=np.full(length, random.normal(), dtype=np.float32),
                    old_logprobs=random.normal(-4.4, 0.4, length).astype(np.float32),
                    correction=random.uniform(0, 2, length).astype(np.float32),
                    loss_mask=random.random(length) < 0.8,
                )
            )
    return rows


def gradient_of(learner, rows, loss, tokens):
    """All gradients as one vector, and the metrics, of an update whose step is left out."""
    learner.loss, learner.settings = loss, schema.Learner(microbatch_tokens=tokens)
    found = []

    def step(rate):
        found.extend(p.grad.flatten() for p in learner.loaded.model.parameters() if p.grad is not None)
        learner.loaded.model.zero_grad(set_to_none=True)
        return 0.0, True

    learner.optimizer.step = step
    metrics = learner.update(rows, 1.0)
    learner.publish()
    return (torch.cat(found) if found else torch.zeros(0)), metrics


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=batches(),
    loss=st.sampled_from(LOSSES),
    tokens=st.integers(1, 60),
    order=st.randoms(use_true_random=False),
    padded=st.booleans(),
)
def test_gradient_and_metrics_do_not_depend_on_the_layout(learners, rows, loss, tokens, order, padded):
    whole, metrics = gradient_of(learners[0], rows, loss, 10**6)
    shuffled = order.sample(rows, len(rows))
    other, other_metrics = gradient_of(learners[padded], shuffled, loss, tokens)
    torch.testing.assert_close(other, whole, rtol=1e-6, atol=1e-6)
    for key in metrics.keys() - {"train/micro_batches", "train/packed_tokens"}:
        np.testing.assert_allclose(other_metrics[key], metrics[key], rtol=1e-5, atol=1e-6, err_msg=key)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=batches(), loss=st.sampled_from(LOSSES), tokens=st.integers(1, 60), idle=st.integers(1, 3))
def test_rows_without_advantage_run_forward_only_and_change_nothing(learners, rows, loss, tokens, idle):
    for row in rows[::idle]:
        row.advantages[:] = 0
    expected, expected_metrics = gradient_of(learners[0], rows, loss, tokens)
    learners[0].zero_advantage_is_free = True
    try:
        found, metrics = gradient_of(learners[0], rows, loss, tokens)
    finally:
        learners[0].zero_advantage_is_free = False
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    for key in metrics.keys() - {"train/micro_batches", "train/packed_tokens"}:
        np.testing.assert_allclose(metrics[key], expected_metrics[key], rtol=1e-5, atol=1e-6, err_msg=key)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=batches(), loss=st.sampled_from(LOSSES))
def test_masking_a_row_is_deleting_it(learners, rows, loss):
    half = rows[::2]
    for row in rows[1::2]:
        row.loss_mask = np.zeros(len(row.token_ids), dtype=np.bool_)
    masked, _ = gradient_of(learners[0], rows, loss, 10**6)
    deleted, _ = gradient_of(learners[0], half, loss, 10**6)
    torch.testing.assert_close(masked, deleted, rtol=0, atol=1e-12)


@settings(max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=batches(), loss=st.sampled_from(LOSSES))
def test_masking_trailing_tokens_is_deleting_them(learners, rows, loss):
    for row in rows:
        row.loss_mask = np.arange(len(row.token_ids)) < max(1, len(row.token_ids) // 2)
    masked, _ = gradient_of(learners[0], rows, loss, 10**6)
    for row in rows:
        keep = max(1, len(row.token_ids) // 2)
        for name in ("token_ids", "weights", "advantages", "old_logprobs", "correction", "loss_mask"):
            setattr(row, name, getattr(row, name)[:keep])
    deleted, _ = gradient_of(learners[0], rows, loss, 10**6)
    torch.testing.assert_close(masked, deleted, rtol=1e-9, atol=1e-9)
