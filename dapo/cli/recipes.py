"""``dapo recipes``: those that come with the package, listed, shown and copied."""

from __future__ import annotations

import shutil
from pathlib import Path

from dapo.config.shipped import FOLDER, files_of, recipe_names, what_it_is
from dapo.errors import RecipeError


def list_recipes() -> None:
    """One line each."""
    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        print(f"{name:<{width}}  {what_it_is(name)}")
    print("\nrun one: dapo train NAME    read one: dapo recipes --show NAME    make it yours: dapo recipes --copy NAME")


def show_recipe(name: str) -> None:
    """Print its file.

    Raises:
        RecipeError: no recipe has that name.
    """
    print(_known(name).read_text(encoding="utf-8"), end="")


def copy_recipe(name: str, folder: Path) -> None:
    """Copy it and the files that it names to ``folder``.

    Raises:
        RecipeError: no recipe has that name, or a file of the same name is there already.
    """
    _known(name)
    sources = files_of(name)
    for source in sources:
        if (folder / source.name).exists():
            raise RecipeError(f"{folder / source.name} exists already; move it, or copy in another folder")
    for source in sources:
        shutil.copyfile(source, folder / source.name)
        print(f"{folder / source.name}")
    print(f"look at it with: dapo check {folder / sources[0].name}")


def _known(name: str) -> Path:
    if name not in recipe_names():
        raise RecipeError(f"no recipe is called {name!r}; there are {', '.join(recipe_names())}")
    return FOLDER / f"{name}.yaml"
