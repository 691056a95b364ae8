"""Append-only files of one JSON object a line: metrics, validation samples, spans.

A line counts only when it ends in a newline. So a file that a killed process left half-written is read as the
lines before, and the next writer removes the rest.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dapo.errors import DataError
from dapo.observe.run_files import read_regular

MOST_BYTES = 2**31
"""Of a file that is read: a run of 5,000 steps has a fortieth of that in its metrics."""

log = logging.getLogger(__name__)

Record = dict[str, Any]


class JsonlWriter:
    """Appends records; one outlives this process when ``append`` returns, a power cut when ``sync`` does."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        _drop_unfinished_line(path)
        self.path = path
        self._file = path.open("ab", buffering=0)  # unbuffered: one write call a line

    def append(self, *records: Mapping[str, Any]) -> None:
        """Write records. Not-finite floats must be None already (JSON has no word for them)."""
        self.append_text("".join(json.dumps(record, allow_nan=False) + "\n" for record in records))

    def append_text(self, lines: str) -> None:
        """Write whole lines, each one JSON object, that the caller has made itself: all of them or none.

        Raises:
            OSError: they could not be written; the file is as it was before.
        """
        left, size = memoryview(lines.encode()), os.fstat(self._file.fileno()).st_size
        try:
            while left:  # a disk that is nearly full takes a part, and says so only in the count
                left = left[self._file.write(left) or 0 :]
        except OSError:
            self._file.truncate(size)  # else the next line would be glued to half of this one
            raise

    def sync(self) -> None:
        """Wait until everything appended is on the disk. Milliseconds, so not for every line."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def read_jsonl(path: Path) -> list[Record]:
    """All whole lines; [] when there is no such file.

    Raises:
        DataError: a line that is not the last is no JSON object.
    """
    if not path.exists():
        return []
    whole, _, _ = _content(path).rpartition(b"\n")
    return [_parse(path, number, line) for number, line in enumerate(whole.splitlines(), 1) if line.strip()]


def read_steps(path: Path) -> list[int]:
    """Return the step of each whole line; [] when there is no such file.

    Raises:
        DataError: a line that is not the last is no JSON object, or names no step.
    """
    steps = []
    for number, record in enumerate(read_jsonl(path), 1):
        step = record.get("step")
        if not isinstance(step, int) or isinstance(step, bool):
            raise DataError(f"{path}: record {number} names no step. Was the file edited? Take that line out.")
        steps.append(step)
    return steps


def cut_jsonl(path: Path, keep: Callable[[Record], bool], *, forgiving: bool = False) -> int:
    """Remove the records that ``keep`` refuses, and a half-written last line. Atomic; returns how many were removed.

    Args:
        path: the file; nothing happens where there is none.
        keep: whether a record stays.
        forgiving: damaged lines are removed, too, with a warning; otherwise they are an error.

    Raises:
        DataError: a line that is not the last is no JSON object, and ``forgiving`` is False.
    """
    if not path.exists():
        return 0
    records = read_jsonl(path) if not forgiving else _readable(path)
    kept = [record for record in records if keep(record)]
    write_atomically(path, "".join(json.dumps(record) + "\n" for record in kept))
    return len(records) - len(kept)


def _readable(path: Path) -> list[Record]:
    """Return the records of lines that can be read and name their step."""
    whole, _, _ = _content(path).rpartition(b"\n")
    records, damaged = [], 0
    for number, line in enumerate(filter(bytes.strip, whole.splitlines()), 1):
        try:
            record = _parse(path, number, line)
            int(record["step"])
        except (DataError, KeyError, TypeError, ValueError):
            damaged += 1
        else:
            records.append(record)
    if damaged:
        log.warning("%s: %d damaged lines are taken out", path, damaged)
    return records


def write_atomically(path: Path, text: str, *, sync: bool = True) -> None:
    """Write a text file so that a crash at any instant leaves the old or the new one, whole.

    ``sync=False`` spares the wait for the disk: that holds for a crash of this process then, not for a power cut.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    temporary.replace(path)


def _content(path: Path) -> bytes:
    try:
        return read_regular(path, MOST_BYTES)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None


def _parse(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} line {number} is not JSON ({error}). Was the file edited or the disk full?") from None
    if not isinstance(record, dict):
        raise DataError(f"{path} line {number} holds {type(record).__name__}, expected one JSON object a line.")
    return record


def _drop_unfinished_line(path: Path) -> None:
    if not path.exists():
        return
    with path.open("r+b") as file:
        file.truncate(file.read().rfind(b"\n") + 1)
