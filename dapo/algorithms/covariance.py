"""Which tokens change the entropy most: those where log-probability and advantage go together (arXiv 2505.22617)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray


def covariance_marks(
    logprobs_R: Sequence[ArrayLike],
    advantages_R: ArrayLike,
    loss_masks_R: Sequence[ArrayLike],
    *,
    kind: Literal["clip_cov", "kl_cov"],
    share: float,
    above: float = -math.inf,
    below: float = math.inf,
    draws_R: Sequence[ArrayLike] | None = None,
) -> list[NDArray[np.bool_]]:
    """The tokens of one optimiser step that ``clip_cov_loss`` silences or ``kl_cov_loss`` holds back.

    Of each loss token c = (log p - mean of log p) (A - mean of A), the means over all N loss tokens of the step (eq.
    10). ``kl_cov`` marks the max(1, int(``share`` N)) tokens with the largest c; ``clip_cov`` as many at random of
    those with ``above`` < c < ``below``. The driver computes them over the whole optimiser step, from the recorded
    log-probabilities of the sampler, so that no split into micro-batches or ranks changes them; verl takes the policy's
    present ones, and a micro-batch at a time.

    Args:
        logprobs_R: [tokens] per response, nats.
        advantages_R: one per response.
        loss_masks_R: bool [tokens] per response.
        kind: which of the two.
        share: of the loss tokens.
        above: lower bound of c, for ``clip_cov``.
        below: upper bound of c, for ``clip_cov``.
        draws_R: uniform numbers [tokens] per response: of the candidates, those with the smallest are taken.

    Returns:
        One bool array [tokens] per response.

    Raises:
        ValueError: ``clip_cov`` without ``draws_R``.
    """
    masks = [np.asarray(mask, dtype=np.bool_) for mask in loss_masks_R]
    mask = np.concatenate([*masks, np.zeros(0, np.bool_)])
    marked = np.zeros(mask.shape, dtype=np.bool_)
    count = int(mask.sum())
    if count:
        lengths = [len(own) for own in masks]
        logprobs = np.concatenate([np.asarray(own, np.float64) for own in logprobs_R])[mask]
        advantages = np.repeat(np.asarray(advantages_R, np.float64), lengths)[mask]
        covariance = (logprobs - logprobs.mean()) * (advantages - advantages.mean())
        chosen = max(1, int(share * count))
        if kind == "kl_cov":
            order = np.argsort(-covariance, kind="stable")
        elif draws_R is None:
            raise ValueError("clip_cov chooses at random: give draws_R, uniform numbers for every token")
        else:
            draws = np.concatenate([np.asarray(own, np.float64) for own in draws_R])[mask]
            candidates = np.flatnonzero((covariance > above) & (covariance < below))
            order = candidates[np.argsort(draws[candidates], kind="stable")]
        own = np.zeros(count, dtype=np.bool_)
        own[order[:chosen]] = True
        marked[mask] = own
    return [np.asarray(part) for part in np.split(marked, np.cumsum([len(own) for own in masks])[:-1])]
