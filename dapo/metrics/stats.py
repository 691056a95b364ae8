"""Numbers that can be put together: what one micro-batch, one rank or one optimiser step says of a metric.

A mean travels as its sum and its count, so that parts of unequal size merge exactly; which of the four a key is stands
in the glossary (``Metric.reduction``) and nowhere else. ``stat`` and ``over`` make one, ``merge`` puts many together,
``values`` reads them off.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dapo.metrics.glossary import reduction_of
from dapo.types.batch import Metrics


@dataclass(frozen=True, slots=True)
class Mean:
    """A sum and how many numbers are in it; nan without any."""

    sum: float
    count: float

    def __add__(self, other: Mean) -> Mean:
        return Mean(self.sum + other.sum, self.count + other.count)

    @property
    def value(self) -> float:
        return self.sum / self.count if self.count else math.nan


@dataclass(frozen=True, slots=True)
class Sum:
    value: float

    def __add__(self, other: Sum) -> Sum:
        return Sum(self.value + other.value)


@dataclass(frozen=True, slots=True)
class Max:
    value: float

    def __add__(self, other: Max) -> Max:
        return Max(max(self.value, other.value))


@dataclass(frozen=True, slots=True)
class Min:
    value: float

    def __add__(self, other: Min) -> Min:
        return Min(min(self.value, other.value))


Stat = Mean | Sum | Max | Min
Stats = dict[str, Stat]
"""By metric key."""


def stat(key: str, value: float, count: float = 1) -> Stats:
    """One number under its key, as its glossary line says how it is merged.

    Args:
        key: of the glossary.
        value: the number; for a mean, the sum of ``count`` numbers.
        count: for a mean. A part of something that is counted elsewhere adds to the sum with 0.
    """
    kind = reduction_of(key)
    made: Stat
    match kind:
        case "mean":
            made = Mean(float(value), float(count))
        case "sum":
            made = Sum(float(value))
        case "max":
            made = Max(float(value))
        case "min":
            made = Min(float(value))
    return {key: made}


def over(key: str, numbers: NDArray) -> Stats:
    """Return the statistic of many numbers [n], summed in float64; a maximum or minimum of none is left out."""
    match reduction_of(key):
        case "max":
            return stat(key, float(numbers.max())) if numbers.size else {}
        case "min":
            return stat(key, float(numbers.min())) if numbers.size else {}
    return stat(key, float(np.sum(numbers, dtype=np.float64)), numbers.size)


def merge(parts: Iterable[Mapping[str, Stat]]) -> Stats:
    """All parts as one; a key that a part lacks is what the others say.

    Raises:
        TypeError: a key is a mean in one part and a sum, say, in another.
    """
    out: Stats = {}
    for part in parts:
        for key, value in part.items():
            before = out.get(key)
            if before is None:
                out[key] = value
            elif type(before) is type(value):
                out[key] = before + value  # type: ignore[operator]
            else:
                raise TypeError(
                    f"{key} is a {type(before).__name__} in one part and a {type(value).__name__} in another"
                )
    return out


def values(stats: Mapping[str, Stat]) -> Metrics:
    """Return the value of each statistic."""
    return {key: found.value for key, found in stats.items()}
