"""Read a run folder into a ``RunContents``: everything that a page shows of a run, apart from its rollouts.

The folder may belong to a run that is going on, that was killed in the middle of a line, or that another version wrote.
Nothing here raises for that: what cannot be read is left out, and ``RunContents.notes`` says so. Nothing is written.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from dapo.config.schema import Recipe
from dapo.config.yaml_files import MOST_BYTES, parse_yaml
from dapo.errors import RecipeError
from dapo.observe import machine, processes
from dapo.observe.metrics import Row, in_order
from dapo.observe.run_files import open_regular, read_regular
from dapo.observe.run_folder import RunFolder
from dapo.observe.run_lock import is_held
from dapo.observe.samples import Sample
from dapo.observe.status import RunStatus, read_status
from dapo.observe.text import utf8
from dapo.report.family import family_of
from dapo.report.machines import machine_of
from dapo.report.page_data import MachineView, ProcessView
from dapo.report.records import FileMark, process_of, read_lines, row_of, sample_of, span_of
from dapo.report.settings_table import difference_of
from dapo.types.protocols import Span

T = TypeVar("T")

LOG_LINES = 40
"""Lines of log.txt that are kept, from its end."""
_LOG_BYTES = 64 * 1024
_MOST_PROCESS_BYTES, _MOST_PROCESSES = 2**22, 1000


@dataclass
class RunContents:
    """Contents of a run folder. Unreadable parts are empty or None, and ``notes`` says why."""

    folder: RunFolder
    name: str  # of the folder
    rows: list[Row] = field(default_factory=list)  # metrics.jsonl in order of steps; values are finite numbers or None
    recipe: Recipe | None = None  # None: of another version
    resolved: str = ""  # recipe.resolved.yaml
    difference: list[tuple[str, str, str]] = field(default_factory=list)  # path, the preset's value, the run's
    status: RunStatus | None = None  # status.json
    held: bool = False  # some process holds RUN/lock: the run is going on
    log_tail: list[str] = field(default_factory=list)  # last lines of log.txt
    samples: list[Sample] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    machines: list[MachineView] = field(default_factory=list)  # machine.jsonl
    processes: list[ProcessView] = field(default_factory=list)  # processes.json
    notes: list[str] = field(default_factory=list)
    seed: int | None = None
    family: str = ""  # equal for recipes that differ in seeds and name alone; "" where there is no recipe
    marks: dict[str, FileMark] = field(default_factory=dict, repr=False)  # by file name
    root: Path | None = None  # links may lead to anywhere below it; None: below the run's folder

    @property
    def within(self) -> Path:
        """Folder that must hold the run's files once links are followed."""
        return self.root or self.folder.path

    @property
    def supervised(self) -> bool:
        """Made by ``dapo sft``: it has losses, and neither rewards nor an accuracy."""
        return self.recipe is not None and self.recipe.run.stage == "sft"

    @property
    def last_step(self) -> int:
        """Step of the last row; 0 if there is none."""
        return int(self.rows[-1]["step"]) if self.rows else 0


def read_run(
    path: str | Path, *, earlier: RunContents | None = None, light: bool = False, root: Path | None = None
) -> RunContents:
    """Read a run folder.

    Args:
        path: the folder.
        earlier: the same folder as it was read before: only what was appended since is parsed. It is not changed.
        light: leave out validation samples and spans, for a list of many runs.
        root: files that links lead out of it to are left out; default the folder.

    Raises:
        RecipeError: the folder holds no run.
    """
    folder = RunFolder.open(path)
    run = RunContents(folder, utf8(folder.path.resolve().name), root=root)
    _read_recipe(run)
    run.status = _read_status(run)
    run.held = is_held(folder.path) or _is_ours(run.status)
    run.log_tail = _tail(run, folder.log)
    run.processes = _read_processes(run)
    run.rows = in_order(_read_lines(run, folder.metrics, row_of, earlier.rows if earlier else [], earlier))
    if not light:
        machines = folder.path / machine.FILE
        run.machines = _read_lines(run, machines, machine_of, earlier.machines if earlier else [], earlier)
        run.samples = _read_lines(run, folder.samples, sample_of, earlier.samples if earlier else [], earlier)
        run.spans = _read_lines(run, folder.spans, span_of, earlier.spans if earlier else [], earlier)
    return run


# ---------------------------------------------------------------------------------------------------- recipe, status


def _read_recipe(run: RunContents) -> None:
    path = run.folder.resolved_recipe
    try:
        run.resolved = read_regular(path, MOST_BYTES, run.within).decode(errors="replace")
    except OSError as error:
        run.notes.append(f"{path.name} cannot be read: {error.strerror}.")
        return
    run.recipe, run.seed, run.family, run.difference, note = _parsed_recipe(run.resolved)
    run.difference = list(run.difference)
    if note:
        run.notes.append(note)
        run.difference = _difference_of_file(run, run.folder.difference)


@lru_cache(maxsize=256)
def _parsed_recipe(text: str) -> tuple[Recipe | None, int | None, str, list[tuple[str, str, str]], str]:
    """Recipe, seed, family, difference and a note. YAML takes a tenth of a second, so each text is parsed once."""
    try:
        given, _ = parse_yaml(text, "recipe.resolved.yaml")
        family = family_of(given)
    except (RecipeError, RecursionError, ValueError, TypeError) as error:
        return None, None, "", [], f"recipe.resolved.yaml cannot be read: {error}"
    section = given.get("run")
    settings = section if isinstance(section, dict) else {}
    seed = settings.get("seed") if type(settings.get("seed")) is int else None
    try:
        recipe = Recipe.model_validate(given)  # no look at its files: they need not be here any more
        difference = difference_of(recipe)
    except (ValidationError, RecipeError) as error:
        what = error.errors()[0]["loc"] if isinstance(error, ValidationError) else str(error)
        where = ".".join(map(str, what)) if isinstance(what, tuple) else what
        note = f"recipe.resolved.yaml is of another version ({where}): what depends on its settings is left out."
        return None, seed, family, [], note
    return recipe, recipe.run.seed, family, difference, ""


def _difference_of_file(run: RunContents, path: Path) -> list[tuple[str, str, str]]:
    """difference.txt: lines of ``path  before -> after``, for a recipe that this version cannot read."""
    try:
        lines = read_regular(path, MOST_BYTES, run.within).decode(errors="replace").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        name, _, values = line.strip().partition(" ")
        before, arrow, after = values.strip().partition(" -> ")
        if line.startswith("  ") and arrow:
            found.append((name, before, after))
    return found


def _read_status(run: RunContents) -> RunStatus | None:
    status = read_status(run.folder.status, run.within)
    if status is None and os.path.lexists(run.folder.status):
        run.notes.append("status.json cannot be read: how the run stands is inferred from its other files.")
    return status


def _read_processes(run: RunContents) -> list[ProcessView]:
    path = run.folder.path / processes.FILE
    try:
        found = json.loads(read_regular(path, _MOST_PROCESS_BYTES, run.within))["processes"]
        return [view for record in found[:_MOST_PROCESSES] if (view := process_of(record))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        run.notes.append(f"{path.name} cannot be read: the processes of the run are left out.")
        return []


def _is_ours(status: RunStatus | None) -> bool:
    """Whether this very process trains there: a run may look at itself."""
    us = (os.getpid(), os.uname().nodename)
    return status is not None and status.state == "running" and (status.pid, status.host) == us


def _tail(run: RunContents, path: Path) -> list[str]:
    """Return the last lines of a text file, however long it is."""
    try:
        with open_regular(path, run.within) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _LOG_BYTES))
            text = file.read(_LOG_BYTES).decode(errors="replace")
    except FileNotFoundError:
        return []
    except OSError as error:
        run.notes.append(f"{path.name} cannot be read: {error.strerror}.")
        return []
    lines = text.splitlines()
    return (lines[1:] if size > _LOG_BYTES and len(lines) > 1 else lines)[-LOG_LINES:]


def _read_lines(
    run: RunContents, path: Path, make: Callable[[Any], T | None], before: list[T], earlier: RunContents | None
) -> list[T]:
    """Return the lines of a file, note what is wrong with it, and remember how far it was read."""
    found = read_lines(path, run.within, make, before, earlier.marks.get(path.name) if earlier else None)
    if found.mark:
        run.marks[path.name] = found.mark
    if found.problem:
        run.notes.append(found.problem)
    return found.made
