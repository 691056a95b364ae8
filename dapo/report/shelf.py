"""Memory of the server: runs as last read, lines of the list, and finished answers.

A page asks every other second, and nearly always nothing has changed: then the answer is a stat a file. When a run has
grown, only what was appended is parsed. Several threads may ask at once; who asks for what is being made waits for it.
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo.errors import DataError, RecipeError
from dapo.report.page_data import RunLine
from dapo.report.reader import RunContents, read_run
from dapo.report.recent import Recent
from dapo.report.rules import advice_of
from dapo.report.runs_list import BadName, Fingerprint, NoSuchRun, RunsFolder, brief_name, changed, fingerprint
from dapo.report.status import status_of

_log = logging.getLogger(__name__)

POINTS = 50
"""Of a small curve."""
KEPT_RUNS, KEPT_ROWS = 24, 60_000
"""Runs whose lines stay in memory, so that what is appended can be added to them, and rows of all of them together (a
row takes about 10 KB)."""
LIST_SECONDS = 1.5
"""After which a list is sent although not every run has been read: many long ones take a while the first time."""
KEPT_ANSWERS = 16
ADVICE_SECONDS = 10.0
"""The warnings of a run that grows are counted again after this time."""
REST, LONGEST_REST = 4.0, 5.0
"""An answer that took t seconds of a processor is given again for REST x t seconds, changed or not, so that following a
long run takes a fifth of a core; but no longer than LONGEST_REST, since the first answer about a run takes much longer
than those after it."""
COMPRESS_FROM = 4096
"""Bytes. Answers go through tunnels, too."""
_VALIDATION, _TRAINING = "validation/accuracy", "reward/accuracy"


class RunChanged(RuntimeError):
    """A run was written while it was read, so that its files did not fit together. To be asked again."""


@dataclass(frozen=True, slots=True)
class JsonPayload:
    """JSON ready to be sent."""

    tag: str  # changes when the content may have changed
    body: bytes
    packed: bytes | None  # the same, gzip; None where it is not worth it
    seconds: float  # of the processor, that it took to make


@dataclass
class _Slot:
    """Value under one key, and the lock of its maker."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    seen: Fingerprint | None = None
    value: Any = None
    made: float = 0.0  # monotonic seconds


@dataclass
class Shelf:
    """Reads runs of a folder and remembers them. Safe to be used by several threads."""

    folder: RunsFolder
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _runs: Recent[tuple[str, bool], _Slot] = field(default_factory=lambda: Recent(KEPT_RUNS), repr=False)
    _answers: Recent[Hashable, _Slot] = field(default_factory=lambda: Recent(KEPT_ANSWERS), repr=False)
    _lines: dict[str, _Slot] = field(default_factory=dict, repr=False)

    # ------------------------------------------------------------------------------------------------------- runs

    def run(self, name: str, light: bool = False) -> RunContents:
        """Return a run as it is now. ``light``: without samples and spans, enough for a line of the list.

        Raises:
            BadName, NoSuchRun: see ``RunsFolder.path_of``.
        """
        path = self.folder.path_of(name)
        with self._lock:
            key = (name, light and (name, False) not in self._runs)
            slot = self._runs.keep(key, self._runs.get(key) or _Slot())
        with slot.lock:
            now = fingerprint(path)
            if slot.seen != now or slot.value is None:
                try:
                    slot.value = read_run(path, earlier=slot.value, light=key[1], root=self.folder.root)
                except RecipeError:  # it went while we looked
                    raise NoSuchRun(f"run {brief_name(name)} is no longer there") from None
                slot.seen = now
            run: RunContents = slot.value
        self._forget()
        return run

    def _forget(self) -> None:
        """Drop the runs asked for longest ago while there are too many rows; the newest one always stays."""
        with self._lock:
            rows = [len(slot.value.rows) if slot.value is not None else 0 for slot in self._runs.values()]
            while len(rows) > 1 and sum(rows) > KEPT_ROWS:
                self._runs.popitem(last=False)
                rows.pop(0)

    # ------------------------------------------------------------------------------------------------------- list

    def lines(self, patience: float | None = None) -> tuple[list[RunLine], int]:
        """Return a line for each run below the folder, newest first, and how many runs have not been read yet.

        Args:
            patience: seconds after which runs are left for the next call, the newest ones having had their turn;
                default: ``LIST_SECONDS``.
        """
        names = sorted(self.folder.find().names, key=lambda name: -changed(self.folder.root / name))
        with self._lock:
            for gone in self._lines.keys() - set(names):
                del self._lines[gone]
        until = time.monotonic() + (LIST_SECONDS if patience is None else patience)
        lines: list[RunLine] = []
        waiting = 0
        for name in names:
            if time.monotonic() < until or not lines:
                line = self._line(name)
            else:
                slot = self._lines.get(name)  # another thread may be dropping it
                line = slot.value if slot is not None else None
                waiting += line is None
            if line is not None:
                lines.append(line)
        return sorted(lines, key=lambda line: (-(line.updated or line.started or 0.0), line.name)), waiting

    def _line(self, name: str) -> RunLine | None:
        with self._lock:
            slot = self._lines.setdefault(name, _Slot())
        with slot.lock:
            now: Fingerprint | None = None
            try:
                now = fingerprint(self.folder.path_of(name))
                if slot.seen != now or slot.value is None:
                    slot.value = self._make_line(name, slot)
                    slot.seen = now
            except (NoSuchRun, BadName, OSError):
                return None  # it went while we looked
            except Exception:  # one odd run must not keep the others from being seen
                _log.exception("no line for run %s", brief_name(name))
                slot.value, slot.seen = RunLine(name, "unknown", "cannot be read"), now
            line: RunLine = slot.value
            return line

    def _make_line(self, name: str, slot: _Slot) -> RunLine:
        run = self.run(name, light=True)
        status = status_of(run)
        now = time.monotonic()
        if status["state"] == "running" and slot.value is not None and now - slot.made < ADVICE_SECONDS:
            warnings, bad = slot.value.advice, slot.value.bad
        else:
            severities = [advice["severity"] for advice in advice_of(run)]
            bad = severities.count("bad")
            warnings = bad + severities.count("warn")
            slot.made = now
        if status["state"] != "running":
            with self._lock:
                self._runs.pop((name, True), None)  # nothing will be appended: its line is all that is needed
        accuracy = _points(run, _VALIDATION)
        reward = _points(run, _TRAINING)
        return RunLine(
            name=name,
            state=status["state"],
            title=status["title"],
            step=status["step"],
            steps=status["steps"],
            updated=status["updated"],
            started=status["started"],
            accuracy=[value for _, value in accuracy],
            accuracy_steps=[step for step, _ in accuracy],
            reward=[value for _, value in reward],
            reward_steps=[step for step, _ in reward],
            preset=run.recipe.preset if run.recipe else "",
            model=run.recipe.model.path if run.recipe else "",
            advice=warnings,
            bad=bad,
        )

    # ---------------------------------------------------------------------------------------------------- answers

    def answer(self, key: Hashable, names: Sequence[str], make: Callable[[], Any]) -> JsonPayload:
        """Return the answer to a question about some runs, from memory if the runs have not changed.

        Args:
            key: of the question.
            names: the runs that it is about.
            make: makes the JSON object; may be called while other threads wait for the same answer.

        Raises:
            BadName, NoSuchRun: a run that is not there.
            RunChanged: it was written meanwhile.
            DataError, OSError: a file that cannot be read.
        """
        with self._lock:
            slot = self._answers.keep(key, self._answers.get(key) or _Slot())
        with slot.lock:
            now = self._prints(names)
            known: JsonPayload | None = slot.value
            rest = 0.0 if known is None else min(REST * known.seconds, LONGEST_REST)
            resting = time.monotonic() - slot.made < rest
            if known is None or (slot.seen != now and not resting):
                try:
                    known = pack(make, repr((key, now)))
                except (NoSuchRun, BadName, DataError, OSError):
                    raise
                except Exception as error:
                    if self._prints(names) == now:
                        raise
                    raise RunChanged from error  # what one file said did not fit to the next one any more
                slot.value, slot.seen, slot.made = known, now, time.monotonic()
            return known

    def _prints(self, names: Sequence[str]) -> Fingerprint:
        return tuple(fingerprint(self.folder.path_of(name)) for name in names)


def pack(make: Callable[[], Any], identity: str | None = None) -> JsonPayload:
    """Make an answer and turn it into bytes. Its tag is made of ``identity``, or of the bytes where that is None."""
    start = time.thread_time()  # of the wall's clock, a busy machine takes more
    body = json.dumps(make(), ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode("ascii")
    named = body if identity is None else f"{os.getpid()} {identity}".encode(errors="backslashreplace")
    packed = gzip.compress(body, compresslevel=1) if len(body) >= COMPRESS_FROM else None
    return JsonPayload(hashlib.sha256(named).hexdigest()[:24], body, packed, time.thread_time() - start)


def _points(run: RunContents, key: str) -> list[tuple[int, float | None]]:
    """Return a metric over steps, where it was measured; of many steps, the means of equal stretches of them."""
    seen = [(int(row["step"]), float(row[key])) for row in run.rows if row.get(key) is not None]
    if len(seen) <= POINTS:
        return [(step, value) for step, value in seen]
    edges = [len(seen) * i // POINTS for i in range(POINTS + 1)]
    stretches = [seen[a:b] for a, b in itertools.pairwise(edges)]
    return [(stretch[-1][0], sum(value for _, value in stretch) / len(stretch)) for stretch in stretches]


def folder_name(folder: RunsFolder) -> str:
    """Return the served folder for a page: the last part of its path alone, for pages are shown to others."""
    return (folder.root / (folder.only or "")).name or "/"
