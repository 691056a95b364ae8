"""GDPO (arXiv 2601.05242): advantages of several rewards, each normalised by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dapo.algorithms.advantages import group_advantages, std_or_zero


def gdpo_advantages(
    rewards_PG: Sequence[ArrayLike],
    voters_PG: Sequence[ArrayLike],
    parts_PG: Sequence[Mapping[str, ArrayLike]],
    *,
    weights: Mapping[str, float],
    ddof: int = 1,
    eps: float = 1e-6,
    tolerance: float = 1e-6,
) -> list[NDArray[np.float64]]:
    """Normalise each reward by itself in its group, and then the weighted sum over the batch.

    S_i = sum over rewards k of w_k (R_ik - mean R_k) / (std R_k + eps), and A_i = S_i / (std of S over all voters of
    the batch + eps). The mean of S is 0 in each group by construction, so none is subtracted. A reward that does not
    differ within a group, or that its data source does not have, adds 0. verl weighs responses by their tokens in the
    last step; here, as in the paper and in TRL, each counts once.

    Args:
        rewards_PG: the shaped sums. Not read.
        voters_PG: one bool array [responses] per group. Statistics use voters only; the others get 0.
        parts_PG: of each group the values of each reward by its name, [responses] each.
        weights: of the rewards that count.
        ddof: the standard deviations divide by n - ddof.
        eps: added to the standard deviations.
        tolerance: a reward that differs by no more than this within a group adds 0.

    Returns:
        One float64 array [responses] per group.

    Raises:
        ValueError: as ``group_advantages``, for each reward.
    """
    sums_PG = [np.zeros(np.shape(voters)) for voters in voters_PG]
    for name, weight in weights.items():
        own = [p for p, parts in enumerate(parts_PG) if name in parts]
        found = group_advantages(
            [parts_PG[p][name] for p in own], [voters_PG[p] for p in own], ddof=ddof, eps=eps, tolerance=tolerance
        )
        for p, advantages in zip(own, found, strict=True):
            sums_PG[p] += weight * advantages
    votes = [sums[np.asarray(voters, dtype=np.bool_)] for sums, voters in zip(sums_PG, voters_PG, strict=True)]
    divisor = std_or_zero(np.concatenate([*votes, []]), ddof) + eps
    return [sums / divisor if sums.any() else sums for sums in sums_PG]
