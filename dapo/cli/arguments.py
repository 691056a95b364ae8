"""Arguments that several commands share: a recipe with settings, or settings for an existing run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dapo.cli.completion import complete_recipe
from dapo.errors import RecipeError
from dapo.links import addressed

RecipeArguments = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="RECIPE [KEY=VALUE ...]",
        help="A YAML recipe or the short name of one of `dapo recipes`, and settings that go on top: trainer.steps=20",
        autocompletion=complete_recipe,
    ),
]
ResumeOption = Annotated[
    Path | None, typer.Option(metavar="RUN", help="Go on with the run in this folder; then no RECIPE is given.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout; everything else goes to stderr.")]


def pages(*names: str) -> str:
    """Return the lines under a command's help that say where more is written."""
    return "Pages:\n\n" + "\n\n".join(addressed(f"docs/{name}.md") for name in names)


def only_overrides(resume: Path, arguments: Sequence[str] | None) -> list[str]:
    """Return the settings given with ``--resume RUN``.

    Raises:
        RecipeError: a recipe is given as well.
    """
    overrides = list(arguments or [])
    if overrides and "=" not in overrides[0]:
        raise RecipeError(
            f"--resume {resume} takes the recipe from the run folder, so `{overrides[0]}` has no place; "
            "give only key=value settings to change"
        )
    return overrides


def recipe_and_overrides(arguments: Sequence[str] | None) -> tuple[str, list[str]]:
    """Return the recipe, and the settings after it.

    Raises:
        typer.BadParameter: there is no recipe, or it does not come first.
    """
    if not arguments:
        raise typer.BadParameter(
            "a recipe is missing: a file, or a name such as quickstart (`dapo recipes` lists them)", param_hint="RECIPE"
        )
    first, *rest = arguments
    if "=" in first and not Path(first).exists():
        raise typer.BadParameter(f"the recipe file comes first, before `{first}`", param_hint="RECIPE")
    return first, rest
