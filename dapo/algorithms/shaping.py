"""From the verifier's reward to the reward that the advantage sees: scale, then length penalty.

Both come after the keep decision, which reads the raw metric: a group of wrong answers of different lengths must not
count as diverse.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dapo.algorithms.ratio import log_ratio


def scale_rewards(
    rewards: ArrayLike, *, source_min: float, source_max: float, target_min: float, target_max: float
) -> NDArray[np.float64]:
    """Clamp to [source_min, source_max], then map that interval linearly onto [target_min, target_max].

    DAPO's rewards are +1 / -1 (eq. 7). The unit matters: against 0 / 1 the same length penalty weighs twice as much.

    Args:
        rewards: any shape; nan (an unscored response) stays nan.
        source_min: lower end of the raw reward.
        source_max: upper end of the raw reward.
        target_min: what ``source_min`` becomes.
        target_max: what ``source_max`` becomes.

    Returns:
        float64, the shape of ``rewards``.

    Raises:
        ValueError: an interval without extent, or a source interval that runs backwards.
    """
    if source_min >= source_max:
        raise ValueError(f"source_min {source_min} must be below source_max {source_max}")
    if target_min == target_max:
        raise ValueError(f"target_min and target_max are both {target_min}; every reward would be the same")
    clamped = np.clip(np.asarray(rewards, dtype=np.float64), source_min, source_max)
    share = (clamped - source_min) / (source_max - source_min)
    return target_min + share * (target_max - target_min)


def clamped(rewards: ArrayLike, *, source_min: float, source_max: float) -> NDArray[np.bool_]:
    """Which rewards ``scale_rewards`` cuts down to its source interval: differences among them are lost.

    Args:
        rewards: any shape; nan (an unscored response) is not clamped.
        source_min: lower end of the raw reward.
        source_max: upper end of the raw reward.

    Returns:
        bool, the shape of ``rewards``. What rounding puts beside a bound (0.1 + 0.2 + 0.7) is not counted.
    """
    values = np.asarray(rewards, dtype=np.float64)
    slack = 1e-9 * max(1.0, abs(source_min), abs(source_max))
    return (values < source_min - slack) | (values > source_max + slack)


def soft_overlong_punishment(
    lengths: ArrayLike, *, max_length: int, cache_length: int, factor: float = 1.0
) -> NDArray[np.float64]:
    """Soft overlong punishment (DAPO eq. 13), to be added to the reward.

    0 up to ``max_length - cache_length`` tokens, from there down linearly to -1 at ``max_length``, and -1 beyond;
    times ``factor``.

    Args:
        lengths: response tokens, the stop token included; any shape.
        max_length: Lmax in tokens.
        cache_length: Lcache in tokens, 0 < Lcache <= Lmax.
        factor: how much the full penalty takes away.

    Returns:
        float64, the shape of ``lengths``, in [-factor, 0].

    Raises:
        ValueError: Lcache outside (0, Lmax].
    """
    if not 0 < cache_length <= max_length:
        raise ValueError(f"cache_length {cache_length} must lie in (0, max_length], and max_length is {max_length}")
    start = max_length - cache_length
    return factor * np.clip((start - np.asarray(lengths, dtype=np.float64)) / cache_length, -1.0, 0.0)


def shape_rewards(
    rewards_G: ArrayLike,
    lengths_G: ArrayLike,
    truncated_G: ArrayLike,
    *,
    source: tuple[float, float] | None = (0.0, 1.0),
    target: tuple[float, float] = (-1.0, 1.0),
    max_length: int | None = None,
    cache_length: int | None = None,
    factor: float = 1.0,
    truncated_factor: float = 1.0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shape the rewards of one group: ``scale_rewards``, truncated ones multiplied, ``soft_overlong_punishment`` added.

    Args:
        rewards_G: raw rewards, nan where unscored.
        lengths_G: response tokens.
        truncated_G: whether the engine ended the response for length. The penalty does not read it: it is a function
            of the length alone (eq. 13).
        source: interval that is mapped onto ``target``; None: rewards stay as they are.
        target: see ``source``.
        max_length: Lmax; None: no length penalty.
        cache_length: Lcache; needed with ``max_length``.
        factor: multiplies the penalty.
        truncated_factor: multiplies the scaled rewards of truncated responses, as ``stop_properly_penalty_coef`` of
            NeMo RL does.

    Returns:
        (shaped rewards, penalties), float64 [responses] each; the shaped rewards contain the penalties.
    """
    rewards = np.asarray(rewards_G, dtype=np.float64)
    if source is not None:
        rewards = scale_rewards(
            rewards, source_min=source[0], source_max=source[1], target_min=target[0], target_max=target[1]
        )
    rewards = np.where(np.asarray(truncated_G, dtype=np.bool_), truncated_factor * rewards, rewards)
    if max_length is None:
        return rewards.copy(), np.zeros_like(rewards)
    if cache_length is None:
        raise ValueError(f"max_length {max_length} needs a cache_length: the tokens over which the penalty grows")
    penalties = soft_overlong_punishment(lengths_G, max_length=max_length, cache_length=cache_length, factor=factor)
    return rewards + penalties, penalties


def kl_in_reward(
    logprobs: ArrayLike, reference_logprobs: ArrayLike, loss_mask: ArrayLike, *, coefficient: float
) -> float:
    """Return the KL term to add to one response's reward: -coefficient x the sum of k1 = log policy - log reference.

    As in PPO for language models (arXiv 2203.02155) and verl's ``use_kl_in_reward``; a constant of the step, so the
    gradient comes through the advantage.

    Args:
        logprobs: [tokens] of the policy that sampled, nats.
        reference_logprobs: [tokens] of the reference.
        loss_mask: bool [tokens]; only these count.
        coefficient: of the KL.
    """
    mask = np.asarray(loss_mask, dtype=np.bool_)
    return -coefficient * float(log_ratio(np.asarray(logprobs)[mask], np.asarray(reference_logprobs)[mask]).sum())
