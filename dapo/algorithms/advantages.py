"""Group-relative advantages (DAPO eq. 9) and the published variants of baseline and scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Baseline = Literal["mean", "leave_one_out", "batch_mean", "batch_leave_one_out", "none"]
Level = Literal["group", "batch", "none"]
Scale = Literal["group_std", "batch_std", "none"]


def group_advantages(
    rewards_PG: Sequence[ArrayLike],
    voters_PG: Sequence[ArrayLike],
    *,
    baseline: Baseline = "mean",
    scale: Scale = "group_std",
    ddof: int = 1,
    eps: float = 1e-6,
    tolerance: float = 1e-6,
) -> list[NDArray[np.float64]]:
    """Advantage of every response, A = (R - baseline) / (std + eps), from the voters of its group alone.

    ``mean`` with ``group_std`` is eq. 9 of DAPO (arXiv 2503.14476); ``mean`` with ``none`` is Dr. GRPO (arXiv
    2503.20783); ``mean`` with ``batch_std`` is Lite PPO (arXiv 2508.08221) and ScaleRL (arXiv 2510.13786).
    ``leave_one_out`` subtracts the mean of the *other* voters: n / (n - 1) times the distance from the mean of all.
    With any further baseline the divisor is the root mean square of what is left, as in ``normalise``.

    Args:
        rewards_PG: one array [responses] per group; may be nan where a response is no voter.
        voters_PG: one bool array [responses] per group. Statistics use voters only; the others get 0.
        baseline: what is subtracted: a mean of the group's voters, or of the batch's, or nothing.
        scale: what is divided by: ``group_std``, the standard deviation of the group's rewards; ``batch_std``, that of
            the centred rewards (R - baseline) of all voters of the batch; ``none``, nothing.
        ddof: the standard deviation divides by n - ddof.
        eps: added to the standard deviation; same unit as the rewards.
        tolerance: a group whose rewards differ by no more than this gets advantages of exactly 0.

    Returns:
        One float64 array [responses] per group.

    Raises:
        ValueError: a voter's reward is not finite; a group has fewer than two voters and ``scale`` is ``group_std`` or
            ``baseline`` is ``leave_one_out``; unknown names; shapes that differ.
    """
    if baseline not in get_args(Baseline):
        raise ValueError(f"unknown baseline {baseline!r}; expected one of {', '.join(get_args(Baseline))}")
    if scale not in get_args(Scale):
        raise ValueError(f"unknown scale {scale!r}; expected one of {', '.join(get_args(Scale))}")
    votes_PG = _votes(rewards_PG, voters_PG, at_least=2 if scale == "group_std" or baseline == "leave_one_out" else 0)

    if baseline not in ("mean", "leave_one_out"):
        of_voters_PG = [np.where(voters, rewards, 0.0) for rewards, voters in zip(rewards_PG, voters_PG, strict=True)]
        mean: Level = "none" if baseline == "none" else "batch"
        std: Level = "group" if scale == "group_std" else "batch" if scale == "batch_std" else "none"
        left_out = baseline == "batch_leave_one_out"
        return normalise(of_voters_PG, voters_PG, mean=mean, std=std, leave_one_out=left_out, ddof=ddof, eps=eps)
    uniform_P = [votes.size == 0 or np.ptp(votes) <= tolerance for votes in votes_PG]
    centred_PG = [
        np.zeros_like(votes) if uniform else _centre(votes, baseline)
        for votes, uniform in zip(votes_PG, uniform_P, strict=True)
    ]
    match scale:
        case "group_std":
            divisors_P = [std_or_zero(votes, ddof) + eps for votes in votes_PG]
        case "batch_std":
            divisors_P = [std_or_zero(np.concatenate([*centred_PG, []]), ddof) + eps] * len(votes_PG)
        case "none":
            divisors_P = [1.0] * len(votes_PG)

    advantages_PG = []
    for voters, centred, divisor, uniform in zip(voters_PG, centred_PG, divisors_P, uniform_P, strict=True):
        advantages = np.zeros(np.shape(voters))
        if not uniform:  # a uniform group stays at exactly 0; its divisor may be 0 when eps is
            advantages[np.asarray(voters, dtype=np.bool_)] = centred / divisor
        advantages_PG.append(advantages)
    return advantages_PG


def normalise(
    values_PG: Sequence[ArrayLike],
    weights_PG: Sequence[ArrayLike],
    *,
    mean: Level = "batch",
    std: Level = "batch",
    leave_one_out: bool = False,
    ddof: int = 1,
    eps: float = 1e-5,
) -> list[NDArray[np.float64]]:
    """Return c / (d + eps), with c = x - mean and d the root mean square of c, each over the group or over the batch.

    With N the sum of the weights w at the level of the deviation, d^2 = sum of w c^2 / (N - ddof). Where each of the w
    tokens of a response has its value x, this is ``adv_norm`` of AReaL (arXiv 2505.24298, ``areal/utils/data.py``). For
    weights of 1 it is its ``reward_norm``.

    Args:
        values_PG: one array [responses] per group.
        weights_PG: how often each value counts, such as its response's tokens with loss; 0: not at all.
        mean: over what the mean is taken; ``none``: nothing is subtracted.
        std: over what the deviation is taken; ``none``: nothing is divided by.
        leave_one_out: the mean is that of all others, which is N / (N - 1) times the distance from the mean of all.
        ddof: degrees of freedom of the deviation.
        eps: added to the deviation; same unit as the values.

    Returns:
        One float64 array [responses] per group; 0 where the weight is 0.
    """
    values = [np.asarray(values, dtype=np.float64) for values in values_PG]
    weights = [np.asarray(each, dtype=np.float64) for each in weights_PG]
    if not values:
        return []
    of_P = np.repeat(np.arange(len(values)), [len(each) for each in values])
    x_R, w_R = np.concatenate(values), np.concatenate(weights)

    def total(each_R: NDArray[np.float64], level: Level) -> NDArray[np.float64]:
        places = of_P if level == "group" else np.zeros_like(of_P)
        sums: NDArray[np.float64] = np.bincount(places, each_R).astype(np.float64)
        return sums[places]

    centred_R = x_R
    if mean != "none":
        count_R = total(w_R, mean)
        centred_R = x_R - total(w_R * x_R, mean) / np.maximum(count_R, 1.0)
        if leave_one_out:
            centred_R = np.where(count_R > 1, centred_R * count_R / np.maximum(count_R - 1, 1.0), x_R)
    if std != "none":
        free_R = total(w_R, std) - ddof
        squares_R = total(w_R * centred_R**2, std)
        divisor_R = np.where(free_R > 0, np.sqrt(squares_R / np.maximum(free_R, 1.0)), 1.0) + eps
        centred_R = np.divide(centred_R, divisor_R, out=np.zeros_like(centred_R), where=divisor_R > 0)
    return np.split(np.where(w_R > 0, centred_R, 0.0), np.cumsum([len(each) for each in values])[:-1])


def _votes(
    rewards_PG: Sequence[ArrayLike], voters_PG: Sequence[ArrayLike], *, at_least: int
) -> list[NDArray[np.float64]]:
    """Return the voters' rewards of each group."""
    if len(rewards_PG) != len(voters_PG):
        raise ValueError(f"{len(rewards_PG)} groups of rewards but {len(voters_PG)} groups of voters; give one of each")
    votes_PG = []
    for p, (rewards, voters) in enumerate(zip(rewards_PG, voters_PG, strict=True)):
        rewards_G, voters_G = np.asarray(rewards, dtype=np.float64), np.asarray(voters, dtype=np.bool_)
        if rewards_G.shape != voters_G.shape or rewards_G.ndim != 1:
            raise ValueError(f"group {p}: rewards {rewards_G.shape} and voters {voters_G.shape} must be equal and 1-d")
        votes = rewards_G[voters_G]
        if not np.isfinite(votes).all():
            raise ValueError(f"group {p}: rewards of voters must be finite, got {votes}; an unscored one is no voter")
        if len(votes) < at_least:
            raise ValueError(
                f"group {p} has {len(votes)} voter(s); group_std and leave_one_out need at least two. Leave such groups"
                " out (verdict too_few_scored), or use scale 'none' or 'batch_std' with baseline 'mean'"
            )
        votes_PG.append(votes)
    return votes_PG


def _centre(votes: NDArray[np.float64], baseline: Baseline) -> NDArray[np.float64]:
    centred: NDArray[np.float64] = votes - votes.mean()
    if baseline == "leave_one_out":
        centred = centred * (len(votes) / (len(votes) - 1))
    return centred


def std_or_zero(values: NDArray[np.float64], ddof: int) -> float:
    """Return the standard deviation; 0 where too few values are left to have one."""
    return float(values.std(ddof=ddof)) if len(values) > ddof else 0.0
