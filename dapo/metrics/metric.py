"""A logged number: a line of the glossary, with the way in which its parts merge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Better = Literal["higher", "lower"] | None
Reduction = Literal["mean", "sum", "max", "min"]

COUNT, SHARE, TOKENS, SECONDS, NATS = "count", "share", "tokens", "seconds", "nats"


@dataclass(frozen=True, slots=True)
class Metric:
    """Meaning of one logged number."""

    key: str
    unit: str
    meaning: str  # one line
    better: Better = None  # the direction that is good in an ordinary run; None: neither, or it depends
    clock: bool = False  # time, memory, work done again: differs between two runs that are otherwise equal to the bit
    reduction: Reduction = "mean"  # how parts merge, where a number is made of parts (see dapo.metrics.stats)


COMPUTING = ("generate", "learn", "publish", "evaluate")
"""Phases that compute on the device."""
