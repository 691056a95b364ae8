"""Results of ``dapo evaluate``: tables, a JSON object, and a line for every answer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from dapo.algorithms.statistics import Estimate
from dapo.observe.text import clean, interval, number, percent, shorten
from dapo.words import counted

_QUIET = "bright_black"
BY_VALUE = "accuracy where "
"""Beginning of the metric of a value of the data's columns."""
_MEAN = "mean of the sets"
_FIRST = ("accuracy", "greedy_accuracy")
_DIGITS = 6  # of numbers for programs


@dataclass(frozen=True, slots=True)
class Shown:
    """An evaluation as it is shown."""

    model: str
    step: int | None  # of the run's checkpoint; None: a model that is no run
    samples: int  # per problem
    sets: Mapping[str, Mapping[str, float]]  # metrics by set, without the set's name in their keys
    mean: Mapping[str, float]  # over the sets
    reasons: Mapping[str, str]  # by set: why most of its unscored responses are

    @property
    def name(self) -> str:
        return self.model if self.step is None else f"{self.model}, step {self.step}"


@dataclass(frozen=True, slots=True)
class AccuracyDifference:
    """The first model's accuracy minus the second's, problem by problem."""

    estimate: Estimate
    problems: int  # behind it


def table(shown: Shown) -> RenderableType:
    """Return a table with a column for each set, and one for their mean if there are several."""
    columns = dict(shown.sets) | ({_MEAN: shown.mean} if len(shown.sets) > 1 else {})
    grid = Table(box=None, padding=(0, 3, 0, 0), header_style=_QUIET, title_justify="left")
    grid.title = Text(clean(shown.name, newlines=False), style="bold")
    grid.add_column(f"{counted(shown.samples, 'sample')} a problem")
    for name in columns:
        grid.add_column(Text(clean(name, newlines=False)), justify="right")
    for title, cells in _rows(columns):
        if any(cells):
            plain = Text(shorten(clean(title, newlines=False), 80))  # names of columns are the data's: no markup
            grid.add_row(plain, *(Text(cell or "–", style="bold" if title == "accuracy" else "") for cell in cells))
    lines = [
        Text(f"{clean(name, newlines=False)}: most were unscored because of {shorten(clean(why, newlines=False), 160)}")
        for name, why in shown.reasons.items()
    ]
    return Group(grid, *(Text(line.plain, style="yellow") for line in lines))


def _rows(columns: Mapping[str, Mapping[str, float]]) -> list[tuple[str, list[str]]]:
    every = columns.values()
    known = list(dict.fromkeys(key for metrics in every for key in metrics))
    many = sorted((k for k in known if k.startswith(("pass@", "maj@"))), key=_width)
    missing = any(metrics.get("unscored") for metrics in every)
    out = [
        ("accuracy", [percent(m.get("accuracy")) for m in every]),
        ("95 % interval", [interval(m.get("accuracy_low"), m.get("accuracy_high")) for m in every]),
    ]
    if missing:
        out += [
            ("unscored", [_of(m.get("unscored"), m.get("responses")) for m in every]),
            ("if these are wrong", [_share(m, "accuracy_unscored_wrong") for m in every]),
        ]
    if any(metrics.get("failed_rewards") for metrics in every):
        out.append(("another reward failed", [_of(m.get("failed_rewards"), m.get("responses")) for m in every]))
    out.append(("accuracy, greedy", [_share(m, "greedy_accuracy") for m in every]))
    out += [(key, [_share(m, key) for m in every]) for key in many if key != "pass@1"]
    out += [(key, [_share(m, key) for m in every]) for key in known if key.startswith(BY_VALUE)]
    out += [
        ("response length", [_form(m, "length_mean") for m in every]),
        ("truncated", [_share(m, "truncated_share") for m in every]),
        ("problems", [f"{m['problems']:,.0f}" if "problems" in m else "" for m in every]),
    ]
    return out


def _width(key: str) -> tuple[str, int]:
    kind, _, width = key.rpartition("@")
    return ("" if kind == "pass" else kind, int(width))


def _share(metrics: Mapping[str, float], key: str) -> str:
    return percent(metrics[key]) if key in metrics else ""


def _form(metrics: Mapping[str, float], key: str) -> str:
    return number(metrics[key]) if key in metrics else ""


def _of(count: float | None, of: float | None) -> str:
    return "" if count is None or of is None else f"{count:,.0f} of {of:,.0f}"


def comparison(first: str, second: str, by_set: Mapping[str, AccuracyDifference], mean: Estimate) -> RenderableType:
    """Return the difference on each set with its interval, and in words whether it is more than chance."""
    grid = Table(box=None, padding=(0, 3, 0, 0), header_style=_QUIET)
    for title in ("difference", "points", "95 % interval", "problems in both"):
        grid.add_column(title, justify="left" if title == "difference" else "right")
    for name, found in by_set.items():
        grid.add_row(Text(clean(name, newlines=False)), *_points(found.estimate), f"{found.problems:,}")
    if len(by_set) > 1:
        grid.add_row(_MEAN, *_points(mean), "")
    names = [clean(name, newlines=False) for name in (first, second)]
    if math.isnan(mean.mean):
        said = "No problem of a set could be scored with both."
    elif mean.low <= 0 <= mean.high:
        said = f"{names[0]} and {names[1]} do not differ by more than chance explains: 0 lies in the interval."
    else:
        better, worse = names if mean.mean > 0 else names[::-1]
        said = f"{better} is better than {worse}, by more than chance explains: 0 lies outside the interval."
    return Group(grid, Text(said))


def _points(estimate: Estimate) -> tuple[str, str]:
    if math.isnan(estimate.mean):
        return "–", "–"
    return f"{100 * estimate.mean:+.1f}", f"{100 * estimate.low:+.1f} to {100 * estimate.high:+.1f}"


def as_object(
    shown: Sequence[Shown], differences: Mapping[str, AccuracyDifference] | None = None, mean: Estimate | None = None
) -> dict[str, Any]:
    """For ``--json``: every number once, to six digits; null where it is not known."""
    out = _object(shown[0])
    if len(shown) > 1 and differences is not None and mean is not None:
        out["against"] = _object(shown[1])
        out["difference"] = {
            "sets": {
                name: {**_ends(found.estimate), "problems": found.problems} for name, found in differences.items()
            },
            **({"mean": _ends(mean)} if len(differences) > 1 else {}),
        }
    return out


def _object(shown: Shown) -> dict[str, Any]:
    return {
        "model": shown.model,
        "step": shown.step,
        "samples": shown.samples,
        "sets": {name: _plain(metrics) for name, metrics in shown.sets.items()},
        **({"mean": _plain(shown.mean)} if len(shown.sets) > 1 else {}),
        **({"unscored_because": dict(shown.reasons)} if shown.reasons else {}),
    }


def _ends(estimate: Estimate) -> dict[str, float | None]:
    return _plain({"difference": estimate.mean, "low": estimate.low, "high": estimate.high})


def _plain(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {key: float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None for key, value in metrics.items()}
