"""Several epochs over a rollout: by hand on a policy of one number, and against torch written out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from learner_rows import learn_step, make_algorithm, make_groups, rows_of, with_sampler
from test_learner_worker import folder, make_learner, truncated_importance, weights_of  # noqa: F401  (a fixture)
from transformers import AutoModelForCausalLM

from dapo.algorithms.algorithm import Passes
from dapo.algorithms.correction import OffPolicyMask
from dapo.learner.optimizer import Optimizer
from dapo.learner.step import step_counts


class OneNumber:
    """A policy that gives every token the log-probability ``theta``."""

    def __init__(self, theta: float) -> None:
        self.theta = torch.nn.Parameter(torch.tensor(theta, dtype=torch.float64))

    def __call__(self, batch, temperature, entropy):
        tokens = sum(batch.lengths)
        return self.theta.expand(tokens), torch.zeros(tokens, dtype=torch.float64)


def one_number(folder, theta=-1.0):  # noqa: F811
    """A learner of that policy. With betas of 0 and no decay, AdamW moves it by the rate times the gradient's sign."""
    learner = make_learner(folder, dtype=torch.float64, betas=(0.0, 0.0), eps=1e-12, weight_decay=0.0)
    policy = OneNumber(theta)
    learner.step.policy = policy
    learner.step.optimizer = Optimizer({"theta": policy.theta}, learner.step.settings)
    return learner, policy.theta


def one_token(advantage=1.0, sampler=-1.0):
    (row, *_) = rows_of(make_groups(groups=1, length=lambda random: 1))
    (row,) = with_sampler([row], [np.array([sampler])])
    return replace(row, advantage=advantage, loss_weight=1.0, traced=True)


@pytest.mark.parametrize("against", ["learner", "sampler"])
@pytest.mark.parametrize(
    ("advantage", "rate", "loss", "clipped", "end"),
    [
        (1.0, 0.5, (-1 - 1.28) / 2, (0.0, 0.5), -0.5),  # exp(0.5) = 1.6487 is above 1.28: no gradient
        (1.0, 0.1, (-1 - math.exp(0.1)) / 2, (0.0, 0.0), -0.8),  # 1.1052 is inside, and the second epoch moves on
        (-1.0, 0.5, (1 + 0.8) / 2, (0.5, 0.0), -1.5),  # exp(-0.5) = 0.6065 is below 0.8
        (-1.0, 0.1, (1 + math.exp(-0.1)) / 2, (0.0, 0.0), -1.2),
    ],
)
def test_two_epochs_by_hand(folder, against, advantage, rate, loss, clipped, end):  # noqa: F811
    """One token with log p = -1: the second epoch's ratio runs against -1, whatever the first one did to the policy."""
    learner, theta = one_number(folder)
    row = one_token(advantage)
    minibatches = [[replace(row, traced=False)], [row]]
    metrics, (trace,) = learn_step(learner, minibatches, rate, ratio_against=against, epochs=2)
    assert metrics["train/loss"] == pytest.approx(loss, abs=1e-6)
    assert (metrics["train/clip_low"], metrics["train/clip_high"]) == clipped
    assert metrics["train/optimizer_steps"] == 2
    assert theta.item() == pytest.approx(end, abs=1e-6)
    moved = math.copysign(rate, advantage)
    np.testing.assert_allclose([trace.old_logprobs[0], trace.ratio[0]], [-1.0, math.exp(moved)], rtol=1e-6)


def test_three_epochs_run_against_the_first_and_not_against_the_one_before(folder):  # noqa: F811
    """log p: -1, -0.9, -0.8; ratios 1, 1.1052 and 1.2214. Against the epoch before it the third would be 1.1052."""
    learner, theta = one_number(folder)
    row = one_token()
    _, traces = learn_step(learner, [[row]] * 3, 0.1, ratio_against="learner", epochs=3)
    np.testing.assert_allclose([trace.ratio[0] for trace in traces], [1, math.exp(0.1), math.exp(0.2)], rtol=1e-6)
    assert theta.item() == pytest.approx(-0.7, abs=1e-6)


def test_the_gap_is_the_one_before_the_first_epoch(folder):  # noqa: F811
    """Sampler -1.5 and learner -1: 0.5 nats in both epochs, and the correction is min(exp(0.5), 2)."""
    learner, _ = one_number(folder)
    learner.step.correction = truncated_importance
    metrics, _ = learn_step(learner, [[one_token(sampler=-1.5)]] * 2, 0.1, ratio_against="learner", epochs=2)
    assert metrics["train/gap_mean"] == pytest.approx(0.5)
    assert metrics["train/loss"] == pytest.approx(-math.exp(0.5) * (1 + math.exp(0.1)) / 2, rel=1e-6)


@pytest.mark.parametrize("against", ["learner", "sampler"])
@pytest.mark.parametrize("size", [2, 4])
def test_epochs_are_torchs_adamw_on_the_loss_written_out(folder, against, size):  # noqa: F811
    """Minibatches of the second epoch are other ones than those of the first, and old values those of before both."""
    algorithm = replace(make_algorithm(), passes=Passes(size, 2, 3))
    groups = make_groups(5, 4, 2)
    rows_of(groups)  # gives advantages
    rows_M = [algorithm.rows(part) for epoch in range(2) for part in algorithm.passes.minibatches(groups, 1, epoch)]
    drawn = [[row.group for row in rows] for rows in rows_M]
    assert (drawn[: 4 // size] != drawn[4 // size :]) == (size == 2)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    adamw = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.1)
    learner = make_learner(folder, dtype=torch.float64, eps=1e-6, weight_decay=0.1)

    def logprobs_of(row):
        ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids])).long()
        logprobs = torch.log_softmax(model(input_ids=ids[None]).logits[0], -1)
        return torch.stack([logprobs[len(row.prompt_ids) + t - 1, token] for t, token in enumerate(row.token_ids)])

    old = {
        (row.group, row.sample): logprobs_of(row).detach()
        if against == "learner"
        else torch.from_numpy(row.sampler_logprobs)
        for rows in rows_M
        for row in rows
    }
    losses = []
    for rows in rows_M:
        tokens = sum(len(row.token_ids) for row in rows)
        total = torch.zeros((), dtype=torch.float64)
        for row in rows:
            r, a = torch.exp(logprobs_of(row) - old[row.group, row.sample]), row.advantage
            total = total - torch.minimum(r * a, r.clamp(0.8, 1.28) * a).sum() / tokens
        total.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adamw.step()
        adamw.zero_grad()
        losses.append(total.item())

    metrics, _ = learn_step(learner, rows_M, 1e-3, ratio_against=against, epochs=2)
    assert metrics["train/loss"] == pytest.approx(np.mean(losses), abs=1e-6)
    for (name, found), expected in zip(learner.loaded.model.named_parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=2e-6, msg=name)


@pytest.mark.parametrize("against", ["learner", "sampler"])
def test_the_off_policy_mask_follows_the_policy_of_each_epoch(folder, against):  # noqa: F811
    """Log sampler -1, A = -1: log p is -1, then -1.1, then -1.2. The mean of log sampler - log p is 0, 0.1 and 0.2.

    With a threshold of 0.15 the third epoch is masked: no loss, no gradient, and the bound acted on a third of the
    tokens. The clip acts from exp(-0.2231) = 0.8 on, which -1.2 has not reached.
    """
    learner, theta = one_number(folder)
    learner.step.correction = OffPolicyMask(0.15)
    metrics, _ = learn_step(learner, [[one_token(-1.0)]] * 3, 0.1, ratio_against=against, epochs=3)
    assert theta.item() == pytest.approx(-1.2, abs=1e-6)
    assert metrics["train/loss"] == pytest.approx((1 + math.exp(-0.1)) / 3, rel=1e-6)
    assert metrics["train/correction_share"] == pytest.approx(1 / 3)
    assert metrics["train/correction_mean"] == pytest.approx(2 / 3)
    assert metrics["train/loss_tokens"] == 1  # N counts the masked ones


def test_the_gradient_with_the_off_policy_mask_is_that_of_the_unmasked_rows(folder):  # noqa: F811
    """N stays: the rows that are left keep their weights."""
    rows = rows_of(make_groups(2, 3, 4))
    learner = make_learner(folder, dtype=torch.float64)
    current = learner.logprobs(rows).result()
    shifts = [0.3 * number for number in range(len(rows))]
    rows = with_sampler(rows, [own + shift for own, shift in zip(current, shifts, strict=True)])
    left = [row for row, shift in zip(rows, shifts, strict=True) if row.advantage >= 0 or shift <= 1]
    assert 2 < len(left) < len(rows)

    def gradient(chosen, correction):
        made = make_learner(folder, dtype=torch.float64, correction=correction)
        found = {}
        made.step.optimizer_step = lambda rate: (
            found.update({n: p.grad.clone() for n, p in made.loaded.model.named_parameters()}) or step_counts()
        )
        learn_step(made, [chosen])
        return found

    expected, found = gradient(left, None), gradient(rows, OffPolicyMask(1.0))
    for name, own in expected.items():
        torch.testing.assert_close(found[name], own, rtol=1e-9, atol=1e-12, msg=name)


def test_one_minibatch_takes_no_pass_of_its_own_for_the_old_values(folder):  # noqa: F811
    learner = make_learner(folder)
    rows = rows_of(make_groups())
    once, _ = learn_step(learner, [rows], ratio_against="learner")
    thrice, _ = learn_step(learner, [rows] * 3, ratio_against="learner", epochs=3)
    assert thrice["train/micro_batches"] == 3 * once["train/micro_batches"]


def test_epochs_without_any_loss_token_move_nothing(folder):  # noqa: F811
    learner = make_learner(folder)
    before = weights_of(learner)
    rows = [replace(row, loss_mask=np.zeros(len(row.token_ids), dtype=np.bool_)) for row in rows_of(make_groups())]
    metrics, _ = learn_step(learner, [rows, rows], ratio_against="learner", epochs=2)
    assert metrics["train/empty_steps"] == 2
    assert all(torch.equal(before[name], after) for name, after in weights_of(learner).items())
