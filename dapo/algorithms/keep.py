"""The keep rule of dynamic sampling: which groups can teach anything (constraint of DAPO eq. 8)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from dapo.types.enums import Verdict


def judge_group(
    values_G: ArrayLike,
    voters_G: ArrayLike,
    *,
    metric_is_accuracy: bool,
    correct_at: float = 1.0,
    tolerance: float = 1e-6,
    band: tuple[float, float] | None = None,
) -> Verdict:
    """Judge one finished group on its raw metric, before any scaling or length penalty.

    Accuracy: kept when 0 < #{voters with accuracy >= correct_at} < #voters. Any other metric: kept when max - min >
    tolerance. (Never std > 0: rounding in a standard deviation makes equal rewards look diverse.) With a band, what
    passes is kept only when the voters' mean metric lies in it.

    Args:
        values_G: the metric of each response; may be nan where a response is no voter.
        voters_G: bool [responses].
        metric_is_accuracy: which of the two rules applies.
        correct_at: accuracy from which a response is correct.
        tolerance: for other metrics; same unit as the metric.
        band: (low, high), both ends included.

    Raises:
        ValueError: a voter's value is not finite, or shapes differ.
    """
    values_G, voters_G = np.asarray(values_G, dtype=np.float64), np.asarray(voters_G, dtype=np.bool_)
    if values_G.shape != voters_G.shape:
        raise ValueError(f"values {values_G.shape} and voters {voters_G.shape} must have one entry per response each")
    votes = values_G[voters_G]
    if not np.isfinite(votes).all():
        raise ValueError(f"the metric of every voter must be finite, got {votes}; an unscored response is no voter")
    if len(votes) < 2:
        return Verdict.TOO_FEW_SCORED
    if metric_is_accuracy:
        correct = np.count_nonzero(votes >= correct_at)
        if correct == 0:
            return Verdict.ALL_WRONG
        if correct == len(votes):
            return Verdict.ALL_CORRECT
    elif np.ptp(votes) <= tolerance:
        return Verdict.UNIFORM
    if band is not None and not band[0] <= votes.mean() <= band[1]:
        return Verdict.OUT_OF_BAND
    return Verdict.KEPT
