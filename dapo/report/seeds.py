"""Intervals over seeds by Student's t: of a mean, and of a difference of two means."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dapo.algorithms.statistics import Estimate

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(64)
_HALVINGS = 60  # of an interval of length pi / 2: more than a float resolves


def mean_over_seeds(values: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return the mean of runs with its interval; of a single run, or of none, the interval is nan.

    Differences of runs in pairs are such values, too.

        interval = mean +- t s / sqrt(n),  s: standard deviation with n - 1,  t of n - 1 degrees of freedom
    """
    mean, error = _mean_and_error(values)
    return _around(mean, error, len(values) - 1, confidence)


def difference_of_means(before: Sequence[float], after: Sequence[float], confidence: float = 0.95) -> Estimate:
    """Return mean(after) - mean(before) of unpaired runs, two and more on each side, with Welch's interval."""
    (a, error_a), (b, error_b) = _mean_and_error(before), _mean_and_error(after)
    error = math.hypot(error_a, error_b)
    share = (error_a / error) ** 2 if error else 0.5
    freedom = 1 / (share**2 / (len(before) - 1) + (1 - share) ** 2 / (len(after) - 1))
    return _around(b - a, error, freedom, confidence)


def student(freedom: float, confidence: float) -> float:
    """Return the t that |T| does not exceed with probability ``confidence``, for T of Student's distribution.

    With T = sqrt(freedom) tan(u), the density of the angle u is proportional to cos(u)^(freedom - 1).
    """
    half = math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2)) * math.sqrt(math.pi) / 2
    low, high = 0.0, math.pi / 2
    for _ in range(_HALVINGS):
        angle = (low + high) / 2
        within = angle / 2 * float(_WEIGHTS @ np.cos(angle / 2 * (_NODES + 1)) ** (freedom - 1)) / half
        low, high = (angle, high) if within < confidence else (low, angle)
    return math.sqrt(freedom) * math.tan(low)


def _mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean and its standard error, nan below two values."""
    n = len(values)
    mean = math.fsum(value / n for value in values) if n else math.nan
    return mean, math.hypot(*(value - mean for value in values)) / math.sqrt(n * (n - 1)) if n > 1 else math.nan


def _around(mean: float, error: float, freedom: float, confidence: float) -> Estimate:
    reach = student(freedom, confidence) * error if freedom >= 1 else math.nan
    return Estimate(mean, mean - reach, mean + reach, error)
