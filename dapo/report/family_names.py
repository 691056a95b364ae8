"""Names of families: what their runs' names begin with, and the settings in which they differ."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from dapo.config.load import implied_data, implied_reward
from dapo.config.schema import Recipe
from dapo.config.staleness import follow_staleness
from dapo.report.family import shared
from dapo.report.reader import RunContents
from dapo.words import counted

NAMED = 2
"""Settings that name a family; further ones are counted."""
LONGEST = 40
"""Characters of a setting's value in such a name."""
_MADE_OF = ("preset", "run.stage", "model.path", "data.", "sft.train", "sft.validation")
"""Settings for which no preset has a value."""


def names_of(families: Sequence[Sequence[tuple[RunContents, str]]]) -> list[str]:
    """Return a name for each family: what its runs' names begin with, and the settings that tell it from the others.

    Args:
        families: the runs of each, with their names.
    """
    begin = [_beginning([label for _, label in members]) for members in families]
    settings = name_families([[run for run, _ in members] for members in families])
    return [
        ", ".join(part for part in (own if begin.count(own) == 1 else "", setting) if part) or members[0][1]
        for own, setting, members in zip(begin, settings, families, strict=True)
    ]


def _beginning(labels: Sequence[str]) -> str:
    """Return what all names begin with, without the number or word of a seed that follows.

    >>> _beginning(["low-seed1", "low-seed12"]), _beginning(["a_1", "a_10"]), _beginning(["mine", "mine-2"])
    ('low', 'a', 'mine')
    """
    if len(labels) == 1:
        return labels[0]
    common = os.path.commonprefix(list(labels))  # noqa: RUF071 - of names, letter by letter
    if any(label[len(common) :][:1].isdigit() for label in labels):  # the cut may be within a number
        common = common.rstrip("0123456789")
    return re.sub(r"(^|[-_./ ]+)(seed|run|s)?[-_./= ]*$", "", common)


def name_families(families: Sequence[Sequence[RunContents]]) -> list[str]:
    """Return the settings that tell each family from the others, such as ``learner.learning_rate=2e-06``.

    Only settings that a recipe gave count, and none that follows from another one, such as a preset's or the age limit
    that ``rollout.max_staleness`` implies. "" where nothing differs, and for a recipe that cannot be read.

    Args:
        families: the runs of each.
    """
    recipes = [members[0].recipe for members in families]
    settings = [{} if recipe is None else settings_of(recipe) for recipe in recipes]
    known = [one for one in settings if one]
    given = {path for members in families if members[0].recipe for path in _given(members[0])}
    paths = [
        path
        for path in dict.fromkeys(path for one in known for path in one)
        if len({one.get(path) for one in known}) > 1
        and (path.startswith(_MADE_OF) or any(path == own or path.startswith(f"{own}.") for own in given))
    ]
    more = f" and {counted(len(paths) - NAMED, 'more setting')}" if len(paths) > NAMED else ""
    short = {path: _ending(path, {other for one in known for other in one}) for path in paths[:NAMED]}
    return [
        ", ".join(f"{short[path]}={_cut(one.get(path, 'none'))}" for path in short) + more if one else ""
        for one in settings
    ]


def settings_of(recipe: Recipe) -> dict[str, str]:
    """Return the settings in which families may differ, by path, each as it could be written in a recipe."""
    return dict(_leaves(shared(recipe.model_dump(mode="json"))))


def _given(run: RunContents) -> list[str]:
    """Return the settings of a run that differ from its preset and follow from no other one."""
    assert run.recipe is not None
    own = {
        "rollout": {"max_staleness": run.recipe.rollout.max_staleness},
        "environment": {"kind": run.recipe.environment.kind},
    }
    implied = dict(_leaves(implied_reward(implied_data(follow_staleness(own), own), own)))
    values = settings_of(run.recipe)
    followed = {path for path in implied if path not in dict(_leaves(own)) and implied[path] == values.get(path)}
    if "rewards.0.kind" in followed:
        followed |= {path for path in values if path.startswith("rewards.")}
    own_paths = [path for path, _, _ in run.difference if path not in followed]
    return [path for path in own_paths if any(f"{has}.".startswith(f"{path}.") for has in values)]  # of its own kinds


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the leaves of settings: path and value."""
    parts: dict[str, Any] = value if isinstance(value, dict) else {}
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        parts = {str(place): part for place, part in enumerate(value)}
    if not parts and value != {}:
        yield path, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    for key, part in parts.items():
        yield from _leaves(part, f"{path}.{key}" if path else str(key))


def _cut(value: str) -> str:
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 1].rstrip()}…"


def _ending(path: str, paths: Collection[str]) -> str:
    """Return the shortest ending of a path, of two parts at least, that no other path has: legends are narrow."""
    parts = path.split(".")
    for start in range(len(parts) - 2, 0, -1):
        ending = ".".join(parts[start:])
        if parts[start].isdigit():  # a place in a list says nothing without the list's name
            continue
        if sum(other == ending or other.endswith(f".{ending}") for other in paths) == 1:
            return ending
    return path
