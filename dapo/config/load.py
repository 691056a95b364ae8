"""From a file and overrides to a checked recipe: preset, then file, then ``a.b=value``, then the checks."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dapo.config.check_sft import for_sft, read_by_sft, read_by_train, unread_by_sft, unread_by_train
from dapo.config.counts import count_auto
from dapo.config.faults import (
    Origin,
    Problem,
    brief,
    from_pydantic,
    no_option,
    refuse,
    unknown_key,
    visible,
)
from dapo.config.kind_sections import spelled, spelled_value, take_out
from dapo.config.presets import preset_settings
from dapo.config.rules import check
from dapo.config.schema import Recipe
from dapo.config.secret_text import HIDDEN
from dapo.config.secrets import hidden_in, redact, redact_override
from dapo.config.settings import kinds_at, lookup, settings, value_at
from dapo.config.shipped import find_recipe
from dapo.config.staleness import follow_staleness
from dapo.config.unread import unread
from dapo.config.unusual import warnings_of
from dapo.config.write_yaml import to_yaml, without_secrets
from dapo.config.yaml_files import RESOLVED, check_plain, parse_value, parse_yaml, read_recipe_file, resolve_paths
from dapo.errors import RecipeError

Difference = dict[str, tuple[Any, Any]]
"""Path of a setting -> (value in the preset, value in the recipe)."""


@dataclass(frozen=True)
class LoadedRecipe:
    """A recipe that passed every check, with where it came from. Only ``recipe`` and ``given`` hold its secrets."""

    recipe: Recipe
    given: dict[str, Any] = field(repr=False)  # the file's settings as they stood there, no preset and overrides
    text: str  # the file as it was, comments included, secrets hidden
    difference: Difference  # secrets hidden
    overrides: tuple[str, ...] = ()  # as written on the command line, secrets hidden
    warnings: tuple[str, ...] = ()  # unusual, yet allowed
    path: Path | None = None
    named: bool = True  # run.name was given; False: it is that of the file, and a run takes the next free number

    @cached_property
    def resolved(self) -> str:
        """YAML that loads back to ``recipe``, but for its secrets. Made when it is asked for: that takes as long as all
        the rest of reading a recipe."""
        return dump_resolved(self.recipe)


def load_recipe(
    path: str | Path, overrides: Sequence[str] = (), *, of_a_run: bool = False, sft: bool = False
) -> LoadedRecipe:
    """Read a YAML recipe and check it. Imports no torch and takes well under a second.

    Settings come from the preset, then the file, then the overrides ``a.b=value`` (values are YAML; list items by
    number: ``rewards.0.weight=2``). Relative paths are looked up in the working directory, then in the recipe's
    folder.

    Args:
        path: the file, or the short name of a recipe that comes with the package (``quickstart``).
        overrides: ``key=value`` each.
        of_a_run: the recipe of a run that is only read: secrets that were hidden there need not be given again.
        sft: for a supervised run: ``run.stage`` is set, and the run called NAME-sft.

    Raises:
        RecipeError: one error that lists everything that is wrong, each with its line, the value given, what was
            expected and the nearest right name.
    """
    called, path = str(path), find_recipe(path)
    text = read_recipe_file(path)
    given, lines = parse_yaml(text, called)
    return _load(given, text, overrides, Origin(called, lines), path, hidden_is_fine=of_a_run, sft=sft)


def recipe_from_dict(
    given: Mapping[str, Any],
    overrides: Sequence[str] = (),
    *,
    path: Path | None = None,
    sft: bool = False,
    beneath: Mapping[str, Any] | None = None,
) -> LoadedRecipe:
    """As ``load_recipe``, from a nested dictionary instead of a file.

    Args:
        given: the settings.
        overrides: ``key=value`` each.
        path: the file that they were read from, in whose folder data are looked for as well.
        sft: as for ``load_recipe``.
        beneath: the settings of a file, where ``given`` are these with others laid on top. What the file itself reads
            and the others made idle is not warned about. None: ``given`` without the overrides.

    Raises:
        RecipeError: one error that lists everything that is wrong.
    """
    if problems := list(check_plain(given)):
        raise refuse(problems, Origin())
    plain = deepcopy(dict(given))
    return _load(plain, to_yaml(plain), overrides, Origin(), path, sft=sft, beneath=beneath)


def apply_settings(given: Mapping[str, Any], settings: Mapping[str, Any], *, filled_in: bool = False) -> dict[str, Any]:
    """Return a copy of nested settings with dotted keys set to plain values: sections are merged, all else is replaced.

    Args:
        given: nested settings.
        settings: values by dotted key.
        filled_in: ``given`` has every setting of a recipe. Defaults of a kind that ``settings`` replace are left out.

    Raises:
        RecipeError: a key that has no place.
    """
    own = spelled(given)
    if filled_in:
        above: dict[str, Any] = {}
        for key, value in settings.items():
            _set(above, key, value)
        own, _ = take_out(own, above, defaults_only=True)
    problems = [problem for key, value in spelled(settings).items() if (problem := _set(own, key, value))]
    if problems:
        raise refuse(problems, Origin(overrides=frozenset(settings)))
    return own


def _load(
    given: dict[str, Any],
    text: str,
    overrides: Sequence[str],
    origin: Origin,
    path: Path | None,
    hidden_is_fine: bool = False,
    sft: bool = False,
    beneath: Mapping[str, Any] | None = None,
) -> LoadedRecipe:
    changed = split_overrides(overrides)
    origin = Origin(origin.name, origin.lines, frozenset(key for key, _ in changed))
    beneath = spelled(given if beneath is None else beneath)
    laid = spelled(given)
    replaced: list[str] = []
    if _of_a_run(origin):  # it has every option of its kinds
        laid, gone = take_out(laid, _apply_overrides({}, changed)[0])
        replaced = _replaced(gone, "the run")
    own, problems = _apply_overrides(laid, changed)
    named = _name_by_file(own, path)
    if sft:
        own = for_sft(own, named=any(key in ("run", "run.name") for key, _ in changed))
    if unreadable := list(check_plain(own)):
        raise refuse([*problems, *unreadable], origin)
    problems += [] if hidden_is_fine else _hidden(own)
    preset, unread_of_preset, contradictions = _fitting(str(own.get("preset", "dapo")), own)
    problems += contradictions
    merged = merge(preset, own)
    merged, uncounted = count_auto(implied_reward(implied_data(follow_staleness(merged), own), own))
    merged, missing = resolve_paths(merged, path.parent if path else Path.cwd())
    problems += [*uncounted, *missing]
    try:
        recipe = Recipe.model_validate(merged)
    except ValidationError as error:
        seen = {p.path for p in problems}
        problems += [p for p in from_pydantic(error, merged) if p.path not in seen]
        raise refuse(problems, origin) from None
    problems += check(recipe)
    if problems:
        raise refuse(problems, origin)
    difference = difference_from_preset(recipe)
    idle = _left_idle(recipe, difference, beneath, own, origin)
    of_the_other = unread_by_sft([key for key, _ in changed]) if sft else []
    if recipe.run.stage != "sft":
        of_the_other = unread_by_train(beneath, own)
    chosen = [path for path in difference if path not in idle]  # in the recipe's order, as warnings are told
    return LoadedRecipe(
        recipe=recipe,
        given=given,
        text=without_secrets(text, given),
        difference={p: (redact(before, p), redact(after, p)) for p, (before, after) in difference.items()},
        overrides=tuple(redact_override(override) for override in overrides),
        warnings=(*warnings_of(recipe, chosen), *unread_of_preset, *replaced, *of_the_other),
        path=path,
        named=named,
    )


def implied_reward(merged: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Add the reward of an environment to a recipe that names no rewards; tools have none."""
    environment = merged.get("environment")
    kind = environment.get("kind") if isinstance(environment, Mapping) else None
    if "rewards" in own or kind in (None, "tools"):
        return merged
    return {**merged, "rewards": [{"name": "accuracy", "kind": "environment"}]}


def implied_data(merged: dict[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    """Take the data set of an environment of ``verifiers`` where the recipe names no training data."""
    environment, data = merged.get("environment"), own.get("data", {})
    kind = environment.get("kind") if isinstance(environment, Mapping) else None
    if kind != "verifiers" or not isinstance(data, Mapping) or "train" in data:
        return merged
    return {**merged, "data": {**merged.get("data", {}), "train": [{"task": "environment"}]}}


def _of_a_run(origin: Origin) -> bool:
    return Path(origin.name).name == RESOLVED


def _replaced(gone: Sequence[tuple[str, Any, str]], whose: str) -> list[str]:
    """Return a warning for each option that went with its kind, unless it was at its default."""
    return [
        f"{path}: {brief(value)} of {whose} is not read: {kind} takes the place of its kind"
        for path, value, kind in gone
        if value != settings()[path].default
    ]


def _fitting(name: str, own: Mapping[str, Any]) -> tuple[dict[str, Any], list[str], list[Problem]]:
    """Return the settings of a preset without the options of kinds that ``own`` replaces.

    A function of the user's has options of its own: what the preset says of the kind that it replaces is a warning. A
    built-in kind without an option that the preset sets contradicts the preset.
    """
    preset, gone = take_out(spelled(preset_settings(name)), own)
    warnings = _replaced([found for found in gone if ":" in found[2]], f"the preset {name}")
    move = f"set by the preset {name}; choose another preset"
    problems = [
        Problem(path, f"{no_option(path, kind).removesuffix('; take it out')}: {move}", value)
        for path, value, kind in gone
        if ":" not in kind and kind in kinds_at(path.rpartition(".")[0]) and value != settings()[path].default
    ]
    return preset, warnings, problems


def _name_by_file(own: dict[str, Any], path: Path | None) -> bool:
    """Name the run after the recipe's file, in place, unless settings name it; return whether they do."""
    run = own.get("run")
    if run is not None and (not isinstance(run, dict) or run.get("name") is not None):
        return True
    stem = re.sub(r"[^\w.+-]", "-", path.stem if path else "").lstrip(".-")[:60]
    own["run"] = {**(run or {}), "name": stem or "run"}
    return False


def _left_idle(
    recipe: Recipe, difference: Difference, beneath: Mapping[str, Any], own: Mapping[str, Any], origin: Origin
) -> set[str]:
    """Return settings that have no effect and need no warning.

    A file's settings that it reads itself, and that whatever was laid on top of it made idle: ``preset=grpo`` on a
    recipe with a length penalty leaves the penalty's numbers behind. Of a run that goes on, all that its file says:
    reported when it began. What follows from another setting. What is set on top is never among them.
    """
    nowhere = object()
    idle = set()
    for path, _ in unread(recipe, difference):
        now, before = value_at(own, path, nowhere), value_at(beneath, path, nowhere)
        if now is nowhere or (now == before and origin.place(path) != "override"):
            idle.add(path)
    if not idle or _of_a_run(origin):
        return idle
    made_of = {"model": {"path": recipe.model.path}, "data": {"train": recipe.model_dump()["data"]["train"]}}
    below = merge(_fitting(str(beneath.get("preset", "dapo")), beneath)[0], merge(beneath, made_of))
    try:
        alone = Recipe.model_validate(count_auto(follow_staleness(below))[0])
    except ValidationError:
        return set()  # the file is no recipe by itself: nothing is known about what it reads
    return idle - {
        path
        for path, _ in unread(alone, difference_from_preset(alone))
        if value_at(beneath, path, nowhere) is not nowhere
    }


def _hidden(given: Mapping[str, Any]) -> Iterator[Problem]:
    for path in hidden_in(given):
        move = f"was a secret, which no file of a run holds: give it again with {path}=VALUE"
        yield Problem(path, f"{move} (or take it out, and set the environment variable that its library reads)", HIDDEN)


def merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """``above`` laid on ``below``: sections key by key, everything else (lists too) as a whole."""
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        result[key] = merge(old, value) if both else deepcopy(value)  # type: ignore[arg-type]
    return result


def split_overrides(overrides: Sequence[str]) -> list[tuple[str, str]]:
    """Split each ``key=value`` into the key and its text.

    Raises:
        RecipeError: one is not of that form.
    """
    pairs = []
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals or not key.strip():
            shown = visible(redact_override(override), 120)
            raise RecipeError(f"override `{shown}`: expected key=value, for example trainer.steps=20")
        pairs.append((key.strip().lstrip("+").removeprefix("--"), value))
    return pairs


def _apply_overrides(given: dict[str, Any], changed: list[tuple[str, str]]) -> tuple[dict[str, Any], list[Problem]]:
    own = deepcopy(given)
    problems: list[Problem] = []
    for key, text in changed:
        problem = _set(own, key, _override_value(key, text))
        if problem:
            problems.append(problem)
    return own, problems


def _override_value(key: str, text: str) -> Any:
    """Text stays as it is typed where a setting takes text (``run.name=7``); everything else is YAML."""
    setting = lookup(key)
    plain = setting is not None and setting.text and text[:1] not in ("'", '"') and text not in ("", "null", "~")
    return text if plain else parse_value(text, f"override `{visible(redact_override(f'{key}={text}'), 120)}`")


def _set(own: dict[str, Any], key: str, value: Any) -> Problem | None:
    """Set one dotted key in place. A number names a list item; the number after the last one appends."""
    *sections, last = key.split(".")
    here: Any = own
    for depth, part in enumerate([*sections, last]):
        above = ".".join(key.split(".")[:depth])
        final = depth == len(sections)
        if isinstance(here, list):
            if not re.fullmatch(r"[0-9]{1,6}", part) or int(part) > len(here):
                items = f"{len(here)} item{'s' * (len(here) != 1)}"
                return Problem(key, f"`{above}` is a list of {items}: expected a number from 0 to {len(here)}", value)
            if int(part) == len(here):
                here.append({})
            if final:
                here[int(part)] = value
            here = here[int(part)]
        elif isinstance(here, dict):
            if final:
                old = here.get(part)
                value = spelled_value(key, value)
                here[part] = merge(old, value) if isinstance(value, dict) and isinstance(old, dict) else value
            elif here.get(part) is None:
                here[part] = _empty(f"{above}.{part}" if above else part)
            here = here[part]
        else:
            return Problem(key, unknown_key(key) if not lookup(key) else f"`{above}` is not a section", value)
    return None


def _empty(path: str) -> Any:
    """Return the start of an absent section: an empty mapping, or an empty list (``rewards``: its default item)."""
    if f"{path}.N" in {s.rpartition(".")[0] for s in settings()}:
        return [{}] if path == "rewards" else []
    return {}


def difference_from_preset(recipe: Recipe) -> Difference:
    """Every setting that is not as the recipe's preset has it and that the run, supervised or by reward, reads.

    What a run is made of (``model.path``, ``data.train``, ``data.validation``) has no preset value and is left out.
    """
    own = {"model": {"path": recipe.model.path}, "data": {"train": recipe.model_dump()["data"]["train"]}}
    preset = Recipe.model_validate(merge(preset_settings(recipe.preset), own))
    before, after = dict(_flat(preset)), dict(_flat(recipe))
    for path in after.keys() - before.keys():
        if settings()[path].kinds:  # an option of a kind that the preset does not have
            before[path] = settings()[path].default
    skipped = {
        "preset",
        "run.name",
        "model.path",
        "data.train",
        "data.validation",
        "sft.train",
        "sft.validation",
        "run.stage",
    }
    read = read_by_sft if recipe.run.stage == "sft" else read_by_train
    # A section that is null on one side has no keys there: null stands for each of them.
    both = {path: (before.get(path), after.get(path)) for path in {**after, **before}}
    return {p: (was, now) for p, (was, now) in both.items() if was != now and p not in skipped and read(p)}


def _flat(section: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, BaseModel):
            yield from _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], BaseModel):
            yield f"{prefix}{name}", [item.model_dump(mode="json", exclude_unset=True) for item in value]
        else:
            yield f"{prefix}{name}", value


def dump_resolved(recipe: Recipe) -> str:
    """Every setting of the recipe as YAML, which loads back to an equal recipe once its secrets are given again."""
    return to_yaml(redact(recipe.model_dump(mode="json")))
