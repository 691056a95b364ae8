"""The built-in losses, advantages and proximal policies by their names in a recipe.

A published variant is one file in ``variants`` and one line here; its options are a class in
``dapo/config/schema/kinds.py``, named in the union there, whose fields are the keyword arguments of the function below.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.objective import Objective, clip_objective
from dapo.algorithms.variants.a3po import interpolated_logprobs
from dapo.algorithms.variants.cispo import cispo_objective
from dapo.algorithms.variants.covariance import clip_cov_objective, kl_cov_objective
from dapo.algorithms.variants.gdpo import gdpo_advantages
from dapo.algorithms.variants.sapo import sapo_objective

LOSSES: dict[str, Callable[..., Objective]] = {
    "clip": clip_objective,
    "cispo": cispo_objective,
    "sapo": sapo_objective,
    "clip_cov": clip_cov_objective,
    "kl_cov": kl_cov_objective,
}
"""``algorithm.loss.kind``: bounds of the clip that the kind reads and its options -> an objective."""

ADVANTAGES: dict[str, Callable[..., Any]] = {
    "group": group_advantages,
    "gdpo": gdpo_advantages,
}
"""``algorithm.advantage.kind``: rewards and voters of all groups, and their rewards one by one where there is a third
argument -> advantages."""

OLD_LOGPROBS: dict[str, Callable[..., Any]] = {
    "interpolated": interpolated_logprobs,
}
"""``algorithm.old_logprobs`` beside the sampler's and the learner's: both of these and the tokens' ages -> what the
ratio runs against."""
