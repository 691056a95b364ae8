"""Measure how long engines and learner wait for each other, and how old the trained tokens are."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from dapo.metrics.glossary import ENGINES_BUSY, LEARNER_BUSY
from dapo.types.batch import Metrics, Row


class Idle:
    """Seconds of a step in which the learner, or the engines, had nothing to do.

    Args:
        engine: seconds in which the engines worked, since they were made (``Rollouts.busy_seconds``).
        clock: seconds.
        beside: ``Phases.beside`` on the same clock, where both work at the same time: it gets a span of each stretch.
    """

    def __init__(
        self,
        engine: Callable[[], float],
        clock: Callable[[], float] = time.perf_counter,
        beside: Callable[[str, float, float, float], None] | None = None,
    ) -> None:
        self._engine, self._clock, self._beside = engine, clock, beside
        self._learner = 0.0  # seconds of work since ``take``
        self._before = 0.0
        self._seen = 0.0  # of the engines' work

    @contextmanager
    def learner(self) -> Iterator[None]:
        """Count the time inside as work of the learner."""
        start = self._clock()
        try:
            yield
        finally:
            end = self._clock()
            self._learner += end - start
            if self._beside is not None:
                self._beside(LEARNER_BUSY, start, end, end - start)

    def look_at_engines(self) -> None:
        """Call when they may have answered: what they worked since the last look is a span that ends now."""
        busy = self._engine()
        worked, self._seen = busy - self._seen, busy
        if worked > 0.0 and self._beside is not None:
            now = self._clock()
            self._beside(ENGINES_BUSY, now - worked, now, worked)

    def take(self, seconds: float) -> Metrics:
        """Return the metrics of a step that took ``seconds``, and start again from zero."""
        learner, self._learner = self._learner, 0.0
        before, self._before = self._before, self._engine()
        return {
            "time/learner_idle": max(0.0, seconds - learner),
            "time/engine_idle": max(0.0, seconds - (self._before - before)),
        }


def staleness(rows_M: Sequence[Sequence[Row]], version: int) -> Metrics:
    """Versions by which the weights that made the tokens with loss are older than those that the step trains.

    Args:
        rows_M: of each minibatch.
        version: of the weights before the step.

    Returns:
        Mean, maximum, and the share of each age (``policy/staleness_share/<age>``).
    """
    made = [row.versions[row.loss_mask] for rows in rows_M for row in rows]
    ages = version - np.concatenate(made) if made else np.zeros(0, dtype=np.int64)
    if not ages.size:
        return {"policy/staleness_mean": math.nan, "policy/staleness_max": math.nan}
    values, counts = np.unique(ages, return_counts=True)
    return {
        "policy/staleness_mean": float(ages.mean()),
        "policy/staleness_max": int(ages.max()),
        **{f"policy/staleness_share/{age}": float(n / ages.size) for age, n in zip(values, counts, strict=True)},
    }
