"""A-3PO (arXiv 2512.06547): a proximal policy without a forward pass; AReaL's ``prox_logp_method: loglinear``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def interpolated_logprobs(
    learner: NDArray[np.floating], sampler: NDArray[np.floating], ages: NDArray[np.integer]
) -> NDArray[np.floating]:
    """Return log-probabilities of the proximal policy, from the learner's and the sampler's by the age of the tokens.

    With a token of age d, sampled by the weights of version v - d,

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
