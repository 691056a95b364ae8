"""CISPO (arXiv 2506.13585): the ratio is bounded, and no token loses its gradient."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import torch

from dapo.algorithms.losses import LossInputs, at_loss_tokens, token_log_ratios
from dapo.algorithms.objective import Objective
from dapo.algorithms.ratio import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from jaxtyping import Bool, Float
    from torch import Tensor


def cispo_loss(
    inputs: LossInputs, *, cap: float = 5.0, floor: float | None = None
) -> tuple[Float[Tensor, " tokens"], dict[str, Bool[Tensor, " tokens"]]]:
    """CISPO (arXiv 2506.13585): L = -sg(min(r, cap)) A logp. The ratio is bounded, and no token loses its gradient.

    Args:
        inputs: see ``LossInputs``.
        cap: upper bound of the ratio itself, not of its distance from 1.
        floor: lower bound of the ratio; None: none.

    Returns:
        (L, flags) as ``clipped_loss``; ``clip_high`` marks loss tokens with a ratio above ``cap``, ``clip_low`` those
        below ``floor``, whatever the sign of the advantage; ``clip_dual`` is all False.
    """
    advantages = at_loss_tokens(inputs, inputs.advantages)
    ratios = token_log_ratios(inputs).detach().clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    loss = -ratios.clamp(min=floor, max=cap) * advantages * at_loss_tokens(inputs, inputs.logprobs)
    never = torch.zeros_like(inputs.loss_mask)
    flags = {
        "clip_low": never if floor is None else inputs.loss_mask & (ratios < floor),
        "clip_high": inputs.loss_mask & (ratios > cap),
        "clip_dual": never,
    }
    return loss, flags


def cispo_objective(*, cap: float = 5.0, floor: float | None = None) -> Objective:
    """``cispo_loss`` with its settings."""
    return Objective(partial(cispo_loss, cap=cap, floor=floor), zero_advantage_is_free=True, by_token=True)
