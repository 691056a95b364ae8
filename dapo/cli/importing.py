"""``dapo import``: another trainer's configuration as a recipe."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

import typer

from dapo.errors import RecipeError

if TYPE_CHECKING:
    from dapo.importing.convert import Imported


def import_recipe(
    source: Annotated[
        Path, typer.Argument(metavar="FILE_OR_SCRIPT", help="YAML, a launch script, or Python with config objects.")
    ],
    system: Annotated[
        str | None,
        typer.Option("--from", help="nemo-rl, skyrl, areal, ms-swift, verl or trl; default: recognised by its keys."),
    ] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", metavar="RECIPE", help="Default: shown.")] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, help="Processes that learn there, if batches are counted for each of them.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Write over RECIPE.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="List settings that are off here and there, too.")] = False,
) -> int:
    """Another trainer's configuration as a recipe, each line with its origin. Nothing in it is executed."""
    from dapo.importing.convert import import_file
    from dapo.importing.reading import Listed
    from dapo.importing.recipe_text import ARGUMENTS

    if out is not None and out.exists() and not force:
        raise RecipeError(f"{out} exists; give another name, or --force to write over it")
    if out is not None and out.exists() and source.exists() and out.samefile(source):
        raise RecipeError(f"{out} is the file that is imported; give the recipe another name")
    made = import_file(source, system, devices)
    text = made.text if verbose else made.brief
    if out is None:
        print(text, end="")
        _say(made, sys.stderr)
        return 0
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{out} cannot be written: {error.strerror or error}") from None
    reading = made.reading
    _say(made, sys.stdout)
    print(f"wrote {out}: {len(reading.lines)} settings of {reading.title}, read from {source} ({reading.source.form})")
    if reading.said:
        print(f"things that mean something else here, listed at its end: {len(reading.said)}")
    differing = sum(entry.kind is Listed.DIFFERS for entry in reading.apart)
    if differing:
        print(f"settings without a line that change what is computed there, listed at its end: {differing}")
    if made.refused:
        print(f"`dapo check` will refuse it until this is settled:\n{made.refused}")
    unread = (f"{key}=VALUE" for key, line in reading.lines.items() if line.fill_in and key not in made.missing)
    needed = " ".join([*(ARGUMENTS[key] for key in made.missing), *unread])
    print(f"look at it with: dapo check {out}{f' {needed}' if needed else ''}")
    return 0


def _say(made: Imported, where: TextIO) -> None:
    """Print what a user has to know before a run: cautions, lines to fill in, settings that are not known."""
    from dapo.config.faults import visible
    from dapo.config.secret_text import redact_text
    from dapo.importing.reading import Listed

    for caution in made.reading.cautions:
        print(f"CAUTION: {visible(redact_text(caution), 400)}", file=where)
    for key, line in made.reading.lines.items():
        if line.fill_in or "FILL IN" in line.comment:
            said = visible(redact_text(line.comment), 300)
            print(f"to fill in: {key}: {said}", file=where)
    unknown = [entry.what.partition(" = ")[0] for entry in made.reading.apart if entry.kind is Listed.UNKNOWN]
    if unknown:
        names = visible(redact_text(", ".join(unknown)), 600)
        print(
            f"settings that are not known to `dapo import`, or could not be read: {len(unknown)}: {names}", file=where
        )
