"""dapo: a trainer for language models with the DAPO recipe on tasks whose answers a program can check.

In Python as on the command line::

    import dapo

    run = dapo.train("quickstart", **{"trainer.steps": 20})
    print(run.best["validation/accuracy"], run.metrics[-1]["reward/accuracy"])

docs/python.md is the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from dapo.algorithms.objective import Objective
    from dapo.api.check import Report, check
    from dapo.api.evaluation import Evaluation, evaluate
    from dapo.api.run import Run
    from dapo.api.sft import sft
    from dapo.api.train import Trainer, resume, train
    from dapo.config import LoadedRecipe, Recipe, load_recipe, recipe_from_dict
    from dapo.errors import DapoError
    from dapo.run.export import export
    from dapo.types.environment import ModelTurn, Reply
    from dapo.types.events import Callback

_HOMES = {
    "Callback": "dapo.types.events",
    "DapoError": "dapo.errors",
    "Evaluation": "dapo.api.evaluation",
    "LoadedRecipe": "dapo.config",
    "ModelTurn": "dapo.types.environment",
    "Objective": "dapo.algorithms.objective",
    "Recipe": "dapo.config",
    "Reply": "dapo.types.environment",
    "Report": "dapo.api.check",
    "Run": "dapo.api.run",
    "Trainer": "dapo.api.train",
    "check": "dapo.api.check",
    "evaluate": "dapo.api.evaluation",
    "export": "dapo.run",
    "load_recipe": "dapo.config",
    "recipe_from_dict": "dapo.config",
    "resume": "dapo.api.train",
    "sft": "dapo.api.sft",
    "train": "dapo.api.train",
}

__all__ = [
    "Callback",
    "DapoError",
    "Evaluation",
    "LoadedRecipe",
    "ModelTurn",
    "Objective",
    "Recipe",
    "Reply",
    "Report",
    "Run",
    "Trainer",
    "__version__",
    "check",
    "evaluate",
    "export",
    "load_recipe",
    "recipe_from_dict",
    "resume",
    "sft",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import on first use: ``import dapo`` and a refused recipe need no torch."""
    if name not in _HOMES:
        from difflib import get_close_matches

        near = get_close_matches(name, __all__, 1)
        hint = f"; did you mean dapo.{near[0]}?" if near else f"; there are {', '.join(sorted(_HOMES))}"
        raise AttributeError(f"module 'dapo' has no attribute {name!r}{hint}")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
