"""Importance correction for the gap between the engine that sampled and the learner that trains.

Two programs give the same weights slightly different probabilities. With old log-probabilities from the learner, the
ratio no longer runs against the distribution that was sampled from; the correction w puts that back, within limits.
"""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dapo.algorithms.ratio import log_ratio

CorrectionKind = Literal["none", "report", "truncate", "mask_token", "mask_sequence"]


def importance_correction(
    learner_logprobs: ArrayLike,
    sampler_logprobs: ArrayLike,
    *,
    kind: CorrectionKind,
    cap: float,
    floor: float,
    loss_mask: ArrayLike,
) -> NDArray[np.float32] | None:
    """The factor w on each token's loss, for one response. A constant: no gradient flows through it.

    With r_t = exp(learner_t - sampler_t), its log clamped to [-20, 20], and s = exp(mean of log r over loss tokens):

    ===============  ================================================================================================
    none, report     None, that is w = 1 (``report`` means that the gap is logged, which the caller does)
    truncate         w_t = min(r_t, cap): truncated importance sampling, TIS
    mask_token       w_t = r_t where floor <= r_t <= cap, else 0: IcePop
    mask_sequence    w_t = min(r_t, cap) in a response with floor <= s <= cap, else 0: sequence-level rejection by the
                     geometric mean, which unlike the product does not drift with the length
    ===============  ================================================================================================

    w multiplies L after clip and dual clip, and leaves the number of loss tokens N unchanged, masking included.

    Args:
        learner_logprobs: [tokens], the learner's, before the first update of the step.
        sampler_logprobs: [tokens], recorded when the tokens were sampled.
        kind: a name from the table.
        cap: upper bound of the ratio.
        floor: lower bound of the ratio; masks only.
        loss_mask: bool [tokens]; w is 1 where it is False, whatever stands there.

    Returns:
        float32 [tokens], or None where nothing is to be multiplied.

    Raises:
        ValueError: unknown kind, bounds in the wrong order, or shapes that differ.
    """
    if kind not in get_args(CorrectionKind):
        raise ValueError(f"unknown correction {kind!r}; expected one of {', '.join(get_args(CorrectionKind))}")
    if kind in ("none", "report"):
        return None
    if not 0 <= floor < cap:
        raise ValueError(f"bounds of the importance ratio must satisfy 0 <= floor < cap, got {floor} and {cap}")
    mask = np.asarray(loss_mask, dtype=np.bool_)
    if not mask.shape == np.shape(learner_logprobs) == np.shape(sampler_logprobs):
        raise ValueError(
            f"learner {np.shape(learner_logprobs)}, sampler {np.shape(sampler_logprobs)} and mask {mask.shape}"
            " must have one entry per token each"
        )
    log_ratios = log_ratio(np.asarray(learner_logprobs)[mask], np.asarray(sampler_logprobs)[mask])
    ratios = np.exp(log_ratios)
    match kind:
        case "truncate":
            corrected = np.minimum(ratios, cap)
        case "mask_token":
            corrected = np.where((ratios >= floor) & (ratios <= cap), ratios, 0.0)
        case "mask_sequence":
            inside = log_ratios.size > 0 and floor <= np.exp(log_ratios.mean()) <= cap
            corrected = np.where(inside, np.minimum(ratios, cap), 0.0)
    weights = np.ones(mask.shape, dtype=np.float32)
    weights[mask] = corrected
    return weights


def tokens_corrected(
    correction: ArrayLike | None, learner_logprobs: ArrayLike, sampler_logprobs: ArrayLike, loss_mask: ArrayLike
) -> int:
    """How many loss tokens of one response a bound acted on: cut down by the cap, or masked.

    Args:
        correction: what ``importance_correction`` returned; None counts as no token.
        learner_logprobs: [tokens], as given there.
        sampler_logprobs: [tokens], as given there.
        loss_mask: bool [tokens], as given there.
    """
    if correction is None:
        return 0
    mask = np.asarray(loss_mask, dtype=np.bool_)
    plain = np.exp(log_ratio(np.asarray(learner_logprobs)[mask], np.asarray(sampler_logprobs)[mask])).astype(np.float32)
    return int(np.count_nonzero(np.asarray(correction, dtype=np.float32)[mask] != plain))
