"""Evaluation statistics: avg@k with its interval, the difference of two models, unbiased pass@k, maj@k."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
    """avg@k: the mean over problems of each problem's mean over samples, with an interval over problems.

    Samples of one problem are alike, so counting them as independent would make the interval far too narrow. The
    problems are the independent draws: with m_i the mean of problem i, n problems and z the normal quantile,

        standard error = std(m, ddof=1) / sqrt(n),    interval = mean +- z x standard error

    This is the clustered standard error of "Adding Error Bars to Evals" (arXiv 2411.00640) with one cluster per
    problem. It speaks of the population that the problems were drawn from. It has length 0 where all problems are
    alike, as at 0 of 8, so with ``bounds`` (a, b) it is taken after adding z^2 / 2 problems of mean a and as many of
    mean b (Agresti & Coull, The American Statistician 52, 1998, with problems in place of single trials):

        n' = n + z^2,   m' = (sum m_i + z^2 (a + b) / 2) / n',   s'^2 = (sum m_i^2 + z^2 (a^2 + b^2) / 2) / n' - m'^2
        interval = m' +- z s' / sqrt(n'), cut to the bounds; the mean stays the plain one, and lies in it

    For one sample a problem this is Agresti and Coull's interval for a share.

    Args:
        values_P: one array [samples] of scores per problem; every problem counts the same.
        confidence: in (0, 1).
        bounds: what a score can be at least and at most, (0, 1) for an accuracy.

    Returns:
        An ``Estimate``. For a single problem its error is nan, and without ``bounds`` its interval too.

    Raises:
        ValueError: no problem, or a problem without samples.
    """
    if len(values_P) == 0 or any(np.size(values) == 0 for values in values_P):
        raise ValueError(f"{len(values_P)} problems given; an average needs at least one, each with a sample or more")
    means = np.array([np.mean(np.asarray(values, dtype=np.float64)) for values in values_P])
    mean, z = float(means.mean()), NormalDist().inv_cdf((1 + confidence) / 2)
    error = float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else math.nan
    if bounds is None:
        return Estimate(mean, mean - z * error, mean + z * error, error)
    low, high = _with_added_problems(means, bounds, z * z / 2, z)
    return Estimate(mean, low, high, error)


def paired_interval(first_P: Sequence[ArrayLike], second_P: Sequence[ArrayLike], confidence: float = 0.95) -> Estimate:
    """Mean difference (first - second) of two models on the same problems, scores in [0, 1], with its interval.

    With d_i the difference of the two means of problem i, what makes a problem easy or hard for both cancels, so the
    interval is far narrower than two intervals side by side. As in ``mean_interval`` two problems are added, lest
    equal answers give an interval of length 0: half a problem with d = 1, half a one with d = -1, one with d = 0
    (Agresti & Min, Statistics in Medicine 24, 2005, for matched pairs: half a pair to each of the four outcomes):

        n' = n + 2,   d' = sum d_i / n',   s'^2 = (sum d_i^2 + 1) / n' - d'^2,   interval = d' +- z s' / sqrt(n')

    Args:
        first_P: one array [samples] of scores in [0, 1] per problem.
        second_P: of the same problems in the same order; the numbers of samples may differ.
        confidence: in (0, 1).

    Returns:
        An ``Estimate`` in [-1, 1] whose mean is the plain one; its error is nan for a single problem.

    Raises:
        ValueError: the numbers of problems differ, there is none, or one is without samples.
    """
    if len(first_P) != len(second_P):
        raise ValueError(f"{len(first_P)} and {len(second_P)} problems given; a comparison needs the same ones")
    if len(first_P) == 0 or any(np.size(values) == 0 for values in (*first_P, *second_P)):
        raise ValueError(f"{len(first_P)} problems given; a comparison needs at least one, each with a sample or more")
    differences = np.array(
        [
            np.mean(np.asarray(a, np.float64)) - np.mean(np.asarray(b, np.float64))
            for a, b in zip(first_P, second_P, strict=True)
        ]
    )
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else math.nan
    low, high = _with_added_problems(np.append(differences, 0.0), (-1.0, 1.0), 0.5, z)
    return Estimate(float(differences.mean()), low, high, error)


def _with_added_problems(
    means_P: NDArray[np.float64], bounds: tuple[float, float], added: float, z: float
) -> tuple[float, float]:
    """Return the normal interval of the mean after ``added`` problems at either bound, cut to the bounds."""
    low, high = bounds
    n = len(means_P) + 2 * added
    mean = (float(means_P.sum()) + added * (low + high)) / n
    variance = (float((means_P**2).sum()) + added * (low**2 + high**2)) / n - mean**2
    reach = z * math.sqrt(max(0.0, variance) / n)
    return max(low, mean - reach), min(high, mean + reach)


def mean_of_estimates(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of independent estimates (of several data sets, each counting once), with its interval.

    The distances from each mean to the ends of its interval are squared and added, for either side alone, so that
    intervals that are not symmetric stay within their bounds (square-and-add; Newcombe, Statistics in Medicine 17,
    1998; Zou & Donner, ibid. 27, 2008):

        low = mean - sqrt(sum (m_i - low_i)^2) / n,    high = mean + sqrt(sum (high_i - m_i)^2) / n

    Raises:
        ValueError: no estimate.
    """
    if not estimates:
        raise ValueError("no estimate given; a mean needs at least one")
    n = len(estimates)
    if n == 1:
        return estimates[0]
    mean = math.fsum(e.mean for e in estimates) / n
    below = math.hypot(*(e.mean - e.low for e in estimates)) / n
    above = math.hypot(*(e.high - e.mean for e in estimates)) / n
    return Estimate(mean, mean - below, mean + above, math.hypot(*(e.standard_error for e in estimates)) / n)


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
