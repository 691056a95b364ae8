"""Counters of a pool over its engines' work."""

from __future__ import annotations

import time
from collections import Counter

from dapo.types.batch import Metrics

MOST_SPANS = 2000
"""Turns of an engine that are kept until a reader asks for them."""


class Tally:
    """Turns and losses.

    Attributes:
        busy: seconds within turns, of all engines together, from the beginning on.
    """

    def __init__(self) -> None:
        self.busy = 0.0
        self._turns: list[float] = []  # seconds of each, since ``metrics``
        self._spans: dict[str, list[tuple[float, float]]] = {}  # start and seconds by engine, since ``take_spans``
        self.last: dict[str, tuple[float, float]] = {}  # end and seconds of each engine's last turn
        self._counts = Counter[str]()  # likewise

    def turn(self, engine: str, seconds: float) -> None:
        """Count a turn that came back just now."""
        now = time.time()
        self.last[engine] = (now, seconds)
        spans = self._spans.setdefault(engine, [])
        spans.append((now - seconds, seconds))
        del spans[:-MOST_SPANS]
        self.busy += seconds
        self._turns.append(seconds)

    def loss(self, resubmitted: int) -> None:
        """Count a lost engine and the responses that are made again."""
        self._counts.update(losses=1, resubmitted=resubmitted)

    def take_spans(self, engine: str) -> tuple[tuple[float, float], ...]:
        """Return start and seconds of the engine's turns since the last call, at most ``MOST_SPANS``."""
        return tuple(self._spans.pop(engine, ()))

    def metrics(self, engines: int) -> Metrics:
        """Return the metrics of a pool with so many engines at work, since the last call."""
        turns, self._turns = self._turns, []
        counts, self._counts = self._counts, Counter()
        return {
            "cluster/engines": float(engines),
            "cluster/engine_losses": float(counts["losses"]),
            "cluster/resubmitted": float(counts["resubmitted"]),
            "cluster/turns": float(len(turns)),
            "cluster/turn_seconds": sum(turns) / max(1, len(turns)),
        }
