"""KL of the policy against a reference, and the objective's two terms that act on every token: KL and entropy. KL is
estimated from the sampled tokens (Schulman 2020, "Approximating KL divergence")."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, get_args

import torch

from dapo.algorithms.ratio import LOG_RATIO_LIMIT

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

KlEstimator = Literal["k1", "k2", "k3"]


def kl_estimate(
    logprobs: Float[Tensor, " tokens"], reference_logprobs: Float[Tensor, " tokens"], estimator: KlEstimator
) -> Float[Tensor, " tokens"]:
    """Return an estimate of KL(policy || reference) from each token, in nats; the gradient is that of the policy's
    side.

    With d = log reference - log policy, clamped to [-20, 20]:

    ==  =================  ==================================================================================
    k1  -d                 unbiased as a value; its gradient is that of log p, whose mean on-policy is zero
    k2  d^2 / 2            biased as a value; its mean gradient on-policy is that of KL(policy || reference)
    k3  exp(d) - 1 - d     unbiased and never negative; its mean gradient on-policy is that of
                           KL(reference || policy)
    ==  =================  ==================================================================================

    verl's ``kl``, ``mse`` and ``low_var_kl`` are these three; it clamps d as here for k3 alone, and k3 itself to 10.
    TRL's is k3 without a clamp, times the ratio where its ``use_bias_correction_kl`` is on.

    Args:
        logprobs: [tokens] of the policy.
        reference_logprobs: [tokens] of the reference; a constant.
        estimator: a name from the table.

    Raises:
        ValueError: unknown estimator.
    """
    if estimator not in get_args(KlEstimator):
        raise ValueError(f"unknown KL estimator {estimator!r}; expected one of {', '.join(get_args(KlEstimator))}")
    difference = (reference_logprobs.detach() - logprobs).clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    match estimator:
        case "k1":
            return -difference
        case "k2":
            return 0.5 * difference.square()
        case "k3":
            return torch.expm1(difference) - difference
