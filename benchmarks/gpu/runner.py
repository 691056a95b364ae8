"""The parent: starts children, watches their time, writes what they tell. Needs the standard library alone."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.child import LEAST_SECONDS
from benchmarks.gpu.plan import Part
from benchmarks.gpu.results import LOG, Results, folder_for, told
from benchmarks.gpu.room import Row

ROOT = Path(__file__).resolve().parents[2]
_START_SECONDS = 240.0  # the first child imports torch and transformers, from a cold disk
_AGAIN_SECONDS = 90.0  # the next ones from a warm one, while the card still clears up behind a crash
_GRACE = 6.0  # a part over its limit gets so long to notice it itself
_KILLED_SECONDS = 20.0  # a killed child gets so long to go; one that hangs inside the driver does not
_QUIET = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "TRANSFORMERS_VERBOSITY": "error",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass
class Runner:
    """Runs a plan to its end, whatever single parts do.

    Args:
        parts: What to run, in order.
        plan: Module that holds them as ``PLAN``.
        device: ``auto`` or ``cpu``.
        seconds: Of the whole, on a card and in a rehearsal without one.
        out: Folder of results folders.
        describe: Card's name -> what the results say of the machine.
        say: Shows a line.
    """

    parts: list[Part]
    plan: str
    device: str
    seconds: tuple[float, float]
    out: Path
    describe: Callable[[str], dict[str, Any]]
    say: Callable[[str], None] = print
    grace: float = _GRACE
    results: Results | None = None
    _began: float = field(default_factory=time.monotonic)
    _ends: float = 0.0
    _current: Part | None = None
    _since: float = 0.0
    _gone: str = ""  # why the card that was here at the start is not any more

    def run(self) -> Results:
        """Every part ends with a status.

        Raises:
            RuntimeError: no child process gets so far as to say hello.
        """
        left = list(self.parts)
        try:
            while left:
                if self._no_more(left):
                    break
                done = self._child(left)
                if self._gone:
                    continue
                if done == 0 and self.results is None:
                    raise RuntimeError("the process that should run the parts does not start; its output is above")
                left = left[max(done, 1) :]
        finally:
            if self.results is not None:
                self.results.close()
        assert self.results is not None
        return self.results

    def _no_more(self, left: list[Part]) -> bool:
        """Where nothing else can be run, every part that is left gets its end without a process."""
        if self.results is None:
            return False
        if self._gone:
            status, said = "died", f"the card does not answer any more: {self._gone}"
        elif self._ends - time.monotonic() < LEAST_SECONDS:
            status, said = "not reached", "the time was over"
        else:
            return False
        for part in left:
            self._over({"event": "end", "part": part.name, "status": status, "said": said, "seconds": 0.0})
        return True

    def _child(self, parts: list[Part]) -> int:
        """Run ``parts`` in one child; returns how many of them are over."""
        reader, writer = os.pipe()
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.gpu.child", str(writer)],
            stdin=subprocess.PIPE, pass_fds=(writer,), start_new_session=True, env=_environment(),
        )  # fmt: skip
        os.close(writer)
        self._current, self._since = None, time.monotonic()
        done, patience = 0, 0.0
        try:
            self._order(process, parts)
            with os.fdopen(reader, "rb", buffering=0) as pipe:
                for row in self._rows(pipe):
                    if row["event"] == "hello":
                        self._hello(process, row)
                        if self._gone:
                            break
                    else:
                        done += self._take(row)
            patience = 0.0 if time.monotonic() >= self._limit() else self.grace
        finally:
            code = _end(process, patience)
        if done < len(parts) and self.results is not None and not self._gone:
            done += self._lost(parts[done], code)
        return done

    def _order(self, process: subprocess.Popen[bytes], parts: list[Part]) -> None:
        order = {
            "parts": [part.name for part in parts],
            "plan": self.plan,
            "device": self.device,
            "seconds": [self._began + seconds - time.monotonic() for seconds in self.seconds],
            "before": [] if self.results is None else self.results.rows,
        }
        _tell(process, json.dumps(order))

    def _rows(self, pipe: Any) -> Any:
        """Rows as they come, until the child ends or a part is over its limit."""
        buffer = b""
        with selectors.DefaultSelector() as selector:
            selector.register(pipe, selectors.EVENT_READ)
            while (wait := self._limit() - time.monotonic()) > 0:
                if not selector.select(wait):
                    continue
                got = os.read(pipe.fileno(), 1 << 16)
                if not got:
                    return
                *lines, buffer = (buffer + got).split(b"\n")
                for line in lines:
                    yield json.loads(line)

    def _limit(self) -> float:
        """``time.monotonic()`` at which the child is ended."""
        if self._current is None:
            if self.results is None:
                return self._since + _START_SECONDS
            return min(self._since + _AGAIN_SECONDS, max(self._ends, self._since) + self.grace)
        limit = self._current.limit(bool(self.results and self.results.machine.get("card")))
        return min(self._since + limit, max(self._ends, self._since)) + self.grace

    def _take(self, row: Row) -> int:
        """1 where a part is over with this row."""
        event = row["event"]
        assert self.results is not None
        if event == "start":
            self._current = next(part for part in self.parts if part.name == row["part"])
            self._since = time.monotonic()
            return 0
        if event == "row":
            self.results.row(row)
            if row.get("main"):
                self.say(f"{'':21}  {row['part']}: {told(row)}")
            return 0
        self._over(row)
        return 1

    def _hello(self, process: subprocess.Popen[bytes], row: Row) -> None:
        """The card is known, so the folder gets its name; the child is told where its own words shall go."""
        if self.results is None:
            card = row["card"]
            self._ends = self._began + self.seconds[not card]
            machine = self.describe(card)
            if why := row.get("why"):
                machine["no card"] = why
            self.results = Results(folder_for(self.out, card), machine, self.parts)
            rehearsal = f"no CUDA device{f' ({why})' if why else ''}: a rehearsal at small sizes on the CPU"
            self.say(f"{card or rehearsal}; {self.results.folder}")
        elif row["card"] != self.results.machine.get("card"):
            # Its parts would run on the CPU, and their numbers would stand in the card's table.
            self._gone = row.get("why") or f"{row['card'] or 'no card'} is found in its place"
            return
        _tell(process, str(self.results.folder / LOG))
        self._since = time.monotonic()

    def _over(self, row: Row) -> None:
        assert self.results is not None
        self.results.end(row)
        self._current, self._since = None, time.monotonic()
        self.say(
            f"{row['status']:>11}  {row['seconds']:6.1f} s  {row['part']}{': ' if row['said'] else ''}{row['said']}"
        )

    def _lost(self, part: Part, code: int) -> int:
        """The child is gone and ``part`` has no end: it gets one. 0 where the child never came to it."""
        if self._current is None and code == 3:
            return 0  # it left after the part before, as it should: the card did not answer
        took, late = time.monotonic() - self._since, time.monotonic() >= self._limit()
        said = f"its process ended with {_code(code)}; see {LOG}"
        if late:
            said = f"{'no process for it' if self._current is None else 'no end'} after {took:.0f} s"
        status = "timeout" if late else "died"
        self._over({"event": "end", "part": part.name, "status": status, "said": said, "seconds": round(took, 2)})
        return 1


def _tell(process: subprocess.Popen[bytes], line: str) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(line.encode() + b"\n")
        process.stdin.flush()


def _environment() -> dict[str, str]:
    """No network, few words, and this tree first on the path."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return {**_QUIET, **os.environ, "PYTHONPATH": path}


def _end(process: subprocess.Popen[bytes], patience: float) -> int:
    """The child and whatever it started are gone; its exit code, negative: the signal that ended it."""
    assert process.stdin is not None
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    try:
        code = process.wait(_KILLED_SECONDS)
    except subprocess.TimeoutExpired:  # it waits inside the driver: nobody can end it, and we go on
        code = -signal.SIGKILL
    with contextlib.suppress(BrokenPipeError):
        process.stdin.close()
    return code


def _code(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"


def parts_of(plan: str) -> list[Part]:
    """The plan that the module ``plan`` holds."""
    return list(importlib.import_module(plan).PLAN)
