"""Read a run folder into a ``RunContents``: everything that a page shows of a run, apart from its rollouts.

The folder may belong to a run that is going on, that was killed in the middle of a line, or that another version wrote.
Nothing here raises for that: what cannot be read is left out, and ``RunContents.notes`` says so. Nothing is written.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from pydantic import ValidationError

from dapo.config.files import MOST_BYTES, parse_yaml
from dapo.config.schema import Recipe
from dapo.errors import RecipeError
from dapo.observe import jsonl, machine, processes
from dapo.observe.files import open_regular, read_regular
from dapo.observe.metrics import Row, in_order
from dapo.observe.run_folder import RunFolder
from dapo.observe.run_lock import is_held
from dapo.observe.samples import Sample
from dapo.observe.status import read_status
from dapo.observe.text import utf8
from dapo.report.family import LARGEST, family_of
from dapo.report.machines import machine_of
from dapo.report.page_data import MachineView, ProcessView
from dapo.report.settings import difference_of
from dapo.types.protocols import Span

T = TypeVar("T")

LOG_LINES = 40
"""Lines of log.txt that are kept, from its end."""
_LOG_BYTES = 64 * 1024
_COMPARED = 256
_TOGETHER = 256
"""Lines parsed at once: their keys are then one object each, which halves time and memory."""
_MOST_PROCESS_BYTES, _MOST_PROCESSES, _LONGEST_NAME = 2**22, 1000, 200
_LATEST, _LONGEST_SPAN = 1e11, 1e9
"""Seconds. Spans beyond are none."""
_SAMPLE_TYPES: dict[str, tuple[type, ...]] = {
    "step": (int,),
    "set": (str,),
    "prompt_id": (str,),
    "prompt": (str,),
    "answer": (str,),
    "response": (str,),
    "accuracy": (int, float, type(None)),
    "length": (int,),
    "truncated": (bool,),
    "greedy": (bool,),
    "unscored": (str, type(None)),
    "problem": (str,),
}


class _Mark(NamedTuple):
    """How far a file was read, and which file that was."""

    inode: int
    offset: int
    before: bytes  # what stood before the offset: a file that was cut back and grew again differs there
    refused: int  # lines up to there that were left out


@dataclass
class RunContents:
    """Contents of a run folder. Unreadable parts are empty or None, and ``notes`` says why."""

    folder: RunFolder
    name: str  # of the folder
    rows: list[Row] = field(default_factory=list)  # metrics.jsonl in order of steps; values are finite numbers or None
    recipe: Recipe | None = None  # None: of another version
    resolved: str = ""  # recipe.resolved.yaml
    difference: list[tuple[str, str, str]] = field(default_factory=list)  # path, the preset's value, the run's
    status_record: dict[str, Any] | None = None  # status.json, its fields as in ``RunStatus``
    held: bool = False  # some process holds RUN/lock: the run is going on
    log_tail: list[str] = field(default_factory=list)  # last lines of log.txt
    samples: list[Sample] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    machines: list[MachineView] = field(default_factory=list)  # machine.jsonl
    processes: list[ProcessView] = field(default_factory=list)  # processes.json
    notes: list[str] = field(default_factory=list)
    seed: int | None = None
    family: str = ""  # equal for recipes that differ in seeds and name alone; "" where there is no recipe
    marks: dict[str, _Mark] = field(default_factory=dict, repr=False)  # by file name
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
    run.status_record = _read_status(run)
    run.held = is_held(folder.path) or _is_ours(run.status_record)
    run.log_tail = _tail(run, folder.log)
    run.processes = _read_processes(run)
    run.rows = in_order(_read_lines(run, folder.metrics, _row, earlier.rows if earlier else [], earlier))
    if not light:
        machines = folder.path / machine.FILE
        run.machines = _read_lines(run, machines, machine_of, earlier.machines if earlier else [], earlier)
        run.samples = _read_lines(run, folder.samples, _sample, earlier.samples if earlier else [], earlier)
        run.spans = _read_lines(run, folder.spans, _span, earlier.spans if earlier else [], earlier)
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


def _read_status(run: RunContents) -> dict[str, Any] | None:
    status = read_status(run.folder.status, run.within)
    if status is None and os.path.lexists(run.folder.status):
        run.notes.append("status.json cannot be read: how the run stands is inferred from its other files.")
    return asdict(status) if status else None


def _read_processes(run: RunContents) -> list[ProcessView]:
    path = run.folder.path / processes.FILE
    try:
        found = json.loads(read_regular(path, _MOST_PROCESS_BYTES, run.within))["processes"]
        return [view for record in found[:_MOST_PROCESSES] if (view := _process(record))]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        run.notes.append(f"{path.name} cannot be read: the processes of the run are left out.")
        return []


def _process(record: Any) -> ProcessView | None:
    """Return a row of processes.json; None for one that this program did not write."""
    if not isinstance(record, dict) or any(not isinstance(record.get(key), str) for key in ("name", "role", "machine")):
        return None
    restarts, process, alive = record.get("restarts"), record.get("process"), record.get("alive")
    if type(restarts) is not int or not 0 <= restarts < 2**31 or type(alive) is not bool:
        return None
    return ProcessView(
        name=utf8(record["name"])[:_LONGEST_NAME],
        role=utf8(record["role"])[:_LONGEST_NAME],
        machine=utf8(record["machine"])[:_LONGEST_NAME],
        process=process if type(process) is int and 0 <= process < 2**31 else None,
        alive=alive,
        restarts=restarts,
        last_turn=_number(record.get("last_turn")),
        turn_seconds=_number(record.get("turn_seconds")),
        memory_mib=_number(record.get("memory_mib")),
    )


def _is_ours(status: dict[str, Any] | None) -> bool:
    """Whether this very process trains there: a run may look at itself."""
    us = (os.getpid(), os.uname().nodename)
    return status is not None and status["state"] == "running" and (status["pid"], status["host"]) == us


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


# ---------------------------------------------------------------------------------------------------- lines of JSON


def _read_lines(
    run: RunContents, path: Path, make: Callable[[Any], T | None], before: list[T], earlier: RunContents | None
) -> list[T]:
    """Every whole line of a file as ``make`` has it; those that it refuses (None) are counted in a note.

    A line without its newline is still being written, and not counted.
    """
    known, start, mark, refused = list(before), 0, None, 0
    try:
        with open_regular(path, run.within) as file:
            inode = os.fstat(file.fileno()).st_ino
            mark = earlier.marks.get(path.name) if earlier else None
            if mark and _still(file, inode, mark):
                start, refused = mark.offset, mark.refused
            else:
                known = []
            file.seek(start)
            data = file.read(jsonl.MOST_BYTES)  # a file of a few blocks may say that it has terabytes
    except FileNotFoundError:
        return []
    except OSError as error:
        run.notes.append(f"{path.name} cannot be read: {error.strerror}.")
        return known
    whole = data[: data.rfind(b"\n") + 1]
    lines = [line for line in whole.split(b"\n") if line.strip()]
    for first in range(0, len(lines), _TOGETHER):
        for record in _parse(lines[first : first + _TOGETHER]):
            made = make(record)
            if made is None:
                refused += 1
            else:
                known.append(made)
    if whole:
        run.marks[path.name] = _Mark(inode, start + len(whole), whole[-_COMPARED:], refused)
    elif start and mark:
        run.marks[path.name] = mark
    if refused:
        lines_were = "1 line was" if refused == 1 else f"{refused:,} lines were"
        run.notes.append(
            f"{path.name}: {lines_were} not as expected, and left out. Was the file edited, the disk full?"
        )
    return known


def _still(file: BinaryIO, inode: int, mark: _Mark) -> bool:
    """Return whether the part of the file that was read before is unchanged."""
    if inode != mark.inode:
        return False
    file.seek(mark.offset - len(mark.before))
    return file.read(len(mark.before)) == mark.before


def _parse(lines: list[bytes]) -> Iterable[Any]:
    """Yield the JSON values of lines; None for a line that is no JSON."""
    try:
        records: list[Any] = json.loads(b"[" + b",".join(lines) + b"]")
        if len(records) == len(lines):  # else a line held several values
            return records
    except (ValueError, RecursionError):
        pass
    return [_parse_one(line) for line in lines]


def _parse_one(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def _step(record: Any) -> int | None:
    step = record.get("step") if isinstance(record, dict) else None
    return step if type(step) is int and 0 <= step < 2**31 else None


def _number(value: Any) -> float | int | None:
    """Return a finite number that may have been measured; None for everything else that JSON may hold."""
    kind = type(value)
    if kind is float:
        return value if abs(value) <= LARGEST else None  # so neither inf nor nan
    if kind is int:
        return value if -(2**63) < value < 2**63 else None
    return None


@lru_cache(maxsize=4096)
def _key(text: str) -> str:
    return sys.intern(utf8(text))


def _row(record: Any) -> Row | None:
    if _step(record) is None:
        return None
    return {_key(key): _number(value) for key, value in record.items()}


def _sample(record: Any) -> Sample | None:
    if _step(record) is None:
        return None
    names = list(_SAMPLE_TYPES)
    if any(not isinstance(record.get(name, ...), _SAMPLE_TYPES[name]) for name in names):
        return None
    known: dict[str, Any] = {
        name: utf8(record[name]) if isinstance(record[name], str) else record[name] for name in names
    }
    known["accuracy"] = _number(record["accuracy"])
    return Sample(**known)


def _span(record: Any) -> Span | None:
    step = _step(record)
    if step is None or not isinstance(record.get("name"), str):
        return None
    start, seconds = _number(record.get("start")), _number(record.get("seconds"))
    if start is None or seconds is None or not 0 <= start < _LATEST or not 0 <= seconds < _LONGEST_SPAN:
        return None
    busy, count = _number(record.get("busy", seconds)), record.get("count", 1)
    return Span(
        step,
        sys.intern(utf8(record["name"])),
        float(start),
        float(seconds),
        min(float(seconds if busy is None else max(0, busy)), float(seconds)),
        count if type(count) is int and count > 0 else 1,
    )
