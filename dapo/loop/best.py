"""The best value of a metric so far: which checkpoint is kept for it, and when there has been none better for long."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from dapo.config.check_stopping import Direction, is_highest
from dapo.types.batch import Metrics
from dapo.types.codec import NOT_SAVED, fill


@dataclass(slots=True)
class Best:
    """Follows one metric through the lines of a run that have it."""

    metric: str
    highest: bool = field(metadata=NOT_SAVED)  # whether more is better
    least: float = field(default=0.0, metadata=NOT_SAVED)  # a value is better when it is so by more than this
    value: float = math.nan  # the best one; nan: none was seen
    step: int = -1  # that had it; the earliest of equal ones
    since: int = 0  # lines with the metric behind that step

    def seen(self, step: int, metrics: Metrics) -> bool:
        """Whether the line of ``step`` is better than all before. One without the metric, or with nan, says nothing."""
        value = float(metrics.get(self.metric, math.nan))
        if not math.isfinite(value):
            return False
        gain = (value - self.value) * (1 if self.highest else -1)
        if not math.isnan(self.value) and not gain > self.least:
            self.since += 1
            return False
        self.value, self.step, self.since = value, step, 0
        return True


def go_on(best: Best | None, saved: Any) -> None:
    """Go on from the tree of the one that was saved. One of another metric, or None, says nothing of this one."""
    if best and saved and saved["metric"] == best.metric:
        fill(best, saved)


def follow(metric: str | None, direction: Direction, least: float = 0.0) -> Best | None:
    """As the recipe asks for it; None where it names no metric."""
    return None if metric is None else Best(metric, highest=is_highest(metric, direction), least=least)
