"""SAPO, Clip-Cov, KL-Cov and GDPO by hand; beside the peers' answers in tests/oracles."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.losses import LossInputs
from dapo.algorithms.variants.covariance import clip_cov_loss, covariance_marks, kl_cov_loss
from dapo.algorithms.variants.gdpo import gdpo_advantages
from dapo.algorithms.variants.sapo import sapo_loss

DOUBLE = torch.float64


def inputs(ratios, advantages, marked=None, mask=None):
    count = len(ratios)
    logprobs = torch.tensor(ratios, dtype=DOUBLE).log().requires_grad_()
    mask = torch.ones(count, dtype=torch.bool) if mask is None else torch.tensor(mask)
    return logprobs, LossInputs(
        logprobs, torch.zeros(count, dtype=DOUBLE), torch.tensor(advantages, dtype=DOUBLE), mask,
        torch.zeros(count, dtype=torch.int64), 1, extra={} if marked is None else {"marked": torch.tensor(marked)},
    )  # fmt: skip


def test_sapo_by_hand():
    """At r = 1 the value is -2 A / tau and the gradient that of -r A; 4 sigmoid(tau (r - 1)) / tau elsewhere."""
    logprobs, given = inputs([1.0, 1.0, 3.0, 0.5], [1.0, -1.0, 2.0, 0.0])
    loss, flags = sapo_loss(given, positive=1.0, negative=2.0)
    gate = 4 / (1 + math.exp(-2.0))
    assert loss.tolist() == pytest.approx([-2.0, 1.0, -2 * gate, 0.0])
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    slope = 4 * 3.0 * math.exp(-2.0) / (1 + math.exp(-2.0)) ** 2  # r d gate / d r
    assert gradient.tolist() == pytest.approx([-1.0, 1.0, -2 * slope, 0.0])
    assert flags == {}


def test_marked_tokens_are_silent_in_clip_cov_and_held_in_kl_cov():
    logprobs, given = inputs([1.1, 1.1, 2.0, 0.9], [1.0, 1.0, 1.0, -1.0], [False, True, False, False])
    loss, flags = clip_cov_loss(given, low=0.2, high=0.2)
    assert loss.tolist() == pytest.approx([-1.1, 0.0, -1.2, 0.9])
    assert torch.autograd.grad(loss.sum(), logprobs)[0].tolist() == pytest.approx([-1.1, 0.0, 0.0, 0.9])
    assert flags["covariance"].tolist() == [False, True, False, False]
    assert flags["clip_high"].tolist() == [False, False, True, False]
    logprobs, given = inputs([1.1, 1.1, 2.0, 0.9], [1.0, 1.0, 0.0, -1.0], [False, True, True, False])
    loss, flags = kl_cov_loss(given, coefficient=0.5)
    assert loss.tolist() == pytest.approx([-1.1, -1.1 + 0.5 * math.log(1.1), 0.5 * math.log(2.0), 0.9])
    gradient = torch.autograd.grad(loss.sum(), logprobs)[0]
    assert gradient.tolist() == pytest.approx([-1.1, -1.1 + 0.5, 0.5, 0.9])  # advantage 0, and a gradient


@pytest.mark.parametrize("noise", [0.0, 1e-7, -1e-7, 1e-5, -3e-4])
def test_kl_cov_has_no_slope_where_the_ratio_is_one_but_for_rounding(noise):
    """By hand: d/dlogp of -r A is -r A; the penalty's slope, 0.5, comes in where the policy has moved."""
    logprobs, given = inputs([math.exp(noise), math.exp(4e-4), math.exp(-4e-4)], [1.0, 1.0, 0.0], [True] * 3)
    loss, _ = kl_cov_loss(given, coefficient=0.5)
    moved = math.exp(4e-4)
    assert loss.tolist() == pytest.approx([-math.exp(noise), -moved + 0.5 * 4e-4, 0.5 * 4e-4])
    gradient = torch.autograd.grad(loss.sum(), logprobs)[0]
    assert gradient.tolist() == pytest.approx([-math.exp(noise), -moved + 0.5, -0.5])


def test_marks_where_no_loss_is_carried_mean_nothing():
    _, given = inputs([1.1, math.nan], [1.0, 1.0], [False, True], [True, False])
    assert kl_cov_loss(given)[0].tolist() == pytest.approx([-1.1, 0.0])
    assert kl_cov_loss(given)[1]["covariance"].tolist() == [False, False]


# log p: mean -2; A: mean 0. Covariances: row 0: (1, 0, -1) x 1, row 1: (-1, 1) x -1.5 -> 1.5, -1.5
LOGPROBS = [np.array([-1.0, -2.0, -3.0]), np.array([-3.0, -1.0, 99.0])]
MASKS = [np.ones(3, bool), np.array([True, True, False])]
ADVANTAGES = [1.0, -1.5]


def test_covariance_marks_by_hand():
    kl = covariance_marks(LOGPROBS, ADVANTAGES, MASKS, kind="kl_cov", share=0.2)
    assert [mark.tolist() for mark in kl] == [[False] * 3, [True, False, False]]
    kl = covariance_marks(LOGPROBS, ADVANTAGES, MASKS, kind="kl_cov", share=0.4)
    assert [mark.tolist() for mark in kl] == [[True, False, False], [True, False, False]]
    draws = [np.array([0.9, 0.1, 0.1]), np.array([0.5, 0.1, 0.0])]

    def clip(**bounds):
        found = covariance_marks(LOGPROBS, ADVANTAGES, MASKS, kind="clip_cov", draws_R=draws, **bounds)
        return [mark.tolist() for mark in found]

    assert clip(share=0.2, above=0.9, below=5.0) == [[False] * 3, [True, False, False]]  # the smaller draw of the two
    assert clip(share=1.0, above=0.9, below=1.4) == [[True, False, False], [False] * 3]
    assert clip(share=1.0, above=7.0, below=9.0) == [[False] * 3, [False] * 3]
    with pytest.raises(ValueError, match="give draws_R"):
        covariance_marks(LOGPROBS, ADVANTAGES, MASKS, kind="clip_cov", share=0.5)
    empty = covariance_marks(LOGPROBS, ADVANTAGES, [np.zeros(3, bool)] * 2, kind="kl_cov", share=0.5)
    assert not np.concatenate(empty).any()


def test_marks_do_not_depend_on_the_order_of_the_rows():
    random = np.random.default_rng(0)
    lengths = random.integers(1, 30, 20)
    logprobs, draws = ([random.normal(size=n) for n in lengths] for _ in range(2))
    advantages, masks = random.normal(size=20), [random.random(n) < 0.8 for n in lengths]
    order = random.permutation(20)
    for kind in ("kl_cov", "clip_cov"):

        def marks(chosen, kind=kind):
            return covariance_marks(
                [logprobs[i] for i in chosen], advantages[chosen], [masks[i] for i in chosen], kind=kind, share=0.1,
                above=0.1, below=2.0, draws_R=[draws[i] for i in chosen],
            )  # fmt: skip

        straight, shuffled = marks(np.arange(20)), marks(order)
        assert 0 < sum(mark.sum() for mark in straight) < 40
        for place, i in enumerate(order):
            np.testing.assert_array_equal(shuffled[place], straight[i])


def test_gdpo_by_hand():
    """Two rewards whose sums are equal: GRPO sees no difference, GDPO does."""
    parts = [{"right": [1.0, 0.0, 1.0, 0.0], "brief": [0.0, 1.0, 0.0, 0.0]}]
    voters = [[True] * 4]
    sums = np.array([1.0, 1.0, 1.0, 0.0])
    assert len(set(np.round(group_advantages([sums], voters)[0], 6))) == 2
    (found,) = gdpo_advantages([], voters, parts, weights={"right": 1.0, "brief": 1.0}, eps=0.0)
    right, brief = np.array([1, -1, 1, -1]) * math.sqrt(3) / 2, np.array([-0.5, 1.5, -0.5, -0.5])
    expected = (right + brief) / (right + brief).std(ddof=1)
    np.testing.assert_allclose(found, expected)
    assert len(set(np.round(found, 6))) == 3


def test_gdpo_leaves_out_who_does_not_vote_and_what_does_not_differ():
    parts = [
        {"right": [1.0, 0.0, math.nan], "brief": [0.5, 0.5, math.nan]},
        {"right": [0.0, 0.0, 0.0]},  # of a source without the other reward
    ]
    voters = [[True, True, False], [True] * 3]
    found = gdpo_advantages([], voters, parts, weights={"right": 1.0, "brief": 9.0}, eps=0.0)
    assert found[0][2] == 0.0
    assert found[0][0] == -found[0][1] > 0
    assert found[1].tolist() == [0.0, 0.0, 0.0]
    assert gdpo_advantages([], voters[1:], parts[1:], weights={"right": 1.0})[0].tolist() == [0.0, 0.0, 0.0]
