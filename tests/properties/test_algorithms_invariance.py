"""Invariances of the loss: what must not matter does not, whatever the step looks like."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from every_loss import every_loss
from hypothesis import assume, given
from hypothesis import strategies as st

from dapo.algorithms.losses import LossInputs, clipped_loss
from dapo.algorithms.reduction import loss_weights
from dapo.algorithms.variants.cispo import cispo_loss

SPLIT_FREE = ["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant"]
LOSSES = [
    functools.partial(clipped_loss, low=0.05, high=0.08, ratio="sequence"),
    functools.partial(cispo_loss, cap=1.5),
    *(objective.loss for objective in every_loss().values() if not objective.reads),
]


# ---- one optimiser step on numbers of its own, and its loss and gradient -------------------------------------------


class Step:
    """Ragged rows of float64 numbers; a row is (group, logprobs, old logprobs, advantage, mask)."""

    def __init__(self, masks, groups, seed):
        rng = np.random.default_rng(seed)
        self.masks, self.groups = [np.array(mask, dtype=bool) for mask in masks], list(groups)
        self.logprobs = [-rng.exponential(1.0, len(mask)) for mask in masks]
        self.old = [logprobs + rng.normal(scale=0.4, size=len(logprobs)) for logprobs in self.logprobs]
        self.advantages = rng.normal(size=len(masks))

    def __len__(self):
        return len(self.masks)

    def weights(self, reduction, **settings):
        if reduction == "constant":
            settings["constant_length"] = 7
        found = loss_weights(self.masks, self.groups, reduction, **settings)
        return [mask * weight for mask, weight in zip(self.masks, found, strict=True)]

    def evaluate(self, loss, weights, batches=None, order=None):
        """(loss, gradient of each row) summed over micro-batches of whole rows, in a given order of rows."""
        batches = batches or [order or list(range(len(self)))]
        total, gradients = 0.0, [np.zeros(len(mask)) for mask in self.masks]
        for batch in batches:
            leaf = torch.tensor(np.concatenate([self.logprobs[row] for row in batch]), requires_grad=True)
            lengths = [len(self.masks[row]) for row in batch]
            inputs = LossInputs(
                logprobs=leaf,
                old_logprobs=torch.tensor(np.concatenate([self.old[row] for row in batch])),
                advantages=torch.tensor(np.repeat(self.advantages[batch], lengths)),
                loss_mask=torch.tensor(np.concatenate([self.masks[row] for row in batch])),
                rows=torch.tensor(np.repeat(np.arange(len(batch)), lengths)),
                num_rows=len(batch),
            )
            loss_T, _ = loss(inputs)
            value = (loss_T * torch.tensor(np.concatenate([weights[row] for row in batch]))).sum()
            value.backward()
            total += value.item()
            for row, gradient in zip(batch, np.split(leaf.grad.numpy(), np.cumsum(lengths)[:-1]), strict=True):
                gradients[row] = gradient
        return total, gradients


masks = st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=1, max_size=7)


@st.composite
def steps(draw):
    drawn = draw(masks)
    groups = draw(st.lists(st.integers(0, 3), min_size=len(drawn), max_size=len(drawn)))
    return Step(drawn, groups, draw(st.integers(0, 10_000)))


def assert_same(one, other):
    assert one[0] == pytest.approx(other[0], rel=1e-6, abs=1e-9)
    for a, b in zip(one[1], other[1], strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("reduction", SPLIT_FREE)
@given(step=steps(), loss=st.sampled_from(LOSSES), data=st.data())
def test_micro_batches_ranks_and_row_order_change_nothing(reduction, loss, step, data):
    """The weights come from the whole step; after that any order and any split gives the same loss and gradient."""
    whole = step.evaluate(loss, step.weights(reduction))
    order = data.draw(st.permutations(range(len(step))))
    cuts = sorted(data.draw(st.sets(st.integers(1, max(len(step) - 1, 1)))))
    batches = [part.tolist() for part in np.split(np.array(order), cuts) if len(part)]
    assert_same(whole, step.evaluate(loss, step.weights(reduction), batches=batches))


@pytest.mark.parametrize("reduction", [*SPLIT_FREE, "micro_batch_mean"])
@given(step=steps(), data=st.data())
def test_weights_follow_their_rows(reduction, step, data):
    """Sorting the rows otherwise sorts the weights otherwise, and renaming the groups does nothing."""
    order = data.draw(st.permutations(range(len(step))))
    settings, moved = {}, {}
    if reduction == "micro_batch_mean":
        half = len(step) // 2
        batches = [list(range(half)), list(range(half, len(step)))]
        settings, moved = {"micro_batches": batches}, {"micro_batches": [[order.index(r) for r in b] for b in batches]}
    weights = step.weights(reduction, **settings)
    step.masks, step.groups = [step.masks[row] for row in order], [1000 - 7 * step.groups[row] for row in order]
    for row, weight in zip(order, step.weights(reduction, **moved), strict=True):
        np.testing.assert_array_equal(weight, weights[row])


@pytest.mark.parametrize("reduction", [*SPLIT_FREE, "micro_batch_mean"])
@given(step=steps(), loss=st.sampled_from(LOSSES))
def test_masking_a_token_equals_deleting_it(reduction, loss, step):
    """Also when the masked places hold nan: padding of any amount decides nothing."""
    settings = {"micro_batches": [[row] for row in range(len(step))]} if reduction == "micro_batch_mean" else {}
    for row, mask in enumerate(step.masks):
        step.logprobs[row][~mask] = np.nan
        step.old[row][~mask] = np.inf
    masked = step.evaluate(loss, step.weights(reduction, **settings))
    for gradient, mask in zip(masked[1], step.masks, strict=True):
        assert (gradient[~mask] == 0).all()

    short = Step([mask[mask] for mask in step.masks], step.groups, 0)
    short.logprobs = [values[mask] for values, mask in zip(step.logprobs, step.masks, strict=True)]
    short.old = [values[mask] for values, mask in zip(step.old, step.masks, strict=True)]
    short.advantages = step.advantages
    gradients = [gradient[mask] for gradient, mask in zip(masked[1], step.masks, strict=True)]
    assert_same((masked[0], gradients), short.evaluate(loss, short.weights(reduction, **settings)))


@pytest.mark.parametrize("reduction", SPLIT_FREE)
@given(step=steps())
def test_rows_without_loss_count_only_in_constant(reduction, step):
    kept = [row for row, mask in enumerate(step.masks) if mask.any()]
    assume(0 < len(kept) < len(step))
    weights = step.weights(reduction)
    few = Step([step.masks[row] for row in kept], [step.groups[row] for row in kept], 0)
    share = len(kept) / len(step) if reduction == "constant" else 1.0
    for row, alone in zip(kept, few.weights(reduction), strict=True):
        np.testing.assert_allclose(weights[row], share * alone, rtol=1e-6)


@pytest.mark.parametrize("reduction", [*SPLIT_FREE, "micro_batch_mean"])
@given(lengths=st.lists(st.integers(0, 4), max_size=5))
def test_a_step_without_loss_tokens_has_zero_weights(reduction, lengths):
    masks = [np.zeros(length, dtype=bool) for length in lengths]
    with np.errstate(all="raise"):
        weights = loss_weights(
            masks, [0] * len(masks), reduction, constant_length=3, micro_batches=[[row] for row in range(len(masks))]
        )
    assert weights.dtype == np.float32
    assert weights.tolist() == [0.0] * len(lengths)


@given(step=steps())
def test_means_of_equal_losses_are_that_loss(step):
    """Weights of the three means sum to 1."""
    assume(any(mask.any() for mask in step.masks))
    batches = [list(range(0, len(step), 2)), list(range(1, len(step), 2))]
    for reduction in ("token_mean", "prompt_mean", "sequence_mean"):
        assert sum(w.sum() for w in step.weights(reduction)) == pytest.approx(1, rel=1e-6)
    for weighted in (True, False):
        weights = step.weights("micro_batch_mean", micro_batches=batches, micro_batch_weighted=weighted)
        assert sum(w.sum() for w in weights) == pytest.approx(1, rel=1e-6)


# ---- the reductions, slowly ----------------------------------------------------------------------------------------


def slow_reduction(losses, masks, groups, reduction, batches, weighted):
    """Losses as lists of lists; every mean written out as a mean."""
    rows = [[x for x, m in zip(*row, strict=True) if m] for row in zip(losses, masks, strict=True)]
    mean = lambda values: sum(values) / len(values) if values else 0.0  # noqa: E731
    if reduction == "token_mean":
        return mean([x for row in rows for x in row])
    if reduction == "prompt_mean":
        prompts = [[x for row, g in zip(rows, groups, strict=True) if g == group for x in row] for group in set(groups)]
        return mean([mean(prompt) for prompt in prompts if prompt])
    if reduction == "sequence_mean":
        return mean([mean(row) for row in rows if row])
    if reduction == "sequence_sum":
        return mean([sum(row) for row in rows if row])
    if reduction == "constant":
        return sum(x for row in rows for x in row) / (len(rows) * 7)
    total, votes = 0.0, 0
    for batch in batches:
        tokens = [x for row in batch for x in rows[row]]
        vote = sum(1 for row in batch if rows[row]) if weighted else bool(tokens)
        total, votes = total + vote * mean(tokens), votes + vote
    return total / votes if votes else 0.0


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("reduction", [*SPLIT_FREE, "micro_batch_mean"])
@given(step=steps(), data=st.data())
def test_reduction_equals_slow_formula(reduction, weighted, step, data):
    cut = data.draw(st.integers(0, len(step)))
    batches = [list(range(cut)), list(range(cut, len(step)))]
    settings = {"micro_batches": batches, "micro_batch_weighted": weighted}
    weights = step.weights(reduction, **settings if reduction == "micro_batch_mean" else {})
    ours = sum((weight * values).sum() for weight, values in zip(weights, step.logprobs, strict=True))
    slow = slow_reduction(step.logprobs, step.masks, step.groups, reduction, batches, weighted)
    assert ours == pytest.approx(slow, rel=1e-5, abs=1e-9)
