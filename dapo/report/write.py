"""Files of ``dapo report``: report.html, trace.json and pictures, and no byte anywhere else."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from dapo.errors import DataError
from dapo.observe.files import replacing
from dapo.observe.pictures import COLOURS, PICTURES, Curve, Drawn, picture, write
from dapo.observe.text import shorten
from dapo.report.bundle import Budget, bundle_of
from dapo.report.compare import labels_of
from dapo.report.page import page_html
from dapo.report.page_data import Band, PageData, RunView
from dapo.report.reader import RunContents
from dapo.report.trace import trace_of

Bands = Mapping[str, Mapping[str, Band]]

_BASE64 = 4 / 3
_FILLED = 0.97
"""Of the room in a page, for rollouts."""


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Written files, and the page's data."""

    files: list[Path]
    bundle: PageData
    notes: list[str] = field(default_factory=list)  # on what was not drawn


def write_report(runs: Sequence[RunContents], folder: Path, limit: int = 10_000_000) -> ReportFiles:
    """Write the report of one or several runs.

    Args:
        runs: read with ``read_run``.
        folder: made where it is missing; files of an earlier report are replaced, each at once.
        limit: bytes of report.html.

    Raises:
        DataError: the folder cannot be written, or the page does not fit into ``limit`` even without rollouts.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        html, bundle = _page(runs, limit)
        files = [_replace(folder / "report.html", html)]
        trace = trace_of(list(zip(labels_of(runs), runs, strict=True)))
        files.append(_replace(folder / "trace.json", json.dumps(trace, separators=(",", ":"), allow_nan=False)))
        notes: list[str] = []
        names = {family["family"]: family["name"] for family in bundle["families"]}
        files += draw(bundle["runs"], bundle["bands"], folder / "pictures", notes, names)
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error.strerror or error}. Name another one with --out."
        ) from None
    return ReportFiles(files, bundle, notes)


def _page(runs: Sequence[RunContents], limit: int) -> tuple[str, PageData]:
    """Return the page, with as many rollouts as fit next to everything else."""
    budget, size = Budget(rollout_bytes=0), 0
    for _ in range(4):
        size = len(page_html(bundle_of(runs, live=False, budget=budget)))
        if size <= limit:
            break
        budget = replace(budget, points=budget.points // 2, spans=budget.spans // 2)
    else:
        raise DataError(
            f"the page takes {size / 1e6:.1f} MB without rollouts, and may take {limit / 1e6:.1f}. "
            "Raise --budget-mb, or report fewer runs at once."
        )
    room = (limit - size) / _BASE64
    for share in (_FILLED, 0.8, 0.5, 0.0):  # what a group weighs is known beforehand to a few per cent
        bundle = bundle_of(runs, live=False, budget=replace(budget, rollout_bytes=int(share * room)))
        html = page_html(bundle)
        if len(html) <= limit:
            break
    return html, bundle


def _replace(path: Path, text: str) -> Path:
    """Write a file at once. No wait for the disk: it can be made again."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def draw(
    runs: Sequence[RunView],
    bands: Bands,
    folder: Path,
    notes: list[str] | None = None,
    names: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write learning.png, health.png and cost.png, and return their paths; one with nothing to show is left out.

    Args:
        runs: of a bundle; several lie over each other.
        bands: family -> metric -> band over its seeds, for families of two runs and more.
        folder: made where it is missing.
        notes: takes a sentence on each picture whose numbers cannot be drawn.
        names: of families, where the settings in which they differ name them.

    Raises:
        OSError: the folder cannot be written.
    """
    drawn = what_is_drawn(runs, bands, names)
    written = []
    for name, (title, panels) in PICTURES.items():
        if any(each.curves(key) for each in drawn for panel in panels for key, _ in panel.metrics):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                written.append(write(picture(title, panels, drawn), folder / f"{name}.png"))
            except (ValueError, ArithmeticError, TypeError, IndexError, RuntimeError) as error:  # matplotlib's many
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                if notes is not None:
                    notes.append(f"{name}.png was left out, its numbers cannot be drawn: {shorten(reason, 200)}.")
    return written


def what_is_drawn(runs: Sequence[RunView], bands: Bands, names: Mapping[str, str] | None = None) -> list[Drawn]:
    """Each run, or the family it belongs to, with a colour of its own."""
    seeds: dict[str, set[int | None]] = {}
    for run in runs:
        seeds.setdefault(run["family"], set()).add(run["seed"])
    members: dict[str, list[RunView]] = {}
    for run in runs:  # the same seed twice is no spread
        seeded = run["family"] in bands and len(seeds[run["family"]]) > 1
        members.setdefault(run["family"] if seeded else f"\0{run['label']}", []).append(run)
    return [
        Drawn(
            (names or {}).get(key) or _name(group),
            COLOURS[n % len(COLOURS)],
            [_curves(run) for run in group],
            {name: _band(band) for name, band in bands.get(key, {}).items()},
        )
        for n, (key, group) in enumerate(members.items())
    ]


def _curves(run: RunView) -> dict[str, Curve]:
    steps, found = run["curves"]["steps"], {}
    for key, values in run["curves"]["values"].items():
        known = [(step, value) for step, value in zip(steps, values, strict=False) if value is not None]
        if known:
            found[key] = Curve([step for step, _ in known], [value for _, value in known])
    return found


def _band(band: Band) -> Curve:
    rows = zip(band["steps"], band["mean"], band["low"], band["high"], strict=True)
    known = [row for row in rows if None not in row]
    columns: list[Any] = [list(column) for column in zip(*known, strict=True)]
    return Curve(*columns)


def _name(runs: Sequence[RunView]) -> str:
    """Return the name of a run, with its end if not good; for seeds the common beginning of their labels, or all of
    them."""
    labels = [run["label"] for run in runs]
    if len(labels) == 1:
        status = runs[0]["status"]
        return labels[0] if status["state"] == "finished" else f"{labels[0]} ({status['title']}, step {status['step']})"
    common = "".join(
        a[0] for a in itertools.takewhile(lambda column: len(set(column)) == 1, zip(*labels, strict=False))
    )
    stem = re.sub(r"[ ._-]*(seed|s)?[ ._-]*$", "", common)
    return f"{stem} ({len(labels)} seeds)" if stem else ", ".join(labels)
