"""Messages of a run at its start and at its end."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections import Counter
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from dapo.checkpoint.store import CheckpointStore
from dapo.config.faults import brief, written
from dapo.config.load import LoadedRecipe
from dapo.config.resume import Change
from dapo.config.schema import Recipe
from dapo.config.settings import kinds_at, options_of
from dapo.config.shipped import short_name
from dapo.config.yaml_files import RESOLVED
from dapo.observe.commands import resume_said
from dapo.observe.console import Console
from dapo.observe.metrics import read_metrics
from dapo.observe.run_folder import RunFolder
from dapo.observe.sentences import best_said
from dapo.observe.summary import print_summary
from dapo.processes.watch import lost_said
from dapo.run.engines import describe_engine
from dapo.run.export import export
from dapo.run.given import Given
from dapo.run.places import ELSEWHERE
from dapo.types.evidence import ClusterLost
from dapo.words import counted


def difference_lines(loaded: LoadedRecipe) -> list[str]:
    """Every setting that differs from the preset, as a recipe has it."""
    if not loaded.difference:
        return [f"as preset {loaded.recipe.preset}"]
    width = max(map(len, loaded.difference))
    return [f"against preset {loaded.recipe.preset}:"] + [
        f"  {path:<{width}}  {written(before)} -> {written(after)}"
        for path, (before, after) in loaded.difference.items()
    ]


def brief_difference_lines(loaded: LoadedRecipe) -> list[str]:
    """Return a line for each section of what the preset is about, rewards included, and how many others differ."""
    parts: dict[str, list[str]] = {section: [] for section in _OF_A_PRESET}
    others = Counter[str]()
    for path, (before, after) in loaded.difference.items():
        section, _, key = path.partition(".")
        if section not in parts:
            others[section] += 1
        elif _of_another_kind(loaded.recipe, path):
            continue
        elif section == "rewards":
            parts[section] = [f"{reward.name} ({reward.kind})" for reward in loaded.recipe.rewards]
        else:
            parts[section].append(f"{key} {brief(before)} -> {brief(after)}")
    lines = [f"  {section:<9}  {', '.join(said)}" for section, said in parts.items() if said]
    if others:
        other = "other setting" if lines else "setting"
        where = f"of {', '.join(sorted(others))} (recipe.resolved.yaml, difference.txt)"
        lines.append(f"  {counted(others.total(), other)} {where}")
    preset = loaded.recipe.preset
    return [f"against preset {preset}:", *lines] if lines else [f"as preset {preset}"]


def _of_another_kind(recipe: Recipe, path: str) -> bool:
    """Whether a setting is an option that the preset's kind has and the recipe's has not."""
    section, _, name = path.rpartition(".")
    kind = attrgetter(section)(recipe).kind if kinds_at(section) else None
    return kind is not None and name != "kind" and name not in options_of(section, kind)


_OF_A_PRESET = ("algorithm", "learner", "sft", "rewards")


def say_recipe(console: Console, loaded: LoadedRecipe, given: Given) -> None:
    for line in brief_difference_lines(loaded):
        console.say(line)
    if loaded.recipe.run.stage == "sft":
        console.say("supervised: imitates sft.train; no engine, no rewards")
    elif given.engine is None:
        console.say(describe_engine(loaded.recipe))
    for line in given.words():
        console.say(line)
    for warning in loaded.warnings:
        console.warn(warning)


def say_changes(console: Console, changes: list[Change], warnings: Sequence[str]) -> None:
    if not changes:
        return
    console.say("changed for this resume:")
    for change in changes:
        console.say(f"  {change.sentence()}")
    for warning in warnings:
        console.warn(warning)


def say_end(folder: RunFolder, console: Console, loaded: LoadedRecipe, finished: bool) -> None:
    console.finish()
    if not finished:
        console.say(f"stopped and saved. Continue with: {resume_command(folder.shown())}")
        return
    exported = _export(folder, console, loaded.recipe) if loaded.recipe.run.stage == "sft" else None
    then = f"report {shlex.quote(str(folder.shown()))}"
    if exported is not None:
        then = f"train {_recipe_of(loaded)} model.path={shlex.quote(str(exported))}"
    print_summary(folder, console, next_command=f"{program()} {then}")
    if (said := best_said(CheckpointStore(folder.checkpoints).best(), read_metrics(folder.metrics))) is not None:
        console.say(said)


def _recipe_of(loaded: LoadedRecipe) -> str:
    """Return what to type for the recipe that a run began with; a resumed run knows only its own copy."""
    if loaded.path is None or loaded.path.name == RESOLVED:
        return "RECIPE"
    return shlex.quote(short_name(loaded.path))


def _export(folder: RunFolder, console: Console, recipe: Recipe) -> Path | None:
    """Export the model of a supervised run for the next stage: from the best checkpoint if one is kept."""
    if not recipe.sft.export:
        return None
    best = CheckpointStore(folder.checkpoints).best()
    shutil.rmtree(folder.export, ignore_errors=True)  # of an earlier end
    export(folder.path, folder.export, None if best is None else best["step"], console=console)
    return folder.export


def lost_with(lost: ClusterLost, error: Exception, folder: RunFolder, checkpoints: CheckpointStore) -> str:
    """Return the next move after a cluster was lost, and a step with it."""
    steps = checkpoints.steps()
    last = f"The last checkpoint is that of step {steps[-1]}, in {checkpoints.folder}" if steps else "There is none yet"
    return (
        f"{lost_said(lost)}, and a step could not be finished without it: {str(error).rstrip('. ')}. {last}: "
        f"`{resume_command(folder.shown())}` goes on from there, {ELSEWHERE}"
    )


def resume_command(folder: Path) -> str:
    """Return what continues a run, as it can be typed: a command, or a call of Python."""
    return resume_said(folder, program=program())


def program() -> str:
    """How this program was called, so that a command shown can be typed as it is."""
    called = Path(sys.argv[0])
    if called.name != "dapo":
        return "python -m dapo"
    if shutil.which("dapo") is not None:
        return "dapo"
    return os.path.relpath(called) if called.is_relative_to(Path.cwd()) else str(called)
