"""The best value of a metric so far: which checkpoint is kept for it, and when there has been none better for long."""

from __future__ import annotations

import math
from typing import Any

from dapo.config.check_stopping import Direction, is_highest
from dapo.types.batch import Metrics


class Best:
    """Follows one metric through the lines of a run that have it.

    Attributes:
        metric: its key.
        value: the best one; nan: none was seen.
        step: that had it; the earliest of equal ones.
        since: lines with the metric behind that step.
    """

    def __init__(self, metric: str, *, highest: bool, least: float = 0.0) -> None:
        """``least``: a value counts as better when it is so by more than this."""
        self.metric, self._highest, self._least = metric, highest, least
        self.value, self.step, self.since = math.nan, -1, 0

    def seen(self, step: int, metrics: Metrics) -> bool:
        """Whether the line of ``step`` is better than all before. One without the metric, or with nan, says nothing."""
        value = float(metrics.get(self.metric, math.nan))
        if not math.isfinite(value):
            return False
        gain = (value - self.value) * (1 if self._highest else -1)
        if not math.isnan(self.value) and not gain > self._least:
            self.since += 1
            return False
        self.value, self.step, self.since = value, step, 0
        return True

    def state(self) -> dict[str, Any]:
        return {"metric": self.metric, "value": self.value, "step": self.step, "since": self.since}

    def load(self, state: dict[str, Any] | None) -> None:
        """Go on from ``state``; one of another metric, or none, says nothing of this one."""
        if state and state["metric"] == self.metric:
            self.value, self.step, self.since = float(state["value"]), int(state["step"]), int(state["since"])


def follow(metric: str | None, direction: Direction, least: float = 0.0) -> Best | None:
    """As the recipe asks for it; None where it names no metric."""
    return None if metric is None else Best(metric, highest=is_highest(metric, direction), least=least)
