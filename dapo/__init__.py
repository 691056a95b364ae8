"""dapo: a trainer for language models with the DAPO recipe on tasks whose answers a program can check.

In Python as on the command line::

    import dapo

    recipe = dapo.load_recipe("recipes/quickstart.yaml", ["trainer.steps=20"])
    dapo.train(recipe)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dapo.config import LoadedRecipe, Recipe, load_recipe, recipe_from_dict
    from dapo.contracts.events import Callback
    from dapo.run import evaluate, export, resume, train

_HOMES = {
    "Callback": "dapo.contracts.events",
    "LoadedRecipe": "dapo.config",
    "Recipe": "dapo.config",
    "load_recipe": "dapo.config",
    "recipe_from_dict": "dapo.config",
    "train": "dapo.run",
    "resume": "dapo.run",
    "evaluate": "dapo.run",
    "export": "dapo.run",
}

__all__ = [
    "Callback",
    "LoadedRecipe",
    "Recipe",
    "__version__",
    "evaluate",
    "export",
    "load_recipe",
    "recipe_from_dict",
    "resume",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import on first use: ``import dapo`` and a refused recipe need no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dapo' has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
