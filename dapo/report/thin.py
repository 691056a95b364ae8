"""Thin metrics to as many points as a page can draw, and say what was left out.

A point stands for a stretch of steps: its value is the mean, and the least and greatest value of the stretch go with
it, so that a spike of one step stays visible. The first and the last step are points of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapo.observe.metrics import Row
from dapo.report.page_data import Curves, Thinned
from dapo.types.batch import BoolArray, IntArray

Matrix = NDArray[np.float64]
"""[rows, keys]; nan where a number is missing."""

POINTS = 600
FIGURES = 7
"""Significant figures of the numbers in a page; whole numbers stay whole."""
SPARSE = "validation/"
"""Metrics that few rows have. Each such row is the only one of its point, unless they are too many."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much a page may hold."""

    points: int = POINTS  # of a curve; evaluations may add to that
    rollout_bytes: int = 5_000_000  # of responses, texts and token records, as gzip packs them


def curves_of(rows: Sequence[Row], points: int = POINTS) -> Curves:
    """All metrics of a run over its steps, in about ``points`` points.

    Args:
        rows: in order of steps, one a step.
        points: wanted; at least 3.
    """
    steps = np.array([row["step"] for row in rows], np.int64)
    keys, matrix = matrix_of(rows)
    sparse = [n for n, key in enumerate(keys) if key.startswith(SPARSE)]
    alone = np.asarray((~np.isnan(matrix[:, sparse])).any(axis=1), np.bool_)
    starts, marks = stretches(len(rows), points, alone)
    if len(starts) == len(rows):
        return {
            "steps": steps.tolist(),
            "values": {key: plain(matrix[:, n]) for n, key in enumerate(keys)},
            "low": {},
            "high": {},
            "thinned": {"kept": len(rows), "of": len(rows), "how": "Every step is shown."},
        }
    mean, low, high = thin(matrix, starts)
    varied = [n for n in range(len(keys)) if ((low[:, n] != high[:, n]) & ~np.isnan(low[:, n])).any()]
    return {
        "steps": steps[marks].tolist(),
        "values": {key: plain(mean[:, n]) for n, key in enumerate(keys)},
        "low": {keys[n]: plain(low[:, n]) for n in varied},
        "high": {keys[n]: plain(high[:, n]) for n in varied},
        "thinned": _said(starts, len(rows), alone, marks),
    }


def matrix_of(rows: Sequence[Row], keys: Sequence[str] | None = None) -> tuple[list[str], Matrix]:
    """Return the rows as numbers: keys in order of appearance, and the matrix [rows, keys]."""
    keys = list(dict.fromkeys(key for row in rows for key in row if key != "step")) if keys is None else list(keys)
    values = [[row.get(key) for key in keys] for row in rows]
    return keys, np.array(values, np.float64).reshape(len(rows), len(keys))  # None becomes nan


def stretches(count: int, points: int, alone: BoolArray) -> tuple[IntArray, IntArray]:
    """Rows cut into stretches: the first row of each, and the row whose step the point bears.

    A stretch holds at most one row of ``alone`` and bears its step, unless there are more of these than ``points``.

    Args:
        count: rows.
        points: wanted, at least 3.
        alone: [count], rows with numbers that few rows have.
    """
    points = max(3, points)
    if count <= points:
        return np.arange(count), np.arange(count)
    inner = np.arange(points - 2) * (count - 2) // (points - 2) + 1
    cuts = {0, *inner.tolist(), count - 1}
    rows = np.flatnonzero(alone)
    apart = 0 < len(rows) <= points
    if apart:  # a further one in a stretch begins a stretch
        edges = np.array(sorted(cuts))
        home = np.searchsorted(edges, rows, side="right")
        cuts |= set(rows[1:][home[1:] == home[:-1]].tolist())
    starts = np.array(sorted(cuts))
    ends = np.append(starts[1:], count)
    marks = (starts + ends - 1) // 2
    if apart:
        marks[np.searchsorted(starts, rows, side="right") - 1] = rows
    return starts, marks


def thin(matrix: Matrix, starts: IntArray) -> tuple[Matrix, Matrix, Matrix]:
    """Mean, least and greatest of each stretch [stretches, keys], over what was measured; nan where nothing was."""
    known = ~np.isnan(matrix)
    counts = np.add.reduceat(known, starts, axis=0, dtype=np.int64)
    each = np.repeat(counts, np.diff(np.append(starts, len(matrix))), axis=0)
    parts = np.divide(matrix, each, out=np.zeros_like(matrix), where=known)  # divided first: no sum overflows
    low, high = np.fmin.reduceat(matrix, starts, axis=0), np.fmax.reduceat(matrix, starts, axis=0)
    mean = np.where(counts > 0, np.add.reduceat(parts, starts, axis=0), np.nan)
    return np.clip(mean, low, high), low, high


def plain(column: NDArray[Any]) -> list[float | None]:
    """Numbers for JSON, in ``FIGURES`` figures; None for what is missing or not finite."""
    found: list[float | None] = []
    for value in column.tolist():
        if value != value or value in (np.inf, -np.inf):
            found.append(None)
        elif value == int(value) and abs(value) < 1e15:
            found.append(int(value))
        else:
            found.append(float(f"{value:.{FIGURES}g}"))
    return found


def _said(starts: IntArray, count: int, alone: BoolArray, marks: IntArray) -> Thinned:
    widest = int(np.diff(np.append(starts, count)).max())
    how = (
        f"{len(starts):,} points for {count:,} steps: a point is the mean of up to {widest} steps, and the band around "
        "it their least and greatest value. The first and the last step are shown as they are"
    )
    kept = bool(alone.any()) and set(np.flatnonzero(alone).tolist()) <= set(marks.tolist())
    how += ", and so is every evaluation." if kept else "."
    return {"kept": len(starts), "of": count, "how": how}
