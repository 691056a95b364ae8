"""Importance correction for the gap between the engine that sampled and the learner that trains.

Two programs give the same weights slightly different probabilities. With old log-probabilities from the learner, the
ratio no longer runs against the distribution that was sampled from; the correction w puts that back, within limits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dapo.algorithms.ratio import LOG_RATIO_LIMIT, log_ratio

CorrectionKind = Literal[
    "none", "report", "untruncated", "truncate", "truncate_sequence", "mask_token", "mask_sequence"
]


def importance_correction(
    learner_logprobs: ArrayLike,
    sampler_logprobs: ArrayLike,
    *,
    kind: CorrectionKind,
    cap: float = 2.0,
    floor: float = 0.5,
    token_cap: float | None = 2.0,
    sequence_cap: float = 5.0,
    loss_mask: ArrayLike,
) -> NDArray[np.float32] | None:
    """Return the factor w on each token's loss, for one response. A constant: no gradient flows through it.

    With r_t = exp(learner_t - sampler_t), its log clamped to [-20, 20], and over the loss tokens the geometric mean
    g = exp(mean of log r) and the product s = exp(sum of log r), the sum clamped to [-20, 20]:

    =================  ==============================================================================================
    none, report       None, that is w = 1 (``report`` means that the gap is logged, which the caller does)
    untruncated        w_t = r_t: unbiased, with the variance that a few large ratios bring
    truncate           w_t = min(r_t, cap): truncated importance sampling, TIS
    truncate_sequence  w_t = min(s, sequence_cap), one value for the response: TIS of the whole response
    mask_token         w_t = r_t where floor <= r_t <= cap, else 0: IcePop
    mask_sequence      w_t = min(r_t, token_cap) in a response with floor <= g <= cap, else 0: sequence-level rejection
                       by the geometric mean, which unlike the product does not drift with the length
    =================  ==============================================================================================

    w multiplies L after clip and dual clip, and leaves the number of loss tokens N unchanged, masking included.

    Args:
        learner_logprobs: [tokens], the learner's, before the first update of the step.
        sampler_logprobs: [tokens], recorded when the tokens were sampled.
        kind: a name from the table.
        cap: upper bound of r_t (``truncate``, ``mask_token``) or of g (``mask_sequence``).
        floor: lower bound of r_t or g; masks only.
        token_cap: upper bound of r_t within a response that ``mask_sequence`` lets pass; None: none. A band of its own,
            since a narrow one for g (0.99 to 1.01 is published) would cut nearly every r_t down to 1.
        sequence_cap: upper bound of s.
        loss_mask: bool [tokens]; w is 1 where it is False, whatever the log-probabilities.

    Returns:
        float32 [tokens], or None where nothing is to be multiplied.

    Raises:
        ValueError: unknown kind, bounds in the wrong order or not positive, or shapes that differ.
    """
    if kind not in get_args(CorrectionKind):
        raise ValueError(f"unknown correction {kind!r}; expected one of {', '.join(get_args(CorrectionKind))}")
    if kind in ("none", "report"):
        return None
    _check_bounds(cap, floor if kind in ("mask_token", "mask_sequence") else 0.0, token_cap, sequence_cap)
    mask = np.asarray(loss_mask, dtype=np.bool_)
    if not mask.shape == np.shape(learner_logprobs) == np.shape(sampler_logprobs):
        raise ValueError(
            f"learner {np.shape(learner_logprobs)}, sampler {np.shape(sampler_logprobs)} and mask {mask.shape}"
            " must have one entry per token each"
        )
    log_ratios = log_ratio(np.asarray(learner_logprobs)[mask], np.asarray(sampler_logprobs)[mask])
    weights = np.ones(mask.shape, dtype=np.float32)
    weights[mask] = _corrected(kind, log_ratios, cap, floor, token_cap, sequence_cap)
    return weights


def _check_bounds(cap: float, floor: float, token_cap: float | None, sequence_cap: float) -> None:
    if not 0 <= floor < cap:
        raise ValueError(f"bounds of the importance ratio must satisfy 0 <= floor < cap, got {floor} and {cap}")
    if sequence_cap <= 0 or (token_cap is not None and token_cap <= 0):
        raise ValueError(f"caps must be above 0, got token_cap {token_cap} and sequence_cap {sequence_cap}")


def _corrected(
    kind: CorrectionKind,
    log_ratios: NDArray[np.float64],
    cap: float,
    floor: float,
    token_cap: float | None,
    sequence_cap: float,
) -> NDArray[np.float64]:
    """w of the loss tokens, by the table of ``importance_correction``."""
    ratios = np.exp(log_ratios)
    match kind:
        case "truncate":
            return np.minimum(ratios, cap)
        case "truncate_sequence":
            return np.full(ratios.shape, min(_product(log_ratios), sequence_cap))
        case "mask_token":
            return np.where((ratios >= floor) & (ratios <= cap), ratios, 0.0)
        case "mask_sequence":
            inside = log_ratios.size > 0 and floor <= np.exp(log_ratios.mean()) <= cap
            bounded = ratios if token_cap is None else np.minimum(ratios, token_cap)
            return np.where(inside, bounded, 0.0)
    return ratios


def _product(log_ratios: NDArray[np.float64]) -> float:
    """Return the ratio of a whole response, the sum of its log-ratios clamped as a single one is."""
    return math.exp(min(LOG_RATIO_LIMIT, max(-LOG_RATIO_LIMIT, float(log_ratios.sum()))))


@dataclass(frozen=True, slots=True)
class OffPolicyMask:
    """The off-policy sequence mask of DeepSeek-V3.2 (arXiv 2512.02556, section 3.1).

    w = 0 in a response whose advantage is below 0 and whose mean of log sampler - log policy over the loss tokens is
    above ``threshold``; else 1. The policy is that of the present optimizer step, so both causes of the distance count:
    the updates since the response was sampled, and the difference between engine and learner. A wrong answer that the
    policy would hardly give any more teaches nothing; a right one always counts.
    """

    threshold: float  # delta, nats a token
    by_token: ClassVar[bool] = False

    def __call__(
        self, logprobs: ArrayLike, sampler_logprobs: ArrayLike, loss_mask: ArrayLike, advantage: float
    ) -> NDArray[np.float32]:
        """Return w, float32 [tokens], of one response; 1 where ``loss_mask`` is False.

        Args:
            logprobs: [tokens], the policy's before the update.
            sampler_logprobs: [tokens], recorded when the tokens were sampled.
            loss_mask: bool [tokens].
            advantage: of the response.
        """
        mask = np.asarray(loss_mask, dtype=np.bool_)
        weights = np.ones(mask.shape, dtype=np.float32)
        if advantage < 0 and mask.any():
            gaps = log_ratio(np.asarray(sampler_logprobs)[mask], np.asarray(logprobs)[mask])
            weights[mask] = gaps.mean() <= self.threshold
        return weights


def tokens_corrected(
    correction: ArrayLike | None, learner_logprobs: ArrayLike, sampler_logprobs: ArrayLike, loss_mask: ArrayLike
) -> NDArray[np.bool_]:
    """Return the loss tokens of one response that a bound acted on: cut down by a cap, or masked. bool [tokens].

    Those are the tokens whose w is neither their own ratio nor that of the whole response.

    Args:
        correction: what ``importance_correction`` returned; None: no token.
        learner_logprobs: [tokens], as given there.
        sampler_logprobs: [tokens], as given there.
        loss_mask: bool [tokens], as given there.
    """
    mask = np.asarray(loss_mask, dtype=np.bool_)
    acted = np.zeros(mask.shape, dtype=np.bool_)
    if correction is None:
        return acted
    log_ratios = log_ratio(np.asarray(learner_logprobs)[mask], np.asarray(sampler_logprobs)[mask])
    w = np.asarray(correction, dtype=np.float32)[mask]
    acted[mask] = (w != np.exp(log_ratios).astype(np.float32)) & (w != np.float32(_product(log_ratios)))
    return acted
