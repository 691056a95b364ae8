"""Numbers worked out by hand: a change of any of them is a change of the algorithm."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.losses import LossInputs, clipped_loss
from dapo.algorithms.reduction import loss_weights
from dapo.algorithms.shaping import scale_rewards, soft_overlong_punishment
from dapo.algorithms.variants.cispo import cispo_loss

# ---- reductions: L = 0.1 x (1 .. 32) as 8 rows of 4 tokens, of which the first LENGTHS[row] count ------------------

LOSSES = 0.1 * np.arange(1, 33).reshape(8, 4)
LENGTHS = [2, 3, 1, 4, 4, 1, 2, 2]
GROUPS = [0, 0, 0, 0, 1, 1, 1, 1]
TWOS = [[0, 1], [2, 3], [4, 5], [6, 7]]
THREE_FIVE = [[0, 1, 2], [3, 4, 5, 6, 7]]
WEIGHTED, UNWEIGHTED = {"micro_batches": TWOS}, {"micro_batches": TWOS, "micro_batch_weighted": False}
ROW_0, ROWS_0_1 = {"masked_rows": [0]}, {"masked_rows": [0, 1]}


def reduce(reduction, masked_rows=(), **settings):
    masks = [np.full(length, row not in masked_rows) for row, length in enumerate(LENGTHS)]
    weights = loss_weights(masks, GROUPS, reduction, **settings)
    return sum(float(LOSSES[row, : len(mask)] @ mask * weights[row]) for row, mask in enumerate(masks))


@pytest.mark.parametrize(
    ("reduction", "settings", "value"),
    [
        ("token_mean", {}, 1.542105),  # 29.3 / 19
        ("prompt_mean", {}, 1.578889),  # (8.8 / 10 + 20.5 / 9) / 2
        ("sequence_mean", {}, 1.568750),
        ("sequence_sum", {}, 3.662500),  # 29.3 / 8
        ("constant", {"constant_length": 4}, 0.915625),  # 29.3 / (8 x 4)
        ("micro_batch_mean", {"micro_batches": TWOS}, 1.602500),
        ("micro_batch_mean", {"micro_batches": TWOS, "micro_batch_weighted": False}, 1.602500),
        ("micro_batch_mean", {"micro_batches": THREE_FIVE}, 1.451923),
        ("micro_batch_mean", {"micro_batches": THREE_FIVE, "micro_batch_weighted": False}, 1.261538),
        # row 0 carries no loss: its 0.3 and its 2 tokens are gone, its place in the means too (except in constant)
        ("token_mean", ROW_0, 29.0 / 17),
        ("sequence_mean", ROW_0, 1.771429),
        ("sequence_sum", ROW_0, 4.142857),  # 29 / 7
        ("constant", {"masked_rows": [0], "constant_length": 4}, 0.906250),  # 29 / (8 x 4)
        ("prompt_mean", ROW_0, (8.5 / 8 + 20.5 / 9) / 2),
        # token means of the twos: 1.8 / 3 (one row left), 6.7 / 5, 9.5 / 5, 11 / 4
        ("micro_batch_mean", ROW_0 | WEIGHTED, (0.6 + 2 * 1.34 + 2 * 1.9 + 2 * 2.75) / 7),
        ("micro_batch_mean", ROW_0 | UNWEIGHTED, (0.6 + 1.34 + 1.9 + 2.75) / 4),
        # a micro-batch without loss, and a prompt without
        ("micro_batch_mean", ROWS_0_1 | WEIGHTED, (1.34 + 1.9 + 2.75) / 3),
        ("micro_batch_mean", ROWS_0_1 | UNWEIGHTED, (1.34 + 1.9 + 2.75) / 3),
        ("prompt_mean", {"masked_rows": [0, 1, 2, 3]}, 2.277778),  # 20.5 / 9
        ("token_mean", {"masked_rows": [0, 1, 2, 3]}, 2.277778),
    ],
)
def test_reduction(reduction, settings, value):
    assert reduce(reduction, **settings) == pytest.approx(value, abs=1e-6)


# ---- the clipped surrogate: eps 0.2 / 0.28, dual clip 10 -----------------------------------------------------------

RATIOS = [0.5, 0.79, 0.8, 0.81, 1, 1.27, 1.28, 1.29, 2, 9, 11, 20]


def table(ratios, advantage, loss=clipped_loss, **settings):
    """L, dL/dlogp and flags at given ratios; every logp is 0, and old is chosen to give the ratio."""
    n = len(ratios)
    logprobs = torch.zeros(n, dtype=torch.float64, requires_grad=True)
    old = -torch.tensor(ratios, dtype=torch.float64).log()
    advantages = torch.full((n,), float(advantage), dtype=torch.float64)
    every = torch.ones(n, dtype=torch.bool)
    inputs = LossInputs(logprobs, old, advantages, every, torch.zeros(n, dtype=torch.int64), 1)
    values, flags = loss(inputs, **settings)
    (gradient,) = torch.autograd.grad(values.sum(), logprobs)
    return (
        values.tolist(),
        gradient.tolist(),
        {name: where.nonzero().flatten().tolist() for name, where in flags.items()},
    )


def off_the_bounds(values):
    """Ties exactly at a bound (0.8 and 1.28) are nobody's test."""
    return [value for ratio, value in zip(RATIOS, values, strict=True) if ratio not in (0.8, 1.28)]


def test_clip_with_positive_advantage():
    loss, gradient, flags = table(RATIOS, +1, low=0.2, high=0.28, dual=10.0)
    assert loss == pytest.approx([-0.5, -0.79, -0.8, -0.81, -1, -1.27, -1.28, -1.28, -1.28, -1.28, -1.28, -1.28])
    assert off_the_bounds(gradient) == pytest.approx([-0.5, -0.79, -0.81, -1, -1.27, 0, 0, 0, 0, 0])
    assert [i for i in flags["clip_high"] if RATIOS[i] != 1.28] == [7, 8, 9, 10, 11]
    assert flags["clip_low"] == flags["clip_dual"] == []


def test_clip_with_negative_advantage():
    loss, gradient, flags = table(RATIOS, -1, low=0.2, high=0.28, dual=10.0)
    assert loss == pytest.approx([0.8, 0.8, 0.8, 0.81, 1, 1.27, 1.28, 1.29, 2, 9, 10, 10])
    assert off_the_bounds(gradient) == pytest.approx([0, 0, 0.81, 1, 1.27, 1.29, 2, 9, 0, 0])
    assert [i for i in flags["clip_low"] if RATIOS[i] != 0.8] == [0, 1]
    assert flags["clip_dual"] == [10, 11]
    assert flags["clip_high"] == []


def test_clip_without_dual_lets_a_negative_advantage_grow():
    loss, gradient, flags = table(RATIOS, -2, low=0.2, high=0.28)
    assert loss == pytest.approx([1.6, 1.6, 1.6, 1.62, 2, 2.54, 2.56, 2.58, 4, 18, 22, 40])
    assert off_the_bounds(gradient)[-2:] == pytest.approx([22, 40])
    assert flags["clip_dual"] == []


def test_clip_with_zero_advantage_does_nothing():
    loss, gradient, flags = table(RATIOS, 0, low=0.2, high=0.28, dual=10.0)
    assert loss == [0] * 12
    assert gradient == [0] * 12
    assert flags == {"clip_low": [], "clip_high": [], "clip_dual": []}


def test_log_ratio_is_clamped_at_20():
    loss, gradient, _ = table([np.exp(19.0), np.exp(21.0), np.exp(700.0)], -1, low=0.2, high=0.28)
    assert loss == pytest.approx([np.exp(19.0), np.exp(20.0), np.exp(20.0)])
    assert gradient == pytest.approx([np.exp(19.0), 0, 0])
    loss, _, _ = table([np.exp(-21.0), np.exp(-19.0)], +1, low=0.2, high=0.28)
    assert loss == pytest.approx([-np.exp(-20.0), -np.exp(-19.0)])


def test_cispo_bounds_the_weight_and_keeps_every_gradient():
    loss, gradient, flags = table([0.5, 1, 4.9, 5.1, 20], +1, loss=cispo_loss)
    assert loss == [0] * 5  # logp is 0
    assert gradient == pytest.approx([-0.5, -1, -4.9, -5, -5])
    assert flags == {"clip_low": [], "clip_high": [3, 4], "clip_dual": []}
    _, gradient, flags = table([0.5, 0.69, 0.71, 2.1], -2, loss=cispo_loss, cap=2.0, floor=0.7)
    assert gradient == pytest.approx([1.4, 1.4, 1.42, 4])
    assert flags == {"clip_low": [0, 1], "clip_high": [3], "clip_dual": []}


def test_cispo_value():
    one = torch.ones(1)
    inputs = LossInputs(-2 * one, -3 * one, 0.5 * one, one.bool(), torch.zeros(1, dtype=torch.int64), 1)
    assert cispo_loss(inputs)[0].item() == pytest.approx(np.e * 0.5 * 2, rel=1e-6)  # -min(e^1, 5) x 0.5 x -2
    assert cispo_loss(inputs, cap=2.0)[0].item() == pytest.approx(2 * 0.5 * 2, rel=1e-6)


def test_sequence_ratio():
    """Two responses with log-ratios (0.2, 0.4) and (-0.3): s = exp(0.3) and exp(-0.3), for each of their tokens."""
    logprobs = torch.tensor([-1.0, -2.0, -1.5], requires_grad=True)
    inputs = LossInputs(
        logprobs, torch.tensor([-1.2, -2.4, -1.2]), torch.tensor([-1.0, -1.0, 2.0]),
        torch.ones(3, dtype=torch.bool), torch.tensor([0, 0, 1]), 2,
    )  # fmt: skip
    up, down = np.exp(0.3), np.exp(-0.3)
    loss, _ = clipped_loss(inputs, low=0.5, high=0.5, ratio="sequence")
    assert loss.tolist() == pytest.approx([up, up, -2 * down], rel=1e-6)
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    assert gradient.tolist() == pytest.approx([up, up, -2 * down], rel=1e-6)
    loss, flags = clipped_loss(inputs, low=3e-4, high=4e-4, dual=1.3, ratio="sequence")
    assert flags["clip_dual"].tolist() == [True, True, False]
    assert loss.tolist() == pytest.approx([1.3, 1.3, -2 * down], rel=1e-6)


# ---- advantages, length penalty, scaling ---------------------------------------------------------------------------


@pytest.mark.parametrize(("correct", "up", "down"), [(1, 3.75, -0.25), (8, 0.968245, -0.968245), (15, 0.25, -3.75)])
def test_advantage_of_k_correct_of_16(correct, up, down):
    rewards = [1.0] * correct + [-1.0] * (16 - correct)
    (advantages,) = group_advantages([rewards], [[True] * 16])
    np.testing.assert_allclose(advantages, [up] * correct + [down] * (16 - correct), atol=1e-5)


def test_advantage_tables():
    rewards, voters = [[1, -1, 1, -1.5], [1, 1, -1, -1]], [[True] * 4] * 2
    first, second = group_advantages(rewards, voters)
    np.testing.assert_allclose(first, [0.855527, -0.665410, 0.855527, -1.045644], atol=1e-6)
    np.testing.assert_allclose(second, [0.866025, 0.866025, -0.866025, -0.866025], atol=1e-6)
    first, second = group_advantages(rewards, voters, scale="none")
    np.testing.assert_allclose(first, [1.125, -0.875, 1.125, -1.375], atol=1e-12)
    np.testing.assert_allclose(second, [1, 1, -1, -1], atol=1e-12)
    # the mean of the others: (-1 + 1 - 1.5) / 3 and so on
    first, _ = group_advantages(rewards, voters, scale="none", baseline="leave_one_out")
    np.testing.assert_allclose(first, [1.5, -3.5 / 3, 1.5, -5.5 / 3], atol=1e-12)
    # squares of the centred rewards sum to 5.1875 and 4; 8 voters, ddof 1
    first, second = group_advantages(rewards, voters, scale="batch_std", eps=0.0)
    std = np.sqrt(9.1875 / 7)
    np.testing.assert_allclose(first, np.array([1.125, -0.875, 1.125, -1.375]) / std, rtol=1e-12)
    np.testing.assert_allclose(second, np.array([1, 1, -1, -1]) / std, rtol=1e-12)
    first, _ = group_advantages(rewards, voters, ddof=0, eps=0.0)
    np.testing.assert_allclose(first, np.array([1.125, -0.875, 1.125, -1.375]) / np.sqrt(5.1875 / 4), rtol=1e-12)


def test_almost_equal_rewards():
    (advantages,) = group_advantages([[1.0, 1.00001]], [[True, True]])
    # mean distance 5e-6 over std 5e-6 x sqrt 2 plus eps 1e-6
    np.testing.assert_allclose(advantages, [-0.619496, 0.619496], atol=1e-5)
    (advantages,) = group_advantages([[1.0, 1.0000005]], [[True, True]])
    assert advantages.tolist() == [0.0, 0.0]


def test_soft_overlong_punishment():
    lengths = [0, 16384, 16385, 18432, 20479, 20480, 20481, 22528]
    penalties = soft_overlong_punishment(lengths, max_length=20480, cache_length=4096)
    assert penalties.tolist() == [0, 0, -0.000244140625, -0.5, -4095 / 4096, -1, -1, -1]
    assert penalties.dtype == np.float64
    halved = soft_overlong_punishment([18432, 30000], max_length=20480, cache_length=4096, factor=0.5)
    assert halved.tolist() == [-0.25, -0.5]


def test_scale_rewards():
    scaled = scale_rewards([-3, 0, 0.25, 1, 7, np.nan], source_min=0, source_max=1, target_min=-1, target_max=1)
    np.testing.assert_array_equal(scaled, [-1, -1, -0.5, 1, 1, np.nan])
    assert scale_rewards([2, 6], source_min=2, source_max=6, target_min=10, target_max=0).tolist() == [10, 0]
