"""RUN/metrics.jsonl: one line a training step, every key with a line in the glossary."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dapo.metrics.glossary import lookup, undefined
from dapo.metrics.metric import SHARE
from dapo.observe.jsonl import JsonlWriter, read_jsonl
from dapo.observe.text import number, percent

log = logging.getLogger(__name__)

_TRAINED, _EVALUATED = "counters/trained_tokens", "validation/accuracy"

Row = dict[str, Any]
"""``step`` (int) and metrics: float, int, or None where the number was not finite."""


class MetricWriter(JsonlWriter):
    """Appends the metrics of a step. Lines outlive this process when ``write`` returns, a power cut after ``sync``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._told: set[str] = set()  # keys without a definition

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Append one line. nan and infinities become null: JSON has no word for them.

        A key without a glossary line is written too, and warned of once: it fails a test, not a run.
        """
        if unknown := [key for key in unknown_keys(metrics) if key not in self._told]:
            self._told.update(unknown)
            log.warning("%s", undefined(unknown))
        self.append({"step": step} | {key: _number(value) for key, value in metrics.items()})


def unknown_keys(keys: Iterable[str]) -> list[str]:
    """Return the keys that have no line in the glossary."""
    return [key for key in keys if lookup(key) is None]


def read_metrics(path: Path) -> list[Row]:
    """One row a step, see ``in_order``. A half-written last line (of a running or killed process) is left out."""
    return in_order(read_jsonl(path))


def in_order(rows: list[Row]) -> list[Row]:
    """One row a step, in order of steps: a step that was done again replaces the first.

    Where the data end, and on a resume behind a lost evaluation, the last step is evaluated after its line was
    written: that line of its own is joined to it.
    """
    if all(a["step"] < b["step"] for a, b in itertools.pairwise(rows)):
        return rows
    by_step: dict[int, Row] = {}
    for row in rows:
        known = by_step.get(row["step"])
        late = known is not None and _TRAINED in known and _TRAINED not in row and _EVALUATED in row
        by_step[row["step"]] = _joined(known, row) if known is not None and late else row
    return [by_step[step] for step in sorted(by_step)]


def _joined(row: Row, late: Row) -> Row:
    """Return a step's row joined with its late evaluation: seconds add up."""
    both = row | late
    for key in row.keys() & late.keys():
        if key.startswith("time/") and row[key] is not None and late[key] is not None:
            both[key] = row[key] + late[key]
    return both


def series(rows: Iterable[Row], key: str) -> tuple[list[int], list[float]]:
    """Return steps and values of one metric, where it was measured."""
    found = [(int(row["step"]), float(row[key])) for row in rows if row.get(key) is not None]
    return [step for step, _ in found], [value for _, value in found]


def shown(key: str, value: float | None) -> str:
    """Return a number of a metric as its unit asks for; a dash where it was not measured."""
    metric = lookup(key)
    if metric is None or metric.unit != SHARE:
        return number(value)
    return percent(value, digits=2 if "/clip_" in key else 1)


def without_clock(row: Row) -> Row:
    """Return the part of a row that two equal runs share to the bit: all but times, memory and work done again."""
    return {key: value for key, value in row.items() if not ((metric := lookup(key)) and metric.clock)}


def _number(value: float) -> float | int | None:
    """Return a Python number for JSON: numpy scalars are taken, integers stay integers."""
    if isinstance(value, int):
        return int(value)
    number = float(value)
    return number if math.isfinite(number) else None
