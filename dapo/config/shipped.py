"""The recipes that come with the package, by short names: ``quickstart`` is ``dapo/recipes/quickstart.yaml``."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "recipes"


def recipe_names() -> list[str]:
    """Short names, in alphabetical order."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def find_recipe(given: str | Path) -> Path:
    """Return the file that is meant: ``given`` itself, or the recipe of that short name if no such file exists here."""
    path = Path(given)
    if str(given) in recipe_names() and not path.is_file():
        return FOLDER / f"{given}.yaml"
    return path


def short_name(path: Path) -> str:
    """Return what one types for a recipe: the short name of one that came with the package, else its path."""
    return path.stem if path.parent == FOLDER else str(path)


def what_it_is(name: str) -> str:
    """Return the first sentence of a recipe's own comment."""
    words = []
    for line in (FOLDER / f"{name}.yaml").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        words.append(line.lstrip("# "))
    return re.split(r"(?<=\w{2}\.) ", " ".join(words), maxsplit=1)[0].rstrip(".:")


def files_of(name: str) -> list[Path]:
    """Return a recipe with the files next to it that it names."""
    recipe = FOLDER / f"{name}.yaml"
    text = recipe.read_text(encoding="utf-8")
    beside = [path for path in sorted(FOLDER.iterdir()) if path.suffix != ".yaml" and path.name in text]
    return [recipe, *beside]
