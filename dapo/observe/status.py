"""RUN/status.json: how a run stands, or how it ended.

A run that was killed could not say so: its file says ``running``, and no process holds its folder
(``run_lock.is_held``).
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dapo.config.secret_text import redact_text
from dapo.errors import DapoError, NothingScored, SamplingStopped, WithEvidence
from dapo.observe.jsonl import write_atomically
from dapo.observe.run_files import read_regular
from dapo.observe.text import shorten, utf8
from dapo.types.evidence import CollectProgress, Evidence

State = Literal["running", "finished", "interrupted", "unfilled", "failed"]
"""``interrupted``: stopped, and saved. ``unfilled``: the batch could not be filled. ``failed``: any other error."""

PATIENCE = 1.0
"""Seconds between two writes while a run goes on."""
_LONGEST = 4000  # characters of an error's message
_LONGEST_TEXT, _MOST_ENTRIES = 200, 40  # of a text of the evidence, and of its lists
_MOST_BYTES = 192 * 1024  # that are read: each character takes twelve at most
_NOT_SAVED = ", before the first checkpoint; a resume starts from the beginning"
_FILLING = TypeAdapter(CollectProgress)
_EVIDENCE: TypeAdapter[Evidence] = TypeAdapter(Annotated[Evidence, Field(discriminator="kind")])


@dataclass(frozen=True, slots=True)
class RunStatus:
    """The content of the file. Times are seconds since 1970."""

    state: State
    said: str  # why it ended so; "" while it runs
    step: int  # last training step recorded
    steps: int  # that the recipe wants
    pid: int  # of the process that trains, or trained last
    host: str
    started: float  # first start of the run; a resume does not change it
    updated: float  # last update
    doing: str = ""  # within a step or an evaluation that goes on: how far it is
    folder: str = ""  # where the run lived when it said so; it may have been moved since
    evidence: Mapping[str, Any] | None = None  # why it ended, as data: see ``read_evidence``
    filling: Mapping[str, Any] | None = None  # of a step that is not done, its batch as data: see ``read_filling``


_STATUS = TypeAdapter(RunStatus)


class StatusWriter:
    """Tells how a run stands: at its start, after each step, in long steps (at most once a second), and at its end.

    Two threads call it: the driver, and the one that looks whether anything moves.
    """

    def __init__(self, path: Path, steps: int, step: int = 0, clock: Callable[[], float] = time.time) -> None:
        """Say ``running``.

        Args:
            path: The file; an earlier one of the same run gives ``started``.
            steps: Training steps that the recipe wants.
            step: Training steps that are done.
            clock: Seconds since 1970.
        """
        self._path, self._clock, self._lock = path, clock, threading.RLock()
        self._doing = self._still = ""
        self._filling: CollectProgress | None = None
        earlier, now = read_status(path), clock()
        started = now if earlier is None else earlier.started
        host, folder = os.uname().nodename, utf8(str(path.parent))
        self.status = RunStatus("running", "", step, steps, os.getpid(), host, started, now, folder=folder)
        self._write()

    def wants(self, steps: int) -> None:
        """So many training steps, once that is known."""
        self.status = replace(self.status, steps=steps)

    def step(self, step: int) -> None:
        """Record a training step. Writes at once: the caller of the steps may hold the run for long now."""
        with self._lock:
            self._doing, self._still, self._filling = "", "", None
            self.status = replace(self.status, step=step)
            self._update()

    def doing(self, what: str, filling: CollectProgress | None = None) -> None:
        """Note in a few words how far a long step or evaluation is, and the facts of a batch that fills. Written at
        most every ``PATIENCE`` seconds."""
        with self._lock:
            self._doing, self._filling = what, filling or self._filling
            # A clock that was set back does not silence it.
            if not self.status.updated <= self._clock() < self.status.updated + PATIENCE:
                self._update()

    def stillness(self, line: str) -> None:
        """Note that nothing moves, in one line; "": something does again. Written at once: a later write may be far."""
        with self._lock:
            self._still = line
            self._update()

    def _update(self) -> None:
        doing = "; ".join(said for said in (self._doing, self._still) if said)
        self.status = replace(self.status, doing=doing, updated=self._clock(), filling=self._filling_data())
        self._write()

    def _filling_data(self) -> Mapping[str, Any] | None:
        return None if self._filling is None else _bounded(asdict(self._filling))

    def end(self, state: State, said: str = "", evidence: Evidence | None = None) -> None:
        """Record the end of the run: ``said`` is the sentence for people, ``evidence`` the facts for programs."""
        said = shorten(redact_text(utf8(said)), _LONGEST)
        data = None if evidence is None else _bounded(asdict(evidence))
        now, filling = self._clock(), self._filling_data()
        self.status = replace(
            self.status, state=state, said=said, doing="", updated=now, evidence=data, filling=filling
        )
        if not self._write():
            # On a full disk there is no room for a second file, but the first one's can be used again. A reader that
            # comes in the very middle finds no status for once.
            with suppress(OSError), self._path.open("r+b") as file:
                file.write(
                    json.dumps(
                        asdict(replace(self.status, said=shorten(self.status.said, 200), evidence=None, filling=None))
                    ).encode()
                )
                file.truncate()

    def _write(self) -> bool:
        # No wait for the disk: after a power cut an old status is as good as the newest. And no training ends, nor an
        # error's own message is lost, because this file could not be written.
        try:
            write_atomically(self._path, json.dumps(asdict(self.status)) + "\n", sync=False)
        except OSError:
            return False
        return True


@contextmanager
def ending(status: StatusWriter, saved: Callable[[], Sequence[int]]) -> Iterator[None]:
    """Say how the run ended when an exception ends it; the exception goes on. Otherwise the caller says it.

    ``saved`` returns the steps that have a checkpoint, ascending.
    """
    try:
        yield
    except SamplingStopped as stopped:
        unscored = isinstance(stopped, NothingScored)
        status.end("failed" if unscored else "unfilled", str(stopped), _evidence(stopped))
        raise
    except KeyboardInterrupt:
        steps = saved()
        there = f"; a resume goes on from the checkpoint of step {steps[-1]}" if steps else _NOT_SAVED
        status.end("interrupted", f"left at once{there}")
        raise
    except BaseException as error:
        said = " ".join(f"{type(error).__name__}: {error}".split())
        status.end("failed", said if isinstance(error, DapoError) else f"{said}, {_place(error)}", _evidence(error))
        raise


def _place(error: BaseException) -> str:
    """Return where an error was raised: an unexpected one says little without."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"in {last.name} ({Path(last.filename).name}, line {last.lineno}; log.txt has the whole)"


def _evidence(error: BaseException) -> Evidence | None:
    found = error.evidence if isinstance(error, WithEvidence) else None
    return found if isinstance(found, Evidence) else None


def _bounded(data: Any) -> Any:
    """Texts of models and verifiers, and lists of them, may be of any length: a status is small."""
    if isinstance(data, str):
        return shorten(utf8(data), _LONGEST_TEXT)
    if isinstance(data, dict):
        return {_bounded(key): _bounded(value) for key, value in list(data.items())[:_MOST_ENTRIES]}
    return data


def _sane(data: object) -> bool:
    """No number that arithmetic or a sentence would trip over."""
    if isinstance(data, Mapping):
        return all(map(_sane, data.values()))
    return not isinstance(data, int | float) or abs(data) < 2**63  # false for nan as well


def read_evidence(data: object) -> Evidence | None:
    """``RunStatus.evidence`` as what it was when it was written; None for anything else. Its texts are untrusted."""
    try:
        return _EVIDENCE.validate_python(data) if _sane(data) else None
    except ValidationError:
        return None


def read_filling(data: object) -> CollectProgress | None:
    """``RunStatus.filling`` as what it was when it was written, likewise."""
    try:
        return _FILLING.validate_python(data) if _sane(data) else None
    except ValidationError:
        return None


def read_status(path: Path, within: Path | None = None) -> RunStatus | None:
    """Return the content of the file; None if it is missing, or not of this version.

    ``within``: see ``open_regular``.
    """
    try:
        status = _STATUS.validate_json(read_regular(path, _MOST_BYTES, within))
    except (OSError, ValidationError):
        return None
    times = math.isfinite(status.started) and math.isfinite(status.updated)
    counts = all(abs(count) < 2**63 for count in (status.step, status.steps, status.pid))
    return status if times and counts else None
