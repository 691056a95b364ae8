"""Group-relative advantages (DAPO eq. 9) and the published variants of baseline and scale."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Baseline = Literal["mean", "leave_one_out"]
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

    Args:
        rewards_PG: one array [responses] per group; may be nan where a response is no voter.
        voters_PG: one bool array [responses] per group. Statistics use voters only; the others get 0.
        baseline: what is subtracted.
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
    if baseline not in ("mean", "leave_one_out"):
        raise ValueError(f"unknown baseline {baseline!r}; expected 'mean' or 'leave_one_out'")
    if scale not in ("group_std", "batch_std", "none"):
        raise ValueError(f"unknown scale {scale!r}; expected 'group_std', 'batch_std' or 'none'")
    votes_PG = _votes(rewards_PG, voters_PG, at_least=2 if scale == "group_std" or baseline == "leave_one_out" else 0)

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
