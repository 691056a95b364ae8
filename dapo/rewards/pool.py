"""Worker processes for verifiers, with a time limit per item.

One thread, no callbacks: all progress on the driver's side happens inside ``submit`` and ``poll``. A worker holds one
batch at a time and answers item by item, so when it hangs or dies, the item it was at is known: that one failed, those
behind it go to the next worker.

Workers are fresh interpreters (not forks: torch's threads do not survive one), without torch, in sessions of their own:
Ctrl-C does not reach them, and whatever they started is killed with them. When the driver dies, so do they.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from dapo.contracts.types import Completion, Prompt
from dapo.errors import RewardError
from dapo.rewards.worker import Outcome, Verifier

# Not `-m`: the package imports the module too, and runpy would warn of that in every worker.
WORKER = "import sys; from dapo.rewards.worker import main; main(int(sys.argv[1]), int(sys.argv[2]))"
_MAX_BATCH = 16
_START_LIMIT = 120.0  # seconds for a worker's imports
_TICK = 0.05  # seconds between looks at the clock while waiting


@dataclass(slots=True)
class _Item:
    id: int
    verifier: int
    seconds: float  # time limit
    blob: bytes  # pickled (prompt, completion)


@dataclass(slots=True)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection
    lifeline: int  # our end of a pipe; closing it ends the worker
    since: float  # monotonic time at which what it does now began
    ready: bool = False
    batch: deque[_Item] = field(default_factory=deque)  # sent and not answered, in order


class WorkerPool:
    """Runs verifiers on (prompt, completion) pairs in worker processes."""

    def __init__(self, verifiers: Sequence[Verifier], *, workers: int = 1, output: Path | None = None) -> None:
        """Describe the pool; processes start with the first item, or at ``start``.

        Args:
            verifiers: what the workers load; items name them by index.
            workers: processes at most.
            output: file to which whatever verifiers print is appended; None: it is dropped.
        """
        self._verifiers = list(verifiers)
        self._limit = workers
        self._output = output
        self._queue: deque[_Item] = deque()
        self._workers: list[_Worker] = []
        self._done: list[tuple[int, Outcome]] = []
        self._ever_ready = False
        self._failed_starts = 0  # in a row
        self.restarts = 0  # workers lost to a hang or a crash

    @property
    def pending(self) -> int:
        """Items submitted and not yet returned by ``poll``."""
        return len(self._queue) + sum(len(worker.batch) for worker in self._workers) + len(self._done)

    def start(self) -> None:
        """Start one worker and wait until it has loaded everything.

        Raises:
            RewardError: it could not.
        """
        if not self._workers:
            self._start_worker()
        while self._workers and not self._workers[0].ready:
            self._step(_TICK)
        if not self._workers:
            self.start()

    def submit(self, item: int, verifier: int, seconds: float, prompt: Prompt, completion: Completion) -> None:
        """Queue one item. ``seconds`` is its time limit."""
        blob = pickle.dumps((prompt, completion), protocol=pickle.HIGHEST_PROTOCOL)
        self._queue.append(_Item(item, verifier, seconds, blob))
        self._dispatch()

    def poll(self, timeout: float | None = None) -> list[tuple[int, Outcome]]:
        """Finished items. timeout 0: what is there; None: wait until at least one is (or nothing is pending).

        Raises:
            RewardError: the verifiers could never be loaded.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._step(0.0)
        while not self._done and self.pending:
            left = _TICK if deadline is None else min(_TICK, deadline - time.monotonic())
            if left <= 0:
                break
            self._step(left)
        done, self._done = self._done, []
        return done

    def close(self) -> None:
        """End all workers; items that are pending are forgotten."""
        self._queue.clear()
        for worker in self._workers:
            _kill(worker)
        self._workers.clear()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    # ------------------------------------------------------------------ the machinery

    def _step(self, seconds: float) -> None:
        """Take in what workers sent (wait up to ``seconds`` for it), replace those stuck or gone, hand out work."""
        connections = [worker.connection for worker in self._workers]
        if connections:
            wait(connections, timeout=seconds)
        for worker in list(self._workers):
            ended = worker.process.poll() is not None  # asked first: what it sent before its end is still read
            alive = self._drain(worker)
            now = time.monotonic()
            if ended or not alive:
                self._lose(worker, "crash")
            elif not worker.ready and now - worker.since > _START_LIMIT:
                self._lose(worker, f"timeout: not loaded within {_START_LIMIT:g} s")
            elif worker.batch and now - worker.since > worker.batch[0].seconds:
                self._lose(worker, f"timeout: no answer within {worker.batch[0].seconds:g} s")
        self._dispatch()

    def _drain(self, worker: _Worker) -> bool:
        """Read all that a worker has sent; False when its connection has ended."""
        try:
            while worker.connection.poll():
                message = worker.connection.recv()
                if worker.ready:
                    item, outcome, finished = message
                    if worker.batch and worker.batch[0].id == item:
                        worker.batch.popleft()
                        self._done.append((item, outcome))
                    worker.since = max(worker.since, finished)  # the clock is the machine's, the same in all processes
                elif message[0] == "ready":
                    worker.ready = self._ever_ready = True
                    self._failed_starts = 0
                else:
                    self._refuse(worker, message[1])
                    return True
        except (EOFError, OSError, pickle.UnpicklingError):
            return False
        return True

    def _refuse(self, worker: _Worker, message: str) -> None:
        """A worker could not load its verifiers. At the first attempt that is the recipe's fault."""
        if not self._ever_ready:
            self.close()
            raise RewardError(message)
        self._lose(worker, f"exception: {message}")

    def _lose(self, worker: _Worker, reason: str) -> None:
        """Kill a worker; the item it was at failed for ``reason``, those behind it are tried again."""
        if worker not in self._workers:
            return
        exit_code = None
        if reason == "crash":
            with contextlib.suppress(subprocess.TimeoutExpired):  # its connection ends a moment before the process does
                exit_code = worker.process.wait(timeout=1)
        _kill(worker)
        self._workers.remove(worker)
        self.restarts += 1
        if exit_code is not None:
            reason = f"crash: the process ended with code {exit_code}"
        if worker.ready:
            if worker.batch:
                self._done.append((worker.batch.popleft().id, reason))
            self._queue.extendleft(reversed(worker.batch))
            return
        self._failed_starts += 1
        if self._failed_starts >= 3:
            if not self._ever_ready:
                self.close()
                where = f"; see {self._output}" if self._output else ""
                raise RewardError(f"a worker for reward functions does not start: {reason}{where}")
            self._done += [(item.id, f"crash: workers no longer start: {reason}") for item in self._queue]
            self._queue.clear()
            self._failed_starts = 0

    def _dispatch(self) -> None:
        """Give idle workers a batch, and start workers while there is more to do than there are hands."""
        for worker in self._workers:
            if self._queue and worker.ready and not worker.batch:
                size = max(1, min(_MAX_BATCH, len(self._queue) // self._limit))
                worker.batch.extend(self._queue.popleft() for _ in range(min(size, len(self._queue))))
                worker.since = time.monotonic()
                with contextlib.suppress(OSError):  # it died: found in the next step
                    worker.connection.send([(i.id, i.verifier, i.blob) for i in worker.batch])
        idle = sum(not worker.batch for worker in self._workers)
        while len(self._workers) < self._limit and idle < len(self._queue):
            self._start_worker()
            idle += 1

    def _start_worker(self) -> None:
        ours, theirs = Pipe()
        lifeline, our_lifeline = os.pipe()
        passed = (theirs.fileno(), lifeline)
        # Our module path, so that a worker finds what the driver finds; one thread each, to leave the cores alone.
        paths = [path for path in sys.path if path]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)), "OMP_NUM_THREADS": "1"}
        sink: Any = subprocess.DEVNULL
        if self._output is not None:
            self._output.parent.mkdir(parents=True, exist_ok=True)
            sink = self._output.open("ab")
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", WORKER, *map(str, passed)],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env=environment,
                start_new_session=True,
            )
        finally:
            theirs.close()
            os.close(lifeline)
            if self._output is not None:
                sink.close()
        worker = _Worker(process, ours, our_lifeline, time.monotonic())
        self._workers.append(worker)
        with contextlib.suppress(OSError):
            ours.send(self._verifiers)


def _kill(worker: _Worker) -> None:
    """End a worker and every process it started."""
    with contextlib.suppress(OSError):
        worker.connection.close()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(worker.process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        worker.process.wait(timeout=5)
    with contextlib.suppress(OSError):
        os.close(worker.lifeline)
