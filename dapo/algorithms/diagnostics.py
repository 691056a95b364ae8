"""What a run should know about itself: the sampler-learner gap, and lengths by correctness."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dapo.algorithms.ratio import log_ratio


def sampler_gap(learner_logprobs: ArrayLike, sampler_logprobs: ArrayLike, mask: ArrayLike) -> dict[str, float]:
    """Sums over the chosen tokens that describe how far learner and sampler are apart; ``merge_gaps`` adds them up.

    Args:
        learner_logprobs: [tokens], under the weights that sampled.
        sampler_logprobs: [tokens], as recorded when sampling.
        mask: bool [tokens], the tokens to look at (those of the current version, say).

    Returns:
        ``tokens``, how many; ``abs_sum``, the sum of |learner - sampler| in nats; ``k3_sum``, the sum of r - 1 - log r
        with r = p_learner / p_sampler, whose mean is the k3 estimate of KL(sampler || learner): unbiased and never
        negative; ``max``, the largest |learner - sampler| in nats. Differences are clamped to +-20.
    """
    chosen = np.asarray(mask, dtype=np.bool_)
    gap = log_ratio(np.asarray(learner_logprobs)[chosen], np.asarray(sampler_logprobs)[chosen])
    return {
        "tokens": float(gap.size),
        "abs_sum": float(np.abs(gap).sum()),
        "k3_sum": float((np.expm1(gap) - gap).sum()),
        "max": float(np.abs(gap).max(initial=0.0)),
    }


def merge_gaps(gaps: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Many results of ``sampler_gap`` as one: ``tokens``, ``mean_abs``, ``k3``, ``max``. All 0 without a token."""
    tokens, abs_sum, k3_sum, largest = 0.0, 0.0, 0.0, 0.0
    for gap in gaps:
        tokens += gap["tokens"]
        abs_sum += gap["abs_sum"]
        k3_sum += gap["k3_sum"]
        largest = max(largest, gap["max"])
    return {"tokens": tokens, "mean_abs": abs_sum / max(tokens, 1.0), "k3": k3_sum / max(tokens, 1.0), "max": largest}


def length_quantiles(
    lengths: ArrayLike, correct: ArrayLike, quantiles: Sequence[float] = (0.1, 0.5, 0.9)
) -> dict[str, NDArray[np.float64]]:
    """Quantiles of response length by correctness.

    Args:
        lengths: [responses], tokens.
        correct: bool [responses].
        quantiles: in [0, 1].

    Returns:
        ``all``, ``correct`` and ``wrong``, each float64 [quantiles] (linear interpolation); nan where there is none.
    """
    lengths, correct = np.asarray(lengths), np.asarray(correct, dtype=np.bool_)
    chosen = {"all": lengths, "correct": lengths[correct], "wrong": lengths[~correct]}
    return {
        name: np.quantile(values, quantiles) if values.size else np.full(len(quantiles), np.nan)
        for name, values in chosen.items()
    }
