"""SAPO (arXiv 2511.20347): a soft gate in place of the clip."""

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


def sapo_loss(
    inputs: LossInputs, *, positive: float = 1.0, negative: float = 1.05
) -> tuple[Float[Tensor, " tokens"], dict[str, Bool[Tensor, " tokens"]]]:
    """SAPO (arXiv 2511.20347): L = -(4 / tau) sigmoid(tau (r - 1)) A, a gate in place of the clip.

    The gradient is that of -r A at r = 1 and fades out on both sides, the faster the larger tau.

    Args:
        inputs: see ``LossInputs``.
        positive: tau where A > 0.
        negative: tau elsewhere; larger, since what is pushed down lifts everything else.

    Returns:
        (L, {}) as ``clipped_loss``: no token is cut off.
    """
    advantages = at_loss_tokens(inputs, inputs.advantages)
    ratios = token_log_ratios(inputs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()
    steepness = torch.where(advantages > 0, positive, negative).to(ratios)
    return -torch.sigmoid(steepness * (ratios - 1)) * (4 / steepness) * advantages, {}


def sapo_objective(*, positive: float = 1.0, negative: float = 1.05) -> Objective:
    """``sapo_loss`` with its settings."""
    return Objective(
        partial(sapo_loss, positive=positive, negative=negative), zero_advantage_is_free=True, by_token=True
    )
