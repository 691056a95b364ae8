"""KL and entropy as terms of the loss: values and gradients by hand, by finite differences, and in expectation."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dapo.algorithms.kl import kl_estimate
from dapo.algorithms.losses import LossInputs
from dapo.algorithms.objective import Objective, clip_objective, with_terms
from dapo.algorithms.shaping import kl_in_reward

DOUBLE = torch.float64


def inputs(logprobs, reference=None, advantages=None, mask=None, entropy=None):
    count = len(logprobs)
    return LossInputs(
        logprobs=logprobs,
        old_logprobs=logprobs.detach().clone(),
        advantages=torch.zeros(count, dtype=DOUBLE) if advantages is None else advantages,
        loss_mask=torch.ones(count, dtype=torch.bool) if mask is None else mask,
        rows=torch.zeros(count, dtype=torch.int64),
        num_rows=1,
        entropy=entropy,
        reference_logprobs=reference,
    )


@pytest.mark.parametrize(
    ("estimator", "twice", "half", "slope_twice", "slope_half"),
    [  # of a reference that finds the token twice (half) as likely: d = log 2, -log 2
        ("k1", -math.log(2), math.log(2), 1.0, 1.0),
        ("k2", math.log(2) ** 2 / 2, math.log(2) ** 2 / 2, -math.log(2), math.log(2)),
        ("k3", 1 - math.log(2), math.log(2) - 0.5, -1.0, 0.5),
    ],
)
def test_estimators_by_hand(estimator, twice, half, slope_twice, slope_half):
    logprobs = torch.tensor([-1.0, -1.0, -1.0], dtype=DOUBLE, requires_grad=True)
    reference = torch.tensor([-1.0 + math.log(2), -1.0 - math.log(2), -1.0], dtype=DOUBLE)
    found = kl_estimate(logprobs, reference, estimator)
    assert found.tolist() == pytest.approx([twice, half, 0.0], abs=1e-12)
    (gradient,) = torch.autograd.grad(found.sum(), logprobs)
    assert gradient.tolist() == pytest.approx([slope_twice, slope_half, 1.0 if estimator == "k1" else 0.0], abs=1e-12)


@pytest.mark.parametrize(("estimator", "most"), [("k1", 20.0), ("k2", 200.0), ("k3", math.exp(20) - 21)])
def test_a_broken_token_is_bounded_and_has_no_gradient(estimator, most):
    logprobs = torch.tensor([-50.0], dtype=DOUBLE, requires_grad=True)
    found = kl_estimate(logprobs, torch.tensor([-1.0], dtype=DOUBLE), estimator)
    assert found.abs().tolist() == pytest.approx([most])
    assert torch.autograd.grad(found.sum(), logprobs)[0].tolist() == [0.0]


def test_an_unknown_estimator_is_refused():
    with pytest.raises(ValueError, match="unknown KL estimator 'k4'; expected one of k1, k2, k3"):
        getattr(kl_estimate, "__wrapped__", kl_estimate)(torch.zeros(1), torch.zeros(1), "k4")  # past beartype


def test_expected_gradients_on_the_policys_own_samples():
    """Exactly, over all tokens of a small vocabulary: k1 has none, k2 that of KL(p || q), k3 that of KL(q || p)."""
    torch.manual_seed(0)
    scores = torch.randn(7, dtype=DOUBLE, requires_grad=True)
    q = torch.randn(7, dtype=DOUBLE).log_softmax(0)
    log_p = scores.log_softmax(0)
    p = log_p.exp().detach()

    def expected(estimator):
        return torch.autograd.grad((p * kl_estimate(log_p, q, estimator)).sum(), scores, retain_graph=True)[0]

    forward = torch.autograd.grad((log_p.exp() * (log_p - q)).sum(), scores, retain_graph=True)[0]
    backward = torch.autograd.grad((q.exp() * (q - log_p)).sum(), scores, retain_graph=True)[0]
    assert float(forward.abs().max()) > 0.01
    assert expected("k1").abs().max() < 1e-12
    torch.testing.assert_close(expected("k2"), forward, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(expected("k3"), backward, rtol=1e-10, atol=1e-12)
    values = [(p * kl_estimate(log_p, q, name)).sum().item() for name in ("k1", "k3")]
    assert values == pytest.approx([(p * (log_p - q)).sum().item()] * 2)  # both are unbiased as values


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_terms_have_the_gradient_of_finite_differences(estimator):
    torch.manual_seed(1)
    logprobs = -torch.rand(5, dtype=DOUBLE)
    reference, scores = -torch.rand(5, dtype=DOUBLE), torch.randn(5, 4, dtype=DOUBLE)
    objective = with_terms(clip_objective(low=0.2, high=0.28), kl_coefficient=0.3, kl_estimator=estimator, entropy=True)

    def terms(logprobs, scores):
        log_p = scores.log_softmax(-1)
        found = objective.terms(inputs(logprobs, reference, entropy=-(log_p.exp() * log_p).sum(-1)), 0.05)
        assert found is not None
        return found.sum()

    assert torch.autograd.gradcheck(terms, (logprobs.requires_grad_(), scores.requires_grad_()))


def test_the_entropys_gradient_by_hand():
    """dH/dz_i = -p_i (log p_i + H): for p = (3/4, 1/4), H = 0.5623."""
    scores = torch.tensor([[math.log(3.0), 0.0]], dtype=DOUBLE, requires_grad=True)
    log_p = scores.log_softmax(-1)
    entropy = -(log_p.exp() * log_p).sum(-1)
    objective = with_terms(clip_objective(low=0.2, high=0.2), entropy=True)
    found = objective.terms(inputs(log_p[:, 0], entropy=entropy), 2.0)
    assert found is not None
    h = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert found.tolist() == pytest.approx([-2 * h])
    (gradient,) = torch.autograd.grad(found.sum(), scores)
    assert gradient[0].tolist() == pytest.approx([2 * 0.75 * (math.log(0.75) + h), 2 * 0.25 * (math.log(0.25) + h)])


def test_what_stands_where_no_loss_is_carried_reaches_neither_value_nor_gradient():
    logprobs = torch.tensor([-1.0, math.nan], dtype=DOUBLE, requires_grad=True)
    entropy = torch.tensor([0.5, 0.7], dtype=DOUBLE, requires_grad=True)
    objective = with_terms(clip_objective(low=0.2, high=0.2), kl_coefficient=1.0, entropy=True)
    mask = torch.tensor([True, False])
    found = objective.terms(
        inputs(logprobs, torch.tensor([-1.5, math.nan], dtype=DOUBLE), mask=mask, entropy=entropy), 1.0
    )
    assert found is not None
    assert found[1] == 0
    gradients = torch.autograd.grad(found.sum(), (logprobs, entropy))
    assert [float(g[1]) for g in gradients] == [0.0, 0.0]
    assert gradients[0][0].isfinite()


def test_what_is_to_be_known_of_an_objective_follows_its_terms():
    plain = clip_objective(low=0.2, high=0.28)
    assert with_terms(plain) is plain
    assert plain.terms(inputs(torch.zeros(1))) is None
    with_kl = with_terms(plain, kl_coefficient=0.1)
    assert (with_kl.needs, with_kl.zero_advantage_is_free) == ({"reference"}, False)
    assert with_kl.entropy == "value"
    both = with_terms(Objective(plain.loss, needs=frozenset({"reference"})), entropy=True)
    assert (both.needs, both.entropy) == ({"reference", "entropy"}, "gradient")


def test_kl_in_the_reward_by_hand():
    """-0.1 x ((-1 + 1.5) + (-2 + 1)) = 0.05; the third token does not count."""
    taken = kl_in_reward([-1.0, -2.0, -3.0], [-1.5, -1.0, math.nan], [True, True, False], coefficient=0.1)
    assert taken == pytest.approx(0.05)
    assert kl_in_reward([-1.0], [-90.0], np.ones(1, bool), coefficient=1.0) == -20.0  # bounded as any log-ratio
