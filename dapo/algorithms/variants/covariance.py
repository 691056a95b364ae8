"""Clip-Cov and KL-Cov (arXiv 2505.22617): losses that treat the tokens apart that change the entropy most.

Those are the tokens where log-probability and advantage go together. The driver marks them over a whole optimiser step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from dapo.algorithms.losses import LossInputs, at_loss_tokens, clipped_loss, token_log_ratios
from dapo.algorithms.objective import Objective, StepRow
from dapo.algorithms.ratio import LOG_RATIO_LIMIT, LOG_RATIO_ROUNDING

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor

MARKED = "marked"
"""Name of the marks among a row's extra arrays."""


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
    """Mark the tokens of one optimiser step that ``clip_cov_loss`` silences or ``kl_cov_loss`` holds back.

    Of each loss token c = (log p - mean of log p) (A - mean of A), the means over all N loss tokens of the step (eq.
    10). ``kl_cov`` marks the max(1, int(``share`` N)) tokens with the largest c; ``clip_cov`` as many at random of
    those with ``above`` < c < ``below``. The driver computes them over the whole optimiser step, from the recorded
    log-probabilities of the sampler, so that no split into micro-batches or ranks changes them; verl takes the policy's
    present ones, and a micro-batch at a time. It leaves out of its draw what the clip has silenced (docs/losses.md).

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


def clip_cov_loss(
    inputs: LossInputs, *, low: float, high: float
) -> tuple[Float[Tensor, " tokens"], dict[str, Bool[Tensor, " tokens"]]]:
    """Clip-Cov (arXiv 2505.22617, eq. 12): ``clipped_loss``, and 0 in the marked tokens (see ``covariance_marks``).

    Args:
        inputs: see ``LossInputs``, with the marks among its extra arrays.
        low: eps_low.
        high: eps_high.

    Returns:
        (L, flags) as ``clipped_loss``, and the flag ``covariance``: the marked tokens.
    """
    loss, flags = clipped_loss(inputs, low=low, high=high)
    marked = inputs.extra[MARKED] & inputs.loss_mask
    return torch.where(marked, 0.0, loss), {**flags, "covariance": marked}


def kl_cov_loss(
    inputs: LossInputs, *, coefficient: float = 1.0
) -> tuple[Float[Tensor, " tokens"], dict[str, Bool[Tensor, " tokens"]]]:
    """Compute KL-Cov (arXiv 2505.22617, eq. 14): L = -r A, in the marked tokens + coefficient |log r|. No clip.

    |log r| counts as 0 up to ``LOG_RATIO_ROUNDING``. On tokens of the present weights log r is rounding: the slope of
    |log r| is the sign of that rounding, so the penalty would have a gradient of full size in a random direction.

    Args:
        inputs: see ``LossInputs``, with the marks among its extra arrays.
        coefficient: of the penalty.

    Returns:
        (L, flags): the flag ``covariance`` names the marked tokens.
    """
    log_ratios = token_log_ratios(inputs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    marked = inputs.extra[MARKED] & inputs.loss_mask
    loss = -log_ratios.exp() * at_loss_tokens(inputs, inputs.advantages)
    moved = marked & (log_ratios.abs() > LOG_RATIO_ROUNDING)
    return loss + torch.where(moved, coefficient * log_ratios.abs(), 0.0), {"covariance": marked}


def clip_cov_objective(
    *, low: float, high: float, share: float = 2e-4, above: float = 1.0, below: float = 5.0
) -> Objective:
    """``clip_cov_loss`` with its settings, and its marks."""
    return Objective(
        partial(clip_cov_loss, low=low, high=high),
        reads={MARKED: "response"},
        extra=partial(_marks, kind="clip_cov", share=share, above=above, below=below),
        zero_advantage_is_free=True,
        by_token=True,
    )


def kl_cov_objective(*, coefficient: float = 1.0, share: float = 2e-4) -> Objective:
    """``kl_cov_loss`` with its settings, and its marks.

    A marked token may have advantage 0 and a gradient all the same.
    """
    return Objective(
        partial(kl_cov_loss, coefficient=coefficient),
        reads={MARKED: "response"},
        extra=partial(_marks, kind="kl_cov", share=share),
        by_token=True,
    )


def _marks(
    rows: Sequence[StepRow],
    seeds: Sequence[int],
    *,
    kind: Literal["clip_cov", "kl_cov"],
    share: float,
    above: float = -math.inf,
    below: float = math.inf,
) -> list[dict[str, NDArray[np.bool_]]]:
    """Mark the tokens of one optimiser step; ``seeds``: of each response."""
    draws = None
    if kind == "clip_cov":
        draws = [np.random.default_rng(s).random(len(row.token_ids)) for s, row in zip(seeds, rows, strict=True)]
    marks = covariance_marks(
        [row.sampler_logprobs for row in rows],
        [row.advantage for row in rows],
        [row.loss_mask for row in rows],
        kind=kind,
        share=share,
        above=above,
        below=below,
        draws_R=draws,
    )
    return [{MARKED: marked} for marked in marks]
