"""Token losses: the clipped surrogate (DAPO, GRPO, GSPO), and what other losses are made of.

A loss returns L of every token, unreduced; the learner multiplies by the token weights of ``reduction.py`` and the
importance correction of ``correction.py``, and sums. Published variants are in ``variants``, a file each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from dapo.algorithms.ratio import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    # Read by type checkers and, through tests/conftest.py, checked on every call while tests run. Production does
    # not need jaxtyping. (The blank in " tokens" keeps linters from taking the shape for a forward reference.)
    from jaxtyping import Bool, Float, Int64
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class LossInputs:
    """The tokens of some whole responses, laid end to end; no padding. Log-probabilities are in nats."""

    logprobs: Float[Tensor, " tokens"]  # of the policy, at the sampling temperature; carries the gradient
    old_logprobs: Float[Tensor, " tokens"]  # what the ratio runs against
    advantages: Float[Tensor, " tokens"]
    loss_mask: Bool[Tensor, " tokens"]  # tokens that carry loss; what stands in the others is never read
    rows: Int64[Tensor, " tokens"]  # response of each token, 0 .. num_rows - 1; parts of one have the same number
    num_rows: int
    entropy: Float[Tensor, " tokens"] | None = None  # nats; carries a gradient where the objective needs it
    reference_logprobs: Float[Tensor, " tokens"] | None = None  # of the reference model, where the objective needs it
    teacher_logprobs: Float[Tensor, " tokens"] | None = None  # nan: no teacher judges the token
    extra: Mapping[str, Tensor] = field(default_factory=dict)  # [tokens, ...] each, as the objective's ``reads`` has it


def clipped_loss(
    inputs: LossInputs,
    *,
    low: float,
    high: float,
    dual: float | None = None,
    ratio: Literal["token", "sequence"] = "token",
) -> tuple[Float[Tensor, " tokens"], dict[str, Bool[Tensor, " tokens"]]]:
    """Clipped surrogate with decoupled bounds: L = -min(r A, clip(r, 1 - low, 1 + high) A) (DAPO eq. 8).

    Equal bounds are PPO's and GRPO's clip. ``dual`` (dual clip, arXiv 1912.09729; not in the DAPO paper, 10 in its
    scripts) bounds the loss where A < 0: L = min(L, -A dual).

    Args:
        inputs: see ``LossInputs``.
        low: eps_low.
        high: eps_high.
        dual: c > 1, or None.
        ratio: ``token``: r = exp(logp - old). ``sequence``: GSPO's (arXiv 2507.18071), one value per response with the
            gradient spread over its tokens: s = exp(mean of the log-ratio over its loss tokens), and
            r_t = sg(s) exp(logp_t - sg(logp_t)). A response must not be split between two calls then.

    Returns:
        (L, flags): L [tokens], 0 where ``loss_mask`` is False; flags, bool [tokens] each: ``clip_low`` (A < 0 and the
        ratio below 1 - low), ``clip_high`` (A > 0 and the ratio above 1 + high), ``clip_dual`` (A < 0 and the ratio
        above ``dual``), which are exactly the tokens whose gradient the clip takes away.

    Raises:
        ValueError: ``dual`` not above 1, or an unknown ``ratio``.
    """
    if dual is not None and dual <= 1:
        raise ValueError(f"dual clip needs c > 1, got {dual}; None switches it off")
    if ratio not in ("token", "sequence"):
        raise ValueError(f"unknown ratio {ratio!r}; expected 'token' or 'sequence'")
    advantages = at_loss_tokens(inputs, inputs.advantages)
    log_ratios = token_log_ratios(inputs) if ratio == "token" else _sequence_log_ratios(inputs)
    ratios = log_ratios.clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT).exp()

    loss = -torch.minimum(ratios * advantages, ratios.clamp(1 - low, 1 + high) * advantages)
    flags = {
        "clip_low": (advantages < 0) & (ratios < 1 - low),
        "clip_high": (advantages > 0) & (ratios > 1 + high),
        "clip_dual": torch.zeros_like(inputs.loss_mask),
    }
    if dual is not None:
        loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual), loss)
        flags["clip_dual"] = (advantages < 0) & (ratios > dual)
    return loss, flags


def at_loss_tokens(inputs: LossInputs, values: Float[Tensor, " tokens"]) -> Float[Tensor, " tokens"]:
    """Return values where a token carries loss, 0 elsewhere: not even a nan there may reach the sum or the gradient."""
    return torch.where(inputs.loss_mask, values, 0.0)


def token_log_ratios(inputs: LossInputs) -> Float[Tensor, " tokens"]:
    """Return log(p_new / p_old) of each token, 0 where no loss is carried; not clamped."""
    return at_loss_tokens(inputs, inputs.logprobs - inputs.old_logprobs)


def _sequence_log_ratios(inputs: LossInputs) -> Float[Tensor, " tokens"]:
    """log r_t = sg(mean of the row's log-ratio) + logp_t - sg(logp_t): the row's value, the token's gradient."""
    log_ratios = token_log_ratios(inputs).detach()
    sums = log_ratios.new_zeros(inputs.num_rows).index_add(0, inputs.rows, log_ratios)
    counts = log_ratios.new_zeros(inputs.num_rows).index_add(0, inputs.rows, inputs.loss_mask.to(log_ratios.dtype))
    means = sums / counts.clamp(min=1.0)
    logprobs = at_loss_tokens(inputs, inputs.logprobs)
    return means[inputs.rows] + (logprobs - logprobs.detach())


def imitation_loss(inputs: LossInputs) -> tuple[Tensor, dict[str, Tensor]]:
    """L = -log p of every token [tokens], whatever advantage and old policy: supervised training.

    With weights 1 / N the step's loss is the mean cross-entropy, and dL/dlog p = -1 / N.
    """
    return -inputs.logprobs, {}
