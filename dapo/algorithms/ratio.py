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
