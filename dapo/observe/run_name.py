"""The name of a run that its recipe does not name: that of the recipe's file, with a number where it exists."""

from __future__ import annotations

from dataclasses import replace

from dapo.config.load import LoadedRecipe
from dapo.observe.run_folder import RunFolder


def is_numbered(loaded: LoadedRecipe) -> bool:
    """Return whether the run takes the next free number: it has no name, and nothing is moved aside for it."""
    return not loaded.named and loaded.recipe.run.if_exists == "refuse"


def called(loaded: LoadedRecipe, name: str) -> LoadedRecipe:
    """Return the recipe with a name of the run."""
    run = loaded.recipe.run.model_copy(update={"name": name})
    return replace(loaded, recipe=loaded.recipe.model_copy(update={"run": run}), named=True)


def with_free_name(loaded: LoadedRecipe) -> LoadedRecipe:
    """Return the recipe with the name that a run would take now."""
    if not is_numbered(loaded):
        return loaded
    run = loaded.recipe.run
    return called(loaded, RunFolder.free_name(run.dir, run.name))
