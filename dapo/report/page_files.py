"""Files of ``dapo report``: report.html and trace.json, and no byte anywhere else."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dapo.errors import DataError
from dapo.observe.run_files import replacing
from dapo.report.bundle import Budget, bundle_of
from dapo.report.compare import labels_of
from dapo.report.page import page_html
from dapo.report.page_data import PageData
from dapo.report.reader import RunContents
from dapo.report.trace import trace_of

_BASE64 = 4 / 3
_FILLED = 0.97
"""Of the room in a page, for rollouts."""


@dataclass(frozen=True, slots=True)
class ReportFiles:
    """Written files, and the page's data."""

    files: list[Path]
    bundle: PageData


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
    except OSError as error:
        raise DataError(
            f"{folder} cannot be written: {error.strerror or error}. Name another one with --out."
        ) from None
    return ReportFiles(files, bundle)


def _page(runs: Sequence[RunContents], limit: int) -> tuple[str, PageData]:
    """Return the page, with as many rollouts as fit next to everything else."""
    budget, size = Budget(rollout_bytes=0), 0
    for _ in range(4):
        size = len(page_html(bundle_of(runs, live=False, budget=budget)))
        if size <= limit:
            break
        budget = replace(budget, points=budget.points // 2)
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
