"""What must hold for every input: invariances of the loss, and each published formula computed the slow, obvious way."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.correction import importance_correction
from dapo.algorithms.keep import judge_group
from dapo.algorithms.losses import LossInputs, cispo_loss, clipped_loss
from dapo.algorithms.shaping import soft_overlong_punishment
from dapo.algorithms.statistics import majority_correct, pass_at_k
from dapo.algorithms.weights import token_weights
from dapo.contracts.enums import Verdict

SPLIT_FREE = ["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant"]
LOSSES = {
    "clip": lambda inputs: clipped_loss(inputs, low=0.2, high=0.28, dual=3.0),
    "sequence": lambda inputs: clipped_loss(inputs, low=0.05, high=0.08, ratio="sequence"),
    "cispo": lambda inputs: cispo_loss(inputs, cap=1.5),
}


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
        return token_weights(self.masks, self.groups, reduction, **settings)

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
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@given(step=steps(), data=st.data())
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
@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
@given(step=steps())
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
        weights = token_weights(
            masks, [0] * len(masks), reduction, constant_length=3, micro_batches=[[row] for row in range(len(masks))]
        )
    assert [len(weight) for weight in weights] == lengths
    assert all(weight.dtype == np.float32 and (weight == 0).all() for weight in weights)


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


# ---- published formulas, slowly ------------------------------------------------------------------------------------


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


def slow_clip(logp, old, advantage, low, high, dual):
    ratio = math.exp(max(-20.0, min(20.0, logp - old)))
    clipped = max(1 - low, min(1 + high, ratio))
    loss = -min(ratio * advantage, clipped * advantage)
    return min(loss, -advantage * dual) if advantage < 0 and dual is not None else loss


finite = st.floats(-30, 0)


@given(
    tokens=st.lists(st.tuples(finite, finite, st.floats(-3, 3)), min_size=1, max_size=6),
    low=st.floats(0.01, 0.9),
    high=st.floats(0.01, 2.0),
    dual=st.none() | st.floats(1.01, 20.0),
)
def test_clip_equals_slow_formula(tokens, low, high, dual):
    logprobs, old, advantages = torch.tensor(tokens, dtype=torch.float64).unbind(1)
    logprobs.requires_grad_()
    mask, rows = torch.ones(len(tokens), dtype=torch.bool), torch.arange(len(tokens))
    loss, flags = clipped_loss(
        LossInputs(logprobs, old, advantages, mask, rows, len(tokens)), low=low, high=high, dual=dual
    )
    slow = [slow_clip(*token, low, high, dual) for token in tokens]
    np.testing.assert_allclose(loss.detach().numpy(), slow, rtol=1e-12, atol=1e-12)
    # a flagged token has no gradient; any other has A r, wherever the clamp of the log-ratio is not at work
    (gradient,) = torch.autograd.grad(loss.sum(), logprobs)
    clipped = flags["clip_low"] | flags["clip_high"] | flags["clip_dual"]
    log_ratios = (logprobs - old).detach()
    expected = torch.where(clipped | (log_ratios.abs() > 20), 0.0, -advantages * log_ratios.exp())
    ratios = log_ratios.exp()
    bounds = [1 - low, 1 + high, dual or math.inf]
    away = torch.stack([(ratios - bound).abs() > 1e-9 for bound in bounds]).all(0) & (
        (log_ratios.abs() - 20).abs() > 1e-9
    )
    np.testing.assert_allclose(gradient[away].numpy(), expected[away].numpy(), rtol=1e-9, atol=1e-12)


rewards_and_voters = st.lists(
    st.lists(st.tuples(st.integers(-4, 4).map(lambda x: x / 2), st.booleans()), min_size=3, max_size=7),
    min_size=1, max_size=4,
)  # fmt: skip


def slow_advantages(groups, baseline, scale, ddof, eps):
    mean = lambda values: sum(values) / len(values)  # noqa: E731
    std = lambda values: math.sqrt(sum((x - mean(values)) ** 2 for x in values) / (len(values) - ddof))  # noqa: E731
    votes_P = [[reward for reward, votes in group if votes] for group in groups]

    def centred(p, i):
        others = [r for j, (r, v) in enumerate(groups[p]) if v and (baseline == "mean" or j != i)]
        return groups[p][i][0] - mean(others)

    every = [centred(p, i) for p, group in enumerate(groups) for i, (_, votes) in enumerate(group) if votes]
    result = []
    for p, group in enumerate(groups):
        uniform = max(votes_P[p]) == min(votes_P[p])
        divisor = {"group_std": lambda p=p: std(votes_P[p]) + eps, "batch_std": lambda: std(every) + eps}.get(
            scale, lambda: 1.0
        )
        result.append([
            centred(p, i) / divisor() if votes and not uniform else 0.0 for i, (_, votes) in enumerate(group)
        ])  # fmt: skip
    return result


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
@given(groups=rewards_and_voters, ddof=st.sampled_from([0, 1]))
def test_advantages_equal_slow_formula(baseline, scale, groups, ddof):
    assume(all(sum(votes for _, votes in group) >= 2 for group in groups))
    rewards = [[reward if votes else math.nan for reward, votes in group] for group in groups]
    voters = [[votes for _, votes in group] for group in groups]
    settings = {"baseline": baseline, "scale": scale, "ddof": ddof}
    ours = group_advantages(rewards, voters, eps=1e-3, **settings)
    for one, slow in zip(ours, slow_advantages(groups, eps=1e-3, **settings), strict=True):
        np.testing.assert_allclose(one, slow, rtol=1e-9, atol=1e-12)


@given(
    rewards=st.lists(st.integers(-3, 3), min_size=2, max_size=8),
    shift=st.integers(-5, 5),
    factor=st.sampled_from([0.5, 2.0, 8.0]),
)
def test_advantages_ignore_scale_and_shift_and_sum_to_zero(rewards, shift, factor):
    voters = [[True] * len(rewards)]
    (plain,) = group_advantages([rewards], voters, eps=0.0)
    (moved,) = group_advantages([[factor * (reward + shift) for reward in rewards]], voters, eps=0.0)
    np.testing.assert_allclose(plain, moved, atol=1e-12)
    assert plain.sum() == pytest.approx(0, abs=1e-9)
    assert (plain == 0).all() == (len(set(rewards)) == 1)


@given(st.lists(st.integers(0, 3000), min_size=1), st.integers(1, 1000), st.integers(0, 1000), st.floats(0, 3))
def test_soft_overlong_equals_eq_13(lengths, cache, rest, factor):
    longest = cache + rest

    def eq_13(length):
        if length <= longest - cache:
            return 0.0
        if length <= longest:
            return ((longest - cache) - length) / cache
        return -1.0

    ours = soft_overlong_punishment(lengths, max_length=longest, cache_length=cache, factor=factor)
    np.testing.assert_allclose(ours, [factor * eq_13(length) for length in lengths], rtol=1e-12)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.3, 0.5, 0.99, 1.0]), st.booleans()), max_size=6))
def test_keep_rule_equals_its_sentence(group):
    values, voters = [value for value, _ in group], [votes for _, votes in group]
    votes = [value for value, votes in group if votes]
    correct = sum(vote >= 0.5 for vote in votes)
    verdict = judge_group(values, voters, metric_is_accuracy=True, correct_at=0.5)
    assert (verdict is Verdict.TOO_FEW_SCORED) == (len(votes) < 2)
    if len(votes) >= 2:
        assert (verdict is Verdict.KEPT) == (0 < correct < len(votes))
        assert (verdict is Verdict.ALL_WRONG) == (correct == 0)
        other = judge_group(values, voters, metric_is_accuracy=False)
        assert (other is Verdict.UNIFORM) == (max(votes) == min(votes))


@given(
    st.lists(st.tuples(finite, finite, st.booleans()), min_size=1, max_size=8),
    st.sampled_from(["truncate", "mask_token", "mask_sequence"]),
)
def test_correction_equals_slow_formula(tokens, kind):
    cap, floor = 2.0, 0.5
    ratios = [math.exp(max(-20.0, min(20.0, new - old))) for new, old, _ in tokens]
    logs = [max(-20.0, min(20.0, new - old)) for new, old, carries in tokens if carries]
    geometric = math.exp(sum(logs) / len(logs)) if logs else math.nan
    slow = []
    for ratio, (_, _, carries) in zip(ratios, tokens, strict=True):
        if not carries:
            slow.append(1.0)
        elif kind == "mask_token":
            slow.append(ratio if floor <= ratio <= cap else 0.0)
        elif kind == "truncate" or floor <= geometric <= cap:
            slow.append(min(ratio, cap))
        else:
            slow.append(0.0)
    new, old, mask = (list(column) for column in zip(*tokens, strict=True))
    ours = importance_correction(new, old, kind=kind, cap=cap, floor=floor, loss_mask=mask)
    np.testing.assert_allclose(ours, slow, rtol=1e-6)


@given(st.integers(1, 30), st.data())
def test_pass_at_k_equals_binomials(n, data):
    c, k = data.draw(st.integers(0, n)), data.draw(st.integers(1, n))
    assert pass_at_k(n, c, k) == pytest.approx(1 - math.comb(n - c, k) / math.comb(n, k), abs=1e-12)


@given(st.lists(st.sampled_from(["1", "2", "3", None]), min_size=1, max_size=9), st.sampled_from(["1", "2"]))
def test_majority_equals_expectation_over_ties(answers, gold):
    counts = {answer: answers.count(answer) for answer in answers if answer is not None}
    winners = [answer for answer, count in counts.items() if count == max(counts.values())]
    expected = sum(answer == gold for answer in winners) / len(winners) if winners else 0.0
    assert majority_correct(answers, [answer == gold for answer in answers]) == pytest.approx(expected)
