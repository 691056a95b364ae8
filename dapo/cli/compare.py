"""``dapo compare``: families of runs over their seeds, as a table or as JSON. Imports no torch."""

from __future__ import annotations

import glob
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal, cast, get_args

import typer

from dapo.cli.arguments import AsJson
from dapo.config.yaml_files import RESOLVED
from dapo.errors import RecipeError
from dapo.observe.run_folder import RunFolder

At = Literal["steps", "tokens"]


def compare(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Run folders, folders of runs, patterns such as 'runs/low-*'."),
    ],
    by: Annotated[
        str,
        typer.Option(
            metavar="KEY",
            help="Runs with equal values of it belong together; default: those that differ in seeds and names.",
        ),
    ] = "",
    at: Annotated[
        str,
        typer.Option(metavar="steps|tokens[=N]", help="Equal training steps or generated tokens; N: how many."),
    ] = "steps",
    confidence: Annotated[float, typer.Option(min=50, max=99.99, help="Of the intervals, in percent.")] = 95,
    as_json: AsJson = False,
) -> int:
    """Compare settings over the seeds of their runs: means, intervals, and which differences are shown."""
    what, place = _place(at)
    folders = list(_folders(runs))
    if len(folders) < 2:
        raise RecipeError(f"{' '.join(runs)}: {len(folders)} run found, and a comparison takes two or more")
    from dapo.report.comparison import compare_runs
    from dapo.report.comparison_words import as_object, table_lines
    from dapo.report.reader import read_run

    contents = [read_run(folder, light=True) for folder in folders]
    found = compare_runs(contents, by=by, at=what, place=place, confidence=confidence / 100)
    print(json.dumps(as_object(found), indent=1) if as_json else "\n".join(table_lines(found)))
    return 0


def _place(at: str) -> tuple[At, float | None]:
    """Return what is equal, and where; None: the place is found."""
    what, given, value = at.partition("=")
    try:
        place = float(value) if given else None
    except ValueError:
        place = math.nan
    possible = place is None or (0 < place < math.inf and (what == "tokens" or place.is_integer()))
    if what not in get_args(At) or not possible:
        raise typer.BadParameter(f"{at!r} is none of steps, tokens, steps=40, tokens=2e6", param_hint="--at")
    return cast(At, what), place


def _folders(given: Sequence[str]) -> Iterator[Path]:
    """Yield the run folders of arguments, each once, in their order.

    Raises:
        RecipeError: an argument leads to no run.
    """
    from dapo.report.runs_list import RunsFolder

    seen: set[Path] = set()
    for text in given:
        pattern = glob.has_magic(text) and not Path(text).exists()
        found: list[Path] = []
        for path in sorted(map(Path, glob.glob(text))) if pattern else [Path(text)]:
            if (path / RESOLVED).is_file():
                found.append(path)
            elif path.is_dir():
                found += [path / name for name in sorted(RunsFolder.at(path).find().names)]
        if not found and pattern:
            raise RecipeError(f"{text} matches no run: run folders have a {RESOLVED}")
        for path in found or [RunFolder.open(text).path]:
            if path.resolve() not in seen:
                seen.add(path.resolve())
                yield path
