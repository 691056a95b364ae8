"""``dapo report``: one HTML file and a trace from the files of runs. Imports no torch."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from dapo.errors import DataError, RecipeError
from dapo.observe.live_view import BAD, GOOD, QUIET
from dapo.observe.run_folder import RunFolder
from dapo.observe.text import clean
from dapo.report.machines import in_one_line
from dapo.report.page_data import RunView
from dapo.words import counted

if TYPE_CHECKING:
    from dapo.report.page_files import ReportFiles
    from dapo.report.reader import RunContents

SEVERAL = "dapo-report"
"""The folder for a report of several runs, in the working directory."""
LEAST_MB = 2.0
_STATE_STYLES = {"finished": GOOD, "failed": BAD, "killed": BAD, "unfilled": BAD}


def report_runs(runs: Sequence[Path], out: Path | None, budget_mb: float, *, as_json: bool) -> None:
    """Write the report of runs and say what it says and where it is.

    Args:
        runs: run folders; the runs may be going on. A folder named twice counts once.
        out: where to write; default ``RUN/report`` for one run, ``dapo-report`` here for several.
        budget_mb: most megabytes of report.html.
        as_json: print one object, as docs/cli.md describes it.

    Raises:
        RecipeError: a folder holds no run, or the budget is too small for any page.
        DataError: the report cannot be written there.
    """
    if not math.isfinite(budget_mb) or budget_mb < LEAST_MB:
        raise RecipeError(f"--budget-mb {budget_mb:g}: a page without rollouts takes up to {LEAST_MB:g} MB; give more")
    console = Console(highlight=False)
    folders = list({path.resolve(): RunFolder.open(path) for path in runs}.values())  # all are checked before work
    from dapo.report.page_files import write_report
    from dapo.report.reader import read_run

    target = out or _default_folder(folders)
    contents = [read_run(folder.path) for folder in folders]
    written = write_report(contents, target, int(budget_mb * 1e6))
    if as_json:
        print(json.dumps(_as_object(contents, written), indent=1))
        return
    for view in written.bundle["runs"]:
        _tell(console, view)
    for family in written.bundle["families"]:
        if family["said"]:
            name = clean(family["name"] or counted(len(family["runs"]), "seed"), newlines=False)
            _say(console, Text.assemble((name, "bold"), f": {family['said']}"))
    for path in written.files:
        size = Text(f"{_size(path.stat().st_size):>9}  ", style=QUIET)
        console.print(size.append(clean(str(path), newlines=False), style=""), soft_wrap=True)


def _as_object(contents: Sequence[RunContents], written: ReportFiles) -> dict[str, Any]:
    """Return the outcome of runs and their differences."""
    from dapo.report.comparison import compare_runs
    from dapo.report.comparison_words import as_object
    from dapo.report.rules.course import Facts

    runs = []
    for run, view in zip(contents, written.bundle["runs"], strict=True):
        evaluations = [
            {"step": one.step, "accuracy": one.accuracy, "low": ends[0], "high": ends[1]}
            for one in Facts(run).evaluations
            for ends in [one.interval or (None, None)]
        ]
        runs.append(
            {
                "run": view["label"],
                **{key: view[key] for key in ("folder", "family", "seed")},
                **{key: view["status"][key] for key in ("state", "step", "steps", "seconds")},
                "outcome": view["sentences"],
                "evaluations": evaluations,
                "warnings": view["advice"],
                "difference": [dict(zip(("key", "preset", "run"), one, strict=True)) for one in run.difference],
                "notes": view["notes"],
            }
        )
    compared = as_object(compare_runs(contents)) if len(contents) > 1 else None
    return {"runs": runs, "comparison": compared, "files": list(map(str, written.files))}


def _default_folder(folders: Sequence[RunFolder]) -> Path:
    """Return the folder of pages if none was named. No link: it may have come with the run, and lead anywhere."""
    target = folders[0].path / "report" if len(folders) == 1 else Path(SEVERAL)
    if target.is_symlink():
        raise DataError(f"{target} is a link, and nothing is written through it. Name the folder with --out.")
    return target


def _tell(console: Console, view: RunView) -> None:
    """Print a run's outcome in words; names and messages are untrusted text."""
    status = view["status"]
    head = Text.assemble((clean(view["label"], newlines=False), "bold"), "  ")
    head.append(clean(status["title"], newlines=False), _STATE_STYLES.get(status["state"], ""))
    console.print(head, soft_wrap=True)
    for sentence in view["sentences"]:
        _say(console, Text(clean(sentence, newlines=False)))
    for advice in view["advice"]:
        if advice["severity"] != "note":
            said = clean(f"{advice['title']}. {advice['said']} {advice['move']}", newlines=False)
            _say(console, Text.assemble(("! ", BAD if advice["severity"] == "bad" else "yellow"), said))
    if view["machines"]:
        _say(console, Text(clean(f"On {in_one_line(view['machines'][-1])}", newlines=False), style=QUIET))
    for note in view["notes"]:
        _say(console, Text(clean(note, newlines=False), style="yellow"))
    thinned = view["rollouts"]["thinned"]
    if thinned["kept"] < thinned["of"]:
        _say(console, Text(f"In the page: {clean(thinned['how'], newlines=False)}", style=QUIET))
    console.print()


def _say(console: Console, text: Text) -> None:
    console.print(Padding(text, (0, 0, 0, 2), expand=False))


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{max(1, round(count / 1e3))} kB"
