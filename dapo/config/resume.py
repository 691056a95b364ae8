"""Check what a resumed run changes, by the rule that each field of the schema declares (``section.Rule``)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from dapo.config.faults import brief
from dapo.config.load import LoadedRecipe, load_recipe, split_overrides
from dapo.config.presets import preset_settings
from dapo.config.schema import Recipe
from dapo.config.secrets import redact
from dapo.config.section import Rule
from dapo.config.settings import generic, settings
from dapo.config.staleness import followers
from dapo.config.yaml_files import RESOLVED
from dapo.errors import CheckpointError, RecipeError


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that a resumed run has otherwise than before."""

    path: str
    old: Any
    new: Any
    rule: Rule

    def sentence(self) -> str:
        """``trainer.steps: 60 -> 100 (free)``."""
        return f"{self.path}: {brief(self.old)} -> {brief(self.new)} ({self.rule})"


def rule_of(path: str) -> Rule:
    """Return the rule of a concrete path such as ``rewards.0.weight``."""
    return settings()[generic(path)].resume


def check_resume(old: Recipe, new: Recipe, overrides: Sequence[str] = ()) -> list[Change]:
    """Return what a resumed run would change, if it may.

    Args:
        old: the recipe the run was started (or last resumed) with.
        new: the recipe to go on with.
        overrides: ``key=value`` as given with ``--resume``; an ``ask`` setting may only change if named there.

    Raises:
        RecipeError: a ``fixed`` setting differs, or an ``ask`` setting that was not asked for. Every such setting is
            listed with its rule.
    """
    asked = [o.partition("=")[0].strip() for o in overrides]
    changes: list[Change] = []
    refused: list[str] = []
    for path, *values in _differences(old, new):
        before, after = (redact(value, path) for value in values)
        if before == after:
            continue  # a secret that was given again
        change = Change(path, before, after, rule_of(path))
        named = any(path == key or path.startswith(f"{key}.") or key.startswith(f"{path}.") for key in asked)
        if change.rule == "fixed":
            refused.append(f"  {change.sentence()}\n    {_why_fixed(path)}")
        elif change.rule == "ask" and not named:
            refused.append(
                f"  {change.sentence()}\n    allowed when asked for: add {path}={brief(after)} to the command"
            )
        else:
            changes.append(change)
    if refused:
        others = [c.sentence() for c in changes]
        tail = f"\nallowed to change: {'; '.join(others)}" if others else ""
        raise RecipeError("the run cannot be resumed with these settings:\n" + "\n".join(refused) + tail)
    return changes


def changed_since(saved: Mapping[str, Any], new: Recipe) -> list[Change]:
    """Return the differences between a recipe and the one of a checkpoint, given as plain values.

    ``ask`` settings are taken, and told: the run may have been resumed with them since the checkpoint.

    Raises:
        RecipeError: a ``fixed`` setting differs: recipe.resolved.yaml was edited.
    """
    try:
        old = Recipe.model_validate(saved)
    except ValidationError:
        return []  # of a version with other settings, whose checkpoints cannot be compared in this way
    found = [(path, redact(b, path), redact(a, path)) for path, b, a in _differences(old, new)]
    changes = [Change(path, b, a, rule_of(path)) for path, b, a in found if b != a]
    if fixed := [f"  {c.sentence()}\n    {_why_fixed(c.path)}" for c in changes if c.rule == "fixed"]:
        told = "\n".join(fixed)
        raise RecipeError(f"{RESOLVED} is not the recipe that the checkpoint was saved with; fix it:\n{told}")
    return changes


def no_run(folder: str | Path) -> str:
    """Return a message on a path that is no run folder: why it is none, and which there are in ``runs``."""
    why = f"it holds no {RESOLVED}" if Path(folder).exists() else "there is nothing of that name"
    runs = sorted(p.parent for p in Path("runs").glob(f"*/{RESOLVED}"))
    there = f"; there are {', '.join(map(str, runs[:8]))}" if runs else ""
    return f"{folder} is not a run folder: {why}{there}"


def load_for_resume(run_folder: str | Path, overrides: Sequence[str] = ()) -> tuple[LoadedRecipe, list[Change]]:
    """Return the recipe of a run folder with overrides on top, and what they change. Its warnings are the new ones.

    Settings that followed ``rollout.max_staleness`` follow its new value, unless an override names them.

    Raises:
        CheckpointError: the folder holds no run.
        RecipeError: the overrides are not valid or may not change on resume.
    """
    file = Path(run_folder) / RESOLVED
    if not file.is_file():
        raise CheckpointError(no_run(run_folder))
    old = load_recipe(file, of_a_run=True)
    overrides = [*_following(old.recipe, overrides), *overrides]
    new = load_recipe(file, overrides)
    new = replace(new, warnings=tuple(one for one in new.warnings if one not in old.warnings))
    return new, check_resume(old.recipe, new.recipe, overrides)


def _following(old: Recipe, overrides: Sequence[str]) -> list[str]:
    """Return the overrides that an override of ``rollout.max_staleness`` implies."""
    given = dict(split_overrides(overrides))
    try:
        limit = int(given["rollout.max_staleness"])
    except (KeyError, ValueError):  # not changed, or refused when it is read
        return []
    if limit < 0:
        return []
    found = followers(old, preset_settings(old.preset), limit)
    return [f"{path}={json.dumps(value)}" for path, value in found.items() if path not in given]


def _why_fixed(path: str) -> str:
    if path == "preset":
        return "fixed: a preset fills in what a new recipe leaves out; on resume, set the settings themselves"
    if path == "checkpoint.dir":
        return (
            "fixed: to move the checkpoints, move their folder and let the link RUN/checkpoints lead to its new place"
        )
    if path.startswith("run."):
        return "fixed: a run goes on where it was, with its own random numbers; start a new run for another"
    if path.startswith(("data.", "sft.")):
        return "fixed: the saved position in the prompt stream is only right for the same prompts; start a new run"
    return "fixed: the saved state is only right for the same value; start a new run (from an exported model, say)"


def _differences(old: BaseModel, new: BaseModel, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield path, old and new value of each setting that differs.

    With a new kind the options of the old one are gone; those of the new one are compared with their defaults.
    """
    for name, field in type(new).model_fields.items():
        before = getattr(old, name) if name in type(old).model_fields else field.get_default(call_default_factory=True)
        after, path = getattr(new, name), f"{prefix}{name}"
        if isinstance(before, BaseModel) and isinstance(after, BaseModel):
            yield from _differences(before, after, f"{path}.")
        elif _is_sections(before) and _is_sections(after) and len(before) == len(after):
            for n, (b, a) in enumerate(zip(before, after, strict=True)):
                yield from _differences(b, a, f"{path}.{n}.")
        elif before != after:
            yield path, _plain(before), _plain(after)


def _is_sections(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], BaseModel)


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    return [_plain(item) for item in value] if _is_sections(value) else value
