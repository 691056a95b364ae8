"""The recipe behind ``dapo evaluate``: a run's own, or the defaults for a bare model, with the options on top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dapo.config import LoadedRecipe, load_recipe, recipe_from_dict
from dapo.config.check_data import source_name
from dapo.config.resume import no_run
from dapo.config.schema import Recipe, TrainSource
from dapo.config.yaml_files import RESOLVED
from dapo.errors import RecipeError

TASK = "task:"


def evaluation_recipe(
    model_or_run: str,
    data: Sequence[str | Mapping[str, Any]],
    options: dict[str, Any],
    overrides: Sequence[str] = (),
) -> tuple[LoadedRecipe, Path | None]:
    """Return the evaluation as a recipe, with its settings in ``data.validation`` and ``validation``.

    Args:
        model_or_run: a run folder (its recipe gives prompts, rewards and limits), or a model's folder or hub name.
        data: files, ``hub:owner/name``, ``task:NAME`` or data sources; for a run, none means its own validation sets.
        options: settings by path, from the command line's own options; a value None means not given.
        overrides: ``key=value`` settings on top.

    Returns:
        The recipe, and the run folder if it is one.

    Raises:
        RecipeError: no data for a bare model, or settings that are not valid.
    """
    sources = [_source(text) for text in data]
    settings = {path: value for path, value in options.items() if value is not None}
    folder = Path(model_or_run)
    if (folder / RESOLVED).is_file():
        given = load_recipe(folder / RESOLVED, of_a_run=True).recipe.model_dump(mode="json")
        if sources:
            given["data"]["validation"] = sources
        if not given["data"]["validation"]:
            raise RecipeError(f"the run {folder} has no validation data; give some with --data")
        trained_on = [source_name(TrainSource.model_validate(s)) for s in given["data"]["train"]]
        given["data"]["train"] = _placeholders(trained_on)
    else:
        if not sources:
            raise RecipeError(f"{no_run(model_or_run)}. If it is a model, its data must be given: --data FILE")
        kind = "task" if all("task" in s for s in sources) else "math"
        given = {
            "model": {"path": model_or_run},
            "data": {"train": _placeholders(["training"]), "validation": sources},
            "rewards": [{"name": "accuracy", "kind": kind}],
        }
    for path, value in settings.items():
        _set(given, path, value)
    return recipe_from_dict(given, overrides), folder if (folder / RESOLVED).is_file() else None


def recipe_against(recipe: Recipe, model_or_run: str) -> tuple[LoadedRecipe, Path | None]:
    """Return the recipe of a comparison's second model: the same questions, asked in the same way.

    Args:
        recipe: of the first.
        model_or_run: a run folder, of whose recipe the model is taken, or a model's folder or hub name.

    Returns:
        The recipe, and the run folder if it is one.
    """
    folder = Path(model_or_run)
    is_run = (folder / RESOLVED).is_file()
    given = recipe.model_dump(mode="json")
    if is_run:
        other = load_recipe(folder / RESOLVED, of_a_run=True).recipe.model_dump(mode="json")
        given["model"], given["run"] = other["model"], other["run"]  # `run` says which built-in model it began with
    else:
        given["model"]["path"] = model_or_run
    return recipe_from_dict(given), folder if is_run else None


def _placeholders(names: list[str]) -> list[dict[str, Any]]:
    """Return placeholders for a run's training data, which an evaluation does not read; its names stay valid."""
    return [{"task": "signed_sum", "size": 4, "seed": -1 - n, "name": name} for n, name in enumerate(names)]


def _source(text: str | Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(text, str):
        return dict(text)
    return {"task": text.removeprefix(TASK)} if text.startswith(TASK) else {"path": text}


def _set(given: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for section in sections:
        given = given.setdefault(section, {})
    given[last] = value
