"""Losses of docs/losses.md that are hooks of a few lines: each against numbers worked out by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from dapo.algorithms.losses import LossInputs, at_loss_tokens, clipped_loss, token_log_ratios
from dapo.algorithms.reduction import loss_weights

DOUBLE = torch.float64
PAGE = Path(__file__).parents[3] / "docs" / "losses.md"


def dppo(inputs, low=0.2, high=0.2):
    p, q = inputs.logprobs.exp(), inputs.old_logprobs.exp()
    inside = torch.where(inputs.advantages > 0, p - q <= high, q - p <= low)
    ratios = token_log_ratios(inputs).exp().clamp(max=20.0)
    return at_loss_tokens(inputs, -inputs.advantages * (ratios * inside).detach() * inputs.logprobs), {}


def dppo_kl(inputs, low=0.1, high=0.1):
    p, q = inputs.logprobs.exp(), inputs.old_logprobs.exp()
    kl = q * (q / p).log() + (1 - q) * ((1 - q) / (1 - p)).log()
    inside = torch.where(inputs.advantages > 0, (kl <= high) | (p <= q), (kl <= low) | (p >= q))
    ratios = token_log_ratios(inputs).exp().clamp(max=20.0)
    return at_loss_tokens(inputs, -inputs.advantages * (ratios * inside).detach() * inputs.logprobs), {}


def vespo(inputs):
    log_ratios = token_log_ratios(inputs)
    w = log_ratios.new_zeros(inputs.num_rows).index_add(0, inputs.rows, log_ratios).exp()[inputs.rows]
    k, scale = (torch.where(inputs.advantages >= 0, a, b) for a, b in ((2.0, 3.0), (3.0, 2.0)))
    weights = (w**k * (scale * (1 - w)).exp()).detach()
    return at_loss_tokens(inputs, -inputs.advantages * weights * inputs.logprobs), {}


def gmpo():
    """As the page has it."""
    (source,) = re.findall(r"```python\n(# gmpo\.py\n.*?)```", PAGE.read_text(), re.DOTALL)
    space = {}
    exec(source, space)
    return space["loss"]


def inputs(new, old, advantages, rows):
    logprobs = torch.tensor(new, dtype=DOUBLE).log().requires_grad_()
    old = torch.tensor(old, dtype=DOUBLE).log()
    mask, numbers = torch.ones(len(new), dtype=torch.bool), torch.tensor(rows)
    return logprobs, LossInputs(logprobs, old, torch.tensor(advantages, dtype=DOUBLE), mask, numbers, max(rows) + 1)


def reduced(loss, given, reduction):
    """Return the loss of an optimizer step, and its gradient by each log p."""
    logprobs, made = given
    losses, _ = loss(made)
    counts = np.bincount(made.rows.numpy())
    masks = [np.ones(count, np.bool_) for count in counts]
    weights = torch.tensor(loss_weights(masks, np.arange(len(counts)), reduction), dtype=DOUBLE)[made.rows]
    total = (weights * losses).sum()
    (gradient,) = torch.autograd.grad(total, logprobs)
    return float(total), gradient.tolist()


def test_luspo_is_gspo_with_sums():
    given = inputs([0.2, 0.4, 0.5], [0.1, 0.2, 0.5], [1.0, 1.0, -1.0], [0, 0, 1])
    found, gradient = reduced(
        lambda made: clipped_loss(made, low=9.0, high=9.0, ratio="sequence"), given, "sequence_sum"
    )
    # ratios 2 and 1: (2 tokens x -2 + 1 token x 1) / 2 responses
    assert found == pytest.approx(-1.5)
    assert gradient == pytest.approx([-1.0, -1.0, 0.5])


def test_dppo():
    given = inputs([0.5, 0.9, 0.1, 0.3], [0.4, 0.5, 0.4, 0.4], [1.0, 1.0, -1.0, -1.0], [0, 0, 1, 1])
    found, gradient = reduced(dppo, given, "token_mean")
    # differences 0.1, 0.4, -0.3, -0.1: the second and the third are outside
    assert found == pytest.approx((-1.25 * math.log(0.5) + 0.75 * math.log(0.3)) / 4)
    assert gradient == pytest.approx([-1.25 / 4, 0, 0, 0.75 / 4])


def test_dppo_by_kl():
    given = inputs([0.5, 0.9, 0.1, 0.3], [0.4, 0.5, 0.4, 0.4], [1.0, 1.0, -1.0, -1.0], [0, 0, 1, 1])
    _, gradient = reduced(dppo_kl, given, "token_mean")
    # 0.4 log 0.8 + 0.6 log 1.2 = 0.02; 0.5 log(5 / 9) + 0.5 log 5 = 0.51; 0.4 log 4 + 0.6 log(2 / 3) = 0.31; 0.02
    assert gradient == pytest.approx([-1.25 / 4, 0, 0, 0.75 / 4])


def test_gmpo_as_the_page_has_it():
    e = math.e
    given = inputs([0.1 * e**0.2, 0.1 * e, 0.1 * e], [0.1] * 3, [1.0, 1.0, -2.0], [0, 0, 1])
    found, gradient = reduced(gmpo(), given, "sequence_mean")
    # logs 0.2 and 1 cut to 0.4: mean 0.3; of the second response 1, which a bad response keeps
    assert found == pytest.approx((-(e**0.3) + 2 * e) / 2)
    assert gradient == pytest.approx([-(e**0.3) / 4, 0.0, e])


def test_vespo():
    given = inputs([0.2, 0.2, 0.2], [0.1, 0.2, 0.4], [1.0, 1.0, -1.0], [0, 0, 1])
    _, gradient = reduced(vespo, given, "token_mean")
    # w is 2 and 1/2: 2^2 exp(3 (1 - 2)), (1/2)^3 exp(2 (1 - 1/2))
    up, down = 4 * math.exp(-3), math.exp(1) / 8
    assert gradient == pytest.approx([-up / 3, -up / 3, down / 3])
