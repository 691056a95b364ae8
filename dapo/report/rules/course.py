"""Metrics of a run as the rules read them: at its beginning, at its end, and at their worst."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dapo.observe.evaluations import read_held_out
from dapo.observe.held_out import AccuracyPoint, HeldOut, accuracy_of, chance_between, chance_of, pass_difference
from dapo.observe.metrics import Row, series
from dapo.report.page_data import Advice
from dapo.report.reader import RunContents
from dapo.report.status import checkpoint_steps

Severity = Literal["bad", "warn", "note"]
FEWER_UPDATES = "fewer optimiser steps a batch (a larger learner.minibatch_prompts, fewer learner.epochs_per_rollout)"
RANK: dict[Severity, int] = {"bad": 0, "warn": 1, "note": 2}

FEWEST, MOST, SHARE = 3, 20, 5
"""Beginning and end of a run are a fifth of its steps each, at least 3 and at most 20: one step's number is noise."""


Span = tuple[int, int]
"""First and last step of what was found."""


class WorstStretch(NamedTuple):
    """The worst stretch of a metric: its mean there, and the steps on the wrong side of a bound."""

    mean: float
    span: Span


def learner_restarts(run: RunContents) -> int:
    """Return how often the learner of a run was started again since its last command began."""
    return max((process["restarts"] for process in run.processes if process["role"] == "learner"), default=0)


class Facts:
    """A run's metrics as the rules read them. A number that was not measured, or is not finite, is not there."""

    def __init__(self, run: RunContents) -> None:
        self.run = run
        self.rows = [row for row in run.rows if row.get("step")]  # step 0 trains nothing
        self._series: dict[str, tuple[list[int], list[float]]] = {}

    @property
    def steps(self) -> int:
        """Training steps with a row."""
        return len(self.rows)

    @property
    def first_step(self) -> int:
        return int(self.rows[0]["step"]) if self.rows else 0

    @property
    def last_step(self) -> int:
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def whole(self) -> Span:
        """All training steps."""
        return self.first_step, self.last_step

    @cached_property
    def evaluations(self) -> list[AccuracyPoint]:
        """Held-out accuracies in order of steps, step 0 included."""
        points = (accuracy_of(row, self.held_out) for row in self.run.rows)
        return [point for point in points if point is not None]

    def held_out(self, step: int) -> HeldOut | None:
        """Return the problems of an evaluation; None where its file is missing or cannot be read."""
        return _held_out(self.run.folder.evaluation_file(step), self.run.within)

    def chance_of_pass(self, key: str) -> float:
        """Return the largest change of ``validation/pass@k`` between the first and the last evaluation that chance
        explains; where their problems are not known, that of the accuracy."""
        first, last = self.evaluations[0], self.evaluations[-1]
        before, after, k = first.read(), last.read(), key.rpartition("@")[2]
        change = pass_difference(before, after, int(k)) if before and after and k.isdecimal() else None
        return chance_between(first, last) if change is None else chance_of(change)

    @cached_property
    def evaluated(self) -> list[Row]:
        """Lines of metrics with a held-out accuracy, that of step 0 included."""
        return [row for row in self.run.rows if row.get("validation/accuracy") is not None]

    @property
    def widest_pass(self) -> str:
        """``validation/pass@k`` of the largest k above 1 that the first and the last evaluation have; "" for none."""
        begin, rows = "validation/pass@", self.evaluated
        known = rows[0].keys() & rows[-1].keys() if rows else ()
        widths = [int(k) for key in known if key.startswith(begin) and (k := key.removeprefix(begin)).isdecimal()]
        return f"{begin}{max(widths)}" if max(widths, default=1) > 1 else ""

    def first_and_last(self, key: str) -> tuple[float, float] | None:
        """Return a number of the first and the last of several evaluations; None where one of both lacks it."""
        rows = self.evaluated
        if len(rows) < 2 or rows[0].get(key) is None or rows[-1].get(key) is None:
            return None
        return rows[0][key], rows[-1][key]

    @cached_property
    def checkpoints(self) -> list[int]:
        """Steps of the checkpoints that are kept, in order."""
        return checkpoint_steps(self.run)

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Return steps and values where they were measured."""
        if key not in self._series:
            self._series[key] = series(self.rows, key)
        return self._series[key]

    def values(self, key: str) -> list[float]:
        return self.series(key)[1]

    def total(self, key: str) -> float:
        """Return the sum over all steps, at most the greatest float: a diverged run's numbers may overflow."""
        return max(-sys.float_info.max, min(sys.float_info.max, sum(self.values(key))))

    def early(self, key: str) -> float | None:
        """Mean at the beginning; None where the run is too short to have a beginning and an end."""
        values = self.values(key)
        return _mean(values[: _window(len(values))]) if len(values) >= 2 * FEWEST else None

    def late(self, key: str) -> float | None:
        """Mean at the end; of a short run the mean of its last steps."""
        values = self.values(key)
        return _mean(values[-_window(len(values)) :]) if values else None

    def late_steps(self, key: str) -> Span:
        """First and last step of the end."""
        steps = self.series(key)[0]
        chosen = steps[-_window(len(steps)) :] or [0]
        return chosen[0], chosen[-1]

    def change(self, key: str) -> tuple[float, float] | None:
        """Means at the beginning and the end."""
        early, late = self.early(key), self.late(key)
        return None if early is None or late is None else (early, late)

    def highest(self, key: str, bound: float, width: int = FEWEST) -> WorstStretch | None:
        """Return the greatest mean of ``width`` steps in a row, if it is ``bound`` or more.

        A run that is shorter is taken whole.
        """
        steps, values = self.series(key)
        width = min(width, len(values))
        means = [_mean(values[n : n + width]) for n in range(len(values) - width + 1)] if width else []
        over = [n for n, mean in enumerate(means) if mean >= bound]
        if not over:
            return None
        return WorstStretch(max(means[n] for n in over), (steps[over[0]], steps[over[-1] + width - 1]))

    def where(self, key: str, holds: Callable[[float], bool]) -> list[int]:
        """Return the steps at which the number is so."""
        steps, values = self.series(key)
        return [step for step, value in zip(steps, values, strict=True) if holds(value)]

    def span(self, key: str, holds: Callable[[float], bool]) -> Span:
        """First and last step at which the number is so; the last steps where none is (their mean may be, rounded)."""
        steps = self.where(key, holds)
        return (steps[0], steps[-1]) if steps else self.late_steps(key)

    def named(self, prefix: str) -> list[str]:
        """Keys that begin so, in order of appearance."""
        return [key for key in dict.fromkeys(key for row in self.rows for key in row) if key.startswith(prefix)]

    def setting(self, path: str, default: Any = None) -> Any:
        """Return a setting of the recipe such as ``algorithm.clip.high``; ``default`` if the recipe cannot be read."""
        found: Any = self.run.recipe
        for name in path.split("."):
            found = getattr(found, name, None)
            if found is None:
                return default
        return found

    @cached_property
    def accuracy_change(self) -> float:
        """Training accuracy at the end minus at the beginning; 0 where it is not known."""
        change = self.change("reward/accuracy")
        return change[1] - change[0] if change else 0.0


@dataclass(frozen=True, slots=True)
class Finding:
    """Finding of a rule. ``move`` is given if it depends on what was found."""

    severity: Severity
    title: str
    said: str
    span: Span
    keys: Sequence[str]
    move: str = ""


Find = Callable[[Facts], Finding | None]


@dataclass(frozen=True, slots=True)
class Rule:
    """A warning sign: what triggers it, why it matters, what to do, and the function that looks for it."""

    trigger: str
    matters: str
    move: str
    find: Find = field(repr=False)

    @property
    def name(self) -> str:
        """The function's."""
        return self.find.__name__

    def advice(self, facts: Facts) -> Iterator[Advice]:
        """Yield the rule's advice, if any."""
        found = self.find(facts)
        if found is not None:
            yield Advice(
                rule=self.name,
                severity=found.severity,
                title=found.title,
                said=found.said,
                move=found.move or self.move,
                first_step=found.span[0],
                last_step=found.span[1],
                keys=list(found.keys),
            )


def rule(trigger: str, matters: str, move: str) -> Callable[[Find], Rule]:
    """Make a rule of the function that looks for its warning sign."""
    return lambda find: Rule(trigger, matters, move, find)


def _held_out(path: Path, within: Path) -> HeldOut | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return _read(path, within, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _read(path: Path, within: Path, changed: int, size: int) -> HeldOut | None:
    """Read an evaluation's file once for all parts of a page; ``changed`` and ``size`` tell a new one."""
    return read_held_out(path, within)


def _window(count: int) -> int:
    return min(MOST, max(FEWEST, count // SHARE))


def _mean(values: Sequence[float]) -> float:
    # divided first: a diverged run logs numbers whose sum overflows
    return math.fsum(value / len(values) for value in values) if values else 0.0
