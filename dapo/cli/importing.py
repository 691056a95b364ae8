"""``dapo import``: another trainer's configuration as a recipe."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dapo.errors import RecipeError


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
) -> int:
    """Another trainer's configuration as a recipe, each line with its origin. Nothing in it is executed."""
    from dapo.config.problems import visible
    from dapo.config.secrets import redact_text
    from dapo.importing.convert import import_file
    from dapo.importing.recipe import ARGUMENTS

    if out is not None and out.exists() and not force:
        raise RecipeError(f"{out} exists; give another name, or --force to write over it")
    if out is not None and out.exists() and source.exists() and out.samefile(source):
        raise RecipeError(f"{out} is the file that is imported; give the recipe another name")
    made = import_file(source, system, devices)
    if out is None:
        print(made.text, end="")
        return 0
    try:
        out.write_text(made.text, encoding="utf-8")
    except OSError as error:
        raise RecipeError(f"{out} cannot be written: {error.strerror or error}") from None
    reading = made.reading
    for caution in reading.cautions:
        print(f"CAUTION: {visible(redact_text(caution), 400)}")
    print(f"wrote {out}: {len(reading.lines)} settings of {reading.title}, read from {source} ({reading.source.form})")
    if reading.said:
        print(f"things that mean something else here, listed at its end: {len(reading.said)}")
    computed = sum(entry.computed for entry in reading.apart)
    if computed:
        print(f"settings without a line that change what is computed there, listed at its end: {computed}")
    if idle := len(reading.apart) - computed:
        print(f"settings without a line of memory, speed and logs, listed at its end: {idle}")
    if made.refused:
        print(f"`dapo check` will refuse it until this is settled:\n{made.refused}")
    needed = " ".join(ARGUMENTS[key] for key in made.missing)
    print(f"look at it with: dapo check {out}{f' {needed}' if needed else ''}")
    return 0
