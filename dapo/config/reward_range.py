"""The range of the weighted sum of rewards, for the interval that reward scaling clamps it to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dapo.config.check_data import source_name
from dapo.config.schema import Recipe, Reward

ROUNDING = 1e-9
"""Sums of weights such as 0.7 + 0.2 + 0.1 are 1 to within this."""


@dataclass(frozen=True, slots=True)
class SumRange:
    """Range of the weighted sum of the rewards of one data source."""

    source: str
    low: float
    high: float
    functions: tuple[str, ...] = ()  # rewards whose values nobody knows before; taken as 0 to 1

    def leaves(self, low: float, high: float) -> bool:
        """Whether some sum lies outside [low, high]."""
        return self.low < low - ROUNDING or self.high > high + ROUNDING


def sum_ranges(recipe: Recipe, *, functions: bool) -> Iterator[SumRange]:
    """Yield the range of each training source.

    Every built-in reward lies in [0, 1], and so does whatever is called ``accuracy``. Other values of a function of the
    user's, or of a service, are not known before it is called.

    Args:
        recipe: its rewards and training sources.
        functions: take such a function's values as 0 to 1; False: leave them out, so that what the range reaches is
            certain to be reachable.
    """
    for source in dict.fromkeys(source_name(s) for s in recipe.data.train):
        rewards = [r for r in recipe.rewards if r.weight and (r.sources is None or source in r.sources)]
        unknown = [r for r in rewards if _unbounded(r)]
        weights = [r.weight for r in rewards if functions or r not in unknown]
        yield SumRange(
            source,
            low=sum(w for w in weights if w < 0),
            high=sum(w for w in weights if w > 0),
            functions=tuple(r.name for r in unknown),
        )


def overflow(recipe: Recipe, *, functions: bool) -> SumRange | None:
    """Return the smallest range that holds all sums if some source's leave the scaling's; ``source`` names those
    sources. None if none do, or nothing is scaled."""
    algorithm = recipe.algorithm
    scaling = algorithm.reward_scaling
    if not scaling.enabled or algorithm.shaping is not None:
        return None
    ranges = list(sum_ranges(recipe, functions=functions))
    outside = [r for r in ranges if r.leaves(scaling.source_min, scaling.source_max)]
    if not outside:
        return None
    return SumRange(
        ", ".join(f"`{r.source}`" for r in outside),
        low=min(scaling.source_min, *(r.low for r in ranges)),
        high=max(scaling.source_max, *(r.high for r in ranges)),
        functions=tuple(dict.fromkeys(name for r in ranges for name in r.functions)),
    )


def fitting(recipe: Recipe, found: SumRange) -> str:
    """Return the settings that hold the sums: ``algorithm.reward_scaling.source_max=1.5``."""
    scaling = recipe.algorithm.reward_scaling
    bounds = (("source_min", scaling.source_min, found.low), ("source_max", scaling.source_max, found.high))
    return " and ".join(f"algorithm.reward_scaling.{name}={new:.10g}" for name, old, new in bounds if new != old)


def _unbounded(reward: Reward) -> bool:
    return reward.kind in ("function", "service", "environment") and reward.name != "accuracy"


def weights_said(rewards: Sequence[Reward]) -> str:
    """``accuracy 1, concise 0.5``: the weights that are not zero."""
    return ", ".join(f"{r.name} {r.weight:g}" for r in rewards if r.weight)
