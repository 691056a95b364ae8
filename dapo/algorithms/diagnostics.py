"""Lengths by correctness, a run's diagnostics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray


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
