"""Evaluation statistics: avg@k with its interval, unbiased pass@k, maj@k."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean with its confidence interval."""

    mean: float
    low: float
    high: float
    standard_error: float


def mean_interval(
    values_P: Sequence[ArrayLike], *, confidence: float = 0.95, bounds: tuple[float, float] | None = None
) -> Estimate:
    """avg@k: the mean over problems of each problem's mean over samples, with a cluster-robust interval.

    Samples of one problem are alike, so counting them as independent would make the interval far too narrow. The
    problems are the independent draws: with m_i the mean of problem i and n problems,

        standard error = std(m, ddof=1) / sqrt(n),    interval = mean +- z x standard error

    with z the normal quantile (1.96 for 95 %). This is the clustered standard error of "Adding Error Bars to Evals"
    (arXiv 2411.00640) with one cluster per problem. It speaks of the population that the problems were drawn from.

    Args:
        values_P: one array [samples] of scores per problem; every problem counts the same.
        confidence: in (0, 1).
        bounds: the interval is cut to these, (0, 1) for an accuracy.

    Returns:
        An ``Estimate``; its interval and error are nan for a single problem.

    Raises:
        ValueError: no problem, or a problem without samples.
    """
    if len(values_P) == 0 or any(np.size(values) == 0 for values in values_P):
        raise ValueError(f"{len(values_P)} problems given; an average needs at least one, each with a sample or more")
    means = np.array([np.mean(np.asarray(values, dtype=np.float64)) for values in values_P])
    mean = float(means.mean())
    if len(means) == 1:
        return Estimate(mean, math.nan, math.nan, math.nan)
    error = float(means.std(ddof=1)) / math.sqrt(len(means))
    reach = NormalDist().inv_cdf((1 + confidence) / 2) * error
    low, high = bounds if bounds is not None else (-math.inf, math.inf)
    return Estimate(mean, max(mean - reach, low), min(mean + reach, high), error)


def pass_at_k(n: int, c: int, k: int) -> float:
    """Unbiased pass@k of one problem: 1 - C(n - c, k) / C(n, k) (arXiv 2107.03374), without large factorials.

    Args:
        n: samples drawn.
        c: samples that are correct.
        k: the probability is that of at least one correct among k.

    Raises:
        ValueError: not 0 <= c <= n, or not 1 <= k <= n.
    """
    if not 0 <= c <= n:
        raise ValueError(f"{c} correct of {n} samples; expected 0 <= c <= n")
    if not 1 <= k <= n:
        raise ValueError(f"pass@{k} from {n} samples; expected 1 <= k <= n: draw at least k samples")
    if n - c < k:
        return 1.0
    return 0.0 - math.expm1(math.fsum(math.log1p(-k / i) for i in range(n - c + 1, n + 1)))


def majority_correct(answers: Sequence[Hashable | None], correct: Sequence[bool]) -> float:
    """maj@k of one problem: the probability that its most frequent answer is correct.

    Ties are broken at random, and this is the expectation over that. Responses without an answer (None) do not vote.
    Should equal answers carry different verdicts, the answer counts with its share of correct ones.

    Args:
        answers: [samples], the extracted answer of each response, in a normal form; None where there is none.
        correct: bool [samples].

    Returns:
        In [0, 1]; 0 when no response has an answer.

    Raises:
        ValueError: lengths differ.
    """
    if len(answers) != len(correct):
        raise ValueError(f"{len(answers)} answers but {len(correct)} verdicts; give one of each per sample")
    verdicts: defaultdict[Hashable, list[bool]] = defaultdict(list)
    for answer, is_correct in zip(answers, correct, strict=True):
        if answer is not None:
            verdicts[answer].append(bool(is_correct))
    if not verdicts:
        return 0.0
    most = max(len(votes) for votes in verdicts.values())
    winners = [sum(votes) / most for votes in verdicts.values() if len(votes) == most]
    return sum(winners) / len(winners)
