"""Each published formula computed the slow, obvious way, on random input."""

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
from dapo.algorithms.losses import LossInputs, clipped_loss
from dapo.algorithms.shaping import soft_overlong_punishment
from dapo.algorithms.statistics import majority_correct, pass_at_k
from dapo.types.enums import Verdict


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
    st.sampled_from(["untruncated", "truncate", "truncate_sequence", "mask_token", "mask_sequence"]),
    st.sampled_from([None, 1.1, 3.0]),
)
def test_correction_equals_slow_formula(tokens, kind, token_cap):
    cap, floor, sequence_cap = 2.0, 0.5, 5.0
    ratios = [math.exp(max(-20.0, min(20.0, new - old))) for new, old, _ in tokens]
    logs = [max(-20.0, min(20.0, new - old)) for new, old, carries in tokens if carries]
    geometric = math.exp(sum(logs) / len(logs)) if logs else math.nan
    slow = []
    for ratio, (_, _, carries) in zip(ratios, tokens, strict=True):
        if not carries:
            slow.append(1.0)
        elif kind == "mask_token":
            slow.append(ratio if floor <= ratio <= cap else 0.0)
        elif kind == "untruncated":
            slow.append(ratio)
        elif kind == "truncate":
            slow.append(min(ratio, cap))
        elif kind == "truncate_sequence":
            product = math.exp(max(-20.0, min(20.0, math.fsum(logs))))
            slow.append(min(product, sequence_cap))
        elif floor <= geometric <= cap:
            slow.append(ratio if token_cap is None else min(ratio, token_cap))
        else:
            slow.append(0.0)
    new, old, mask = (list(column) for column in zip(*tokens, strict=True))
    bounds = {"cap": cap, "floor": floor, "token_cap": token_cap, "sequence_cap": sequence_cap}
    ours = importance_correction(new, old, kind=kind, loss_mask=mask, **bounds)
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
