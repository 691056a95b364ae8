"""Records of a run's JSON files: each is what this program may have written, or is left out.

Files of JSON lines grow while a run goes on, so what was read of one stays known: only what was appended is parsed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

from dapo.observe import jsonl
from dapo.observe.metrics import Row
from dapo.observe.run_files import open_regular
from dapo.observe.samples import Sample
from dapo.observe.text import utf8
from dapo.report.family import LARGEST
from dapo.report.page_data import ProcessView
from dapo.types.protocols import Span

T = TypeVar("T")

_COMPARED = 256
_TOGETHER = 256
"""Lines parsed at once: their keys are then one object each, which halves time and memory."""
_LONGEST_NAME = 200
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


class FileMark(NamedTuple):
    """How far a file was read, and which file that was."""

    inode: int
    offset: int
    before: bytes  # what stood before the offset: a file that was cut back and grew again differs there
    refused: int  # lines up to there that were left out


class Lines(NamedTuple):
    """The values made of a file of JSON lines, and how far it was read."""

    made: list[Any]
    mark: FileMark | None  # None: not a whole line yet
    problem: str = ""  # why the file or some of its lines were left out


def read_lines(
    path: Path, within: Path, make: Callable[[Any], T | None], before: list[T], mark: FileMark | None
) -> Lines:
    """Return every whole line of a file as ``make`` has it; those that it refuses (None) are counted as a problem.

    A line without its newline is still being written, and not counted.

    Args:
        path: the file.
        within: the folder that has to hold it, see ``open_regular``.
        make: what a JSON value becomes.
        before: what an earlier read made; it is not changed.
        mark: where that read ended.
    """
    known, start, refused = list(before), 0, 0
    try:
        with open_regular(path, within) as file:
            inode = os.fstat(file.fileno()).st_ino
            if mark and _still(file, inode, mark):
                start, refused = mark.offset, mark.refused
            else:
                known, mark = [], None
            file.seek(start)
            data = file.read(jsonl.MOST_BYTES)  # a file of a few blocks may say that it has terabytes
    except FileNotFoundError:
        return Lines([], None)
    except OSError as error:
        return Lines(known, None, f"{path.name} cannot be read: {error.strerror}.")
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
        mark = FileMark(inode, start + len(whole), whole[-_COMPARED:], refused)
    lines_were = "1 line was" if refused == 1 else f"{refused:,} lines were"
    problem = f"{path.name}: {lines_were} not as expected, and left out. Was the file edited, the disk full?"
    return Lines(known, mark, problem if refused else "")


def _still(file: BinaryIO, inode: int, mark: FileMark) -> bool:
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


def row_of(record: Any) -> Row | None:
    """Return a line of metrics.jsonl; None for one that this program did not write."""
    if _step(record) is None:
        return None
    return {_key(key): _number(value) for key, value in record.items()}


def sample_of(record: Any) -> Sample | None:
    """Return a line of samples.jsonl, likewise."""
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


def span_of(record: Any) -> Span | None:
    """Return a line of spans.jsonl, likewise."""
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


def process_of(record: Any) -> ProcessView | None:
    """Return an entry of processes.json, likewise."""
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
