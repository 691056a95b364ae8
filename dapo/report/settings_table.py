"""A run's settings as a page shows them: what it is made of, and its difference from the preset, leaf by leaf."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from dapo.config.load import difference_from_preset
from dapo.config.schema import Recipe

NOT_THERE = "none"
"""In a difference: that side has no such item in its list. (A text would be in quotes.)"""


def difference_of(recipe: Recipe) -> list[tuple[str, str, str]]:
    """Path, the preset's value and the run's, each whole; of lists of settings a line for each leaf that differs."""
    found: list[tuple[str, str, str]] = []
    for path, (before, after) in difference_from_preset(recipe).items():
        here: Any = recipe
        for part in path.split("."):
            here = getattr(here, part, None)  # a section may be null
        if isinstance(here, list) and here and isinstance(here[0], BaseModel):
            preset = [type(here[0]).model_validate(item) for item in before]
            for i, (was, now) in enumerate(itertools.zip_longest(preset, here)):
                found += [(f"{path}.{i}.{name}", old, new) for name, old, new in _leaves_that_differ(was, now)]
        else:
            found.append((path, _as_text(before), _as_text(after)))
    return found


def made_of(recipe: Recipe | None) -> list[tuple[str, str]]:
    """Path and value of what every recipe has to name: the model and the data."""
    if recipe is None:
        return []
    found = [("model.path", _as_text(recipe.model.path))]
    for name, sources in (("train", recipe.data.train), ("validation", recipe.data.validation)):
        for i, source in enumerate(sources):
            found += [
                (f"data.{name}.{i}.{leaf}", value)
                for leaf, _, value in _leaves_that_differ(None, source)
                if value != "null"
            ]
    return found


def _leaves_that_differ(was: BaseModel | None, now: BaseModel | None) -> Iterator[tuple[str, str, str]]:
    """Yield the differing settings. Of an item that one side alone has: its first setting, and those that are not the
    default."""
    sides = [{} if side is None else side.model_dump(mode="json") for side in (was, now)]
    for side in (was, now):
        if side is not None and None in (was, now):
            kept = {next(iter(type(side).model_fields)), *side.model_dump(exclude_defaults=True)}
            sides = [{name: value for name, value in one.items() if name in kept} for one in sides]
    for name in {**sides[0], **sides[1]}:
        before, after = (_as_text(one[name]) if name in one else NOT_THERE for one in sides)
        if before != after:
            yield name, before, after


def _as_text(value: Any) -> str:
    """As it could be written in a recipe."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False, default=str)
