"""Probability ratios, and the one bound on them that losses, correction and diagnostics share."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

LOG_RATIO_LIMIT = 20.0
"""Log-ratios are clamped to [-20, 20] (nats) before exp.

exp(20) is 4.9e8: far beyond any ratio that clipping lets through, and far from overflow in float32, so that a
single broken token (a log-probability of -inf, say) gives a large finite loss instead of inf or nan in all of them.
"""

LOG_RATIO_ROUNDING = 2.0**-11.5
"""Log-ratios up to 3.5e-4 nats may be rounding: the square root of float32's epsilon, half of its digits.

Log-probabilities are computed and recorded in float32. Two passes over the same tokens with the same weights, packed
and padded or engine and learner, differ by 1e-7 to 1e-5 nats; a policy that has been updated, by 1e-3 and more.
bfloat16 rounds far more (0.01 nats), and no bound tells that from a change of the policy.
"""


def log_ratio(new_logprobs: ArrayLike, old_logprobs: ArrayLike) -> NDArray[np.float64]:
    """log(p_new / p_old) of each token in nats, clamped to +-``LOG_RATIO_LIMIT``; float64, any shape."""
    difference = np.subtract(new_logprobs, old_logprobs, dtype=np.float64)
    return np.clip(difference, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)


def interpolated_logprobs(
    learner: NDArray[np.floating], sampler: NDArray[np.floating], ages: NDArray[np.integer]
) -> NDArray[np.floating]:
    """Log-probabilities of the proximal policy, guessed from the learner's and the sampler's by the age of the tokens.

    A-3PO (Li, Wu, Shen, "Staleness-aware Proximal Policy Approximation", arXiv:2512.06547, and AReaL's
    ``prox_logp_method: loglinear``): with a token of age d, sampled by the weights of version v - d,

        log p_prox = log p_sampler + a (log p_learner - log p_sampler),    a = (d - 1) / d, and 0 for d = 0

    which takes the proximal policy for one version behind the present one, v, and log p for linear in between. It
    saves the forward pass that ``learner`` makes. At age 0 and 1 it is the sampler's own number.

    Args:
        learner: log-probabilities [tokens] under the present weights, in nats; a constant: no gradient goes here.
        sampler: as recorded [tokens].
        ages: versions [tokens] between the weights that sampled a token and those of this training step, >= 0.

    Returns:
        [tokens], float32.
    """
    share = np.where(ages > 0, (ages - 1) / np.maximum(ages, 1), 0.0)
    with np.errstate(invalid="ignore"):  # of a broken number that is not taken
        found = sampler + share * np.subtract(learner, sampler, dtype=np.float64)
    return np.where(share > 0, found, sampler).astype(np.float32)
