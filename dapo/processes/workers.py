"""Guarded worker processes that run code of users: verifiers, environments.

Workers are fresh interpreters (not forks: torch's threads do not survive one), without torch, in sessions of their own:
Ctrl-C does not reach them. Each has a guard (``dapo.processes.guard``) that ends whatever it started, also when the
driver dies. The driver never waits for a worker that does not read or write. What a worker says is read strictly.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from dapo.processes.guarded import GuardedProcess, end
from dapo.processes.large_messages import advance
from dapo.processes.wire import MAX_ANSWER_FRAME, Inbox, WireError, heading

ENDED = "crash: the process ended"
"""Why a worker is lost that ended by itself."""
MOST_ENDS = 32
"""Workers that end one after another, without an answer between them, after which the pool tries nothing again."""
OUTSIDE = frozenset(-number for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP))
"""Exit codes of processes that something else ended, such as a machine that ran out of memory."""
START_LIMIT = 120.0  # seconds for a worker's imports
TICK = 0.05  # seconds between looks at the clock while waiting
MAX_OUTPUT = 16 << 20  # bytes
_CHUNK = 1 << 16  # bytes taken from a connection at a time
_CHUNKS = 64  # at a time, and those of one frame: a worker that never stops sending does not block the driver
_PIPE = 1 << 16  # bytes that a pipe holds
_LOOK = 200  # milliseconds between looks at whether the output is over

M = TypeVar("M")
Short = Annotated[str, Field(max_length=4000)]


class StrictMessage(BaseModel):
    """A message of a worker. User code shares its process, so nothing is taken for another type."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Loading(StrictMessage):
    """Importing what ``name`` says."""

    type: Literal["loading"]
    name: Short


def read_messages(messages: TypeAdapter[list[M]], body: bytes) -> list[M]:
    """Return the messages in a frame.

    Raises:
        WireError: they are none.
    """
    try:
        return messages.validate_json(body)
    except ValidationError as error:
        raise WireError(f"{error.error_count()} faults in a message, the first: {error.errors()[0]['msg']}") from None


class GuardedWorker:
    """One worker process and its connection. A pool's own class adds what the worker has to do.

    Args:
        process: the process.
        most: bytes of the largest frame that it may send.

    Attributes:
        process: as given; its connection does not block.
        since: monotonic time at which what it does now began.
        ready: it has loaded what it was started for.
        loading: what it imports meanwhile.
        outbox: what it was sent and did not take yet.
        closed: ``exchange`` found the end of the connection.
    """

    def __init__(self, process: GuardedProcess, most: int = MAX_ANSWER_FRAME) -> None:
        process.connection.setblocking(False)
        self.process, self.since = process, time.monotonic()
        self.ready, self.loading = False, ""
        self.outbox: list[memoryview] = []
        self._inbox, self._most = Inbox(most), most
        self.closed = False

    def send(self, message: Any) -> None:
        """Send what goes at once, and keep the rest for ``exchange``."""
        body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
        self.outbox += [memoryview(heading(body)), memoryview(body)]
        with contextlib.suppress(OSError):  # it does not read now, or it ended: the next exchange finds out
            self._send()

    def _send(self) -> None:
        """Send what goes at once.

        Raises:
            OSError: nothing does.
        """
        count = self.process.connection.sendmsg(self.outbox[:2])
        del self.outbox[: advance(self.outbox, 0, count)]

    def exchange(self) -> Iterator[bytes]:
        """Send and read what can be without waiting; yield the bodies of frames.

        Raises:
            WireError: a frame is too long.
        """
        connection = self.process.connection
        try:
            if self.outbox:
                self._send()
                if self.ready:  # its time begins when it has everything: the driver may have been busy meanwhile
                    self.since = time.monotonic()
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
            return
        for _ in range(_CHUNKS + self._most // _CHUNK):
            try:
                data = connection.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self.closed = True
                return
            self._inbox.feed(data)
            yield from self._inbox.frames()
            if len(data) < _CHUNK:  # that was all
                return


W = TypeVar("W", bound=GuardedWorker)
A = TypeVar("A")


class GuardedPool(ABC, Generic[W, M, A]):
    """Worker processes and their answers. A subclass puts questions, and decides what follows when a worker is lost.

    All progress on the driver's side happens in the calls of its methods, in one thread.

    Args:
        make: a started process -> the pool's own worker.
        module: its ``main`` is what a worker runs; the argument is the number of its end of the connection.
        read: the body of a frame -> its messages; raises ``WireError``.
        output: file to which whatever workers print is appended, up to a limit; None: it is dropped.
        memory_mib: limit of each worker, and of each process that it starts, in MiB; None: none.
        patience: seconds for a guard to end what it guards.
    """

    def __init__(
        self,
        make: Callable[[GuardedProcess], W],
        module: str,
        read: Callable[[bytes], list[M]],
        *,
        output: Path | None,
        memory_mib: int | None,
        patience: float,
    ) -> None:
        self._make, self._read, self._memory_mib, self._patience = make, read, memory_mib, patience
        self._code = f"import sys; from {module} import main; main(int(sys.argv[1]))"
        self._path = output
        self._output: OutputFile | None = None
        self._workers: list[W] = []  # those that were started and not ended
        self._answers: list[A] = []  # not yet returned
        self._loaded = False  # a worker was ready once
        self._failed_starts = 0  # in a row
        self._ends = 0  # of workers that were ready, since the last answer

    def poll(self, timeout: float | None = None) -> list[A]:
        """Return answers. timeout 0: those that are there; None: wait until there is one, unless none is to come.

        Raises:
            DapoError: workers do not start; of the pool's own kind.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._step(0.0)
        while not self._answers and self._awaits():
            left = TICK if deadline is None else min(TICK, deadline - time.monotonic())
            if left <= 0:
                break
            self._step(left)
        answers, self._answers = self._answers, []
        return answers

    def close(self) -> None:
        """End all workers, and forget questions without an answer. May be called twice."""
        end([worker.process for worker in self._workers], self._patience)
        self._workers.clear()
        if self._output is not None:
            self._output.close()
            self._output = None

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    @abstractmethod
    def _awaits(self) -> bool:
        """Whether something was asked that has no answer yet."""

    @abstractmethod
    def _step(self, seconds: float) -> None:
        """Take in what workers sent (wait up to ``seconds`` for it), replace those stuck or gone, hand out work."""

    @abstractmethod
    def _take(self, worker: W, message: M) -> None:
        """Take in one message; it may end the worker.

        Raises:
            WireError: it is not due.
        """

    @property
    def _seen_in(self) -> str:
        """Return where a person finds what the workers printed, as the end of a message."""
        return f"; see {self._path}" if self._path else ""

    def _start(self, message: Any) -> None:
        """Start a worker and send it its first message.

        Raises:
            OSError: the machine starts no further process.
        """
        if self._path is not None and self._output is None:
            self._output = OutputFile(self._path)
        process = GuardedProcess(
            # Not `-m`: a package may import the module too, and runpy would warn of that in every worker.
            lambda number: [sys.executable, "-P", "-c", self._code, str(number)],
            subprocess.DEVNULL if self._output is None else self._output.descriptor,
            {"OMP_NUM_THREADS": "1"},  # one thread each, to leave the cores alone
            self._memory_mib,
        )
        worker = self._make(process)
        self._workers.append(worker)
        worker.send(message)

    def _exchange(self, seconds: float, gather: float = 0.0) -> Iterator[tuple[W, str | None]]:
        """Take in what workers sent; yield each that lives still, and why it is to be ended, if it is.

        Args:
            seconds: to wait for something to read.
            gather: of these seconds, those to wait in any case: a look costs as much as many frames.
        """
        moved: set[int] = set()  # connections on which something can be read or written
        if self._workers:
            poller = select.poll()
            for worker in self._workers:
                poller.register(worker.process.connection, select.POLLIN | (select.POLLOUT if worker.outbox else 0))
            gather = min(gather, seconds)
            if gather:
                time.sleep(gather)
            moved = {descriptor for descriptor, _ in poller.poll((seconds - gather) * 1000)}
        for worker in list(self._workers):
            ended = worker.process.ended  # asked first: what it sent before its end is still read
            why = ENDED if ended else None
            if ended or worker.process.connection.fileno() in moved:
                try:
                    self._hear(worker)
                    why = ENDED if ended or worker.closed else None
                except WireError as error:
                    why = f"crash: something that is no answer came from the worker ({error})"
            if worker in self._workers:
                yield worker, why

    def _hear(self, worker: W) -> None:
        """Take in what a worker sent, until it is lost."""
        for body in worker.exchange():
            for message in self._read(body):
                if worker not in self._workers:
                    return
                self._take(worker, message)

    def _end(self, worker: W) -> None:
        """Kill a worker with all that it started, and wait for its end."""
        end([worker.process], self._patience)
        self._workers.remove(worker)


class OutputFile:
    """A pipe for the output of processes, whose other end a thread copies to a file up to a limit.

    Beyond the limit everything is read and dropped: no process waits, and no disk fills up.
    """

    def __init__(self, path: Path, limit: int = MAX_OUTPUT) -> None:
        """Append to ``path``; ``limit`` bytes is its size at most, and one line that says so."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab", buffering=0)
        self._left = limit - self._file.tell()
        self._limit = limit
        self._reading, self.descriptor = os.pipe()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._copy, name="workers-output", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Copy the remaining output, then close. Processes that still write get a broken pipe."""
        os.close(self.descriptor)
        self._closing.set()
        self._thread.join(timeout=5)

    def _copy(self) -> None:
        poller = select.poll()
        poller.register(self._reading, select.POLLIN)
        rest = 4 * _PIPE  # after the end was asked for: what stood in the pipe, and no flood
        with self._file:
            while rest > 0:
                closing = self._closing.is_set()
                if not poller.poll(0 if closing else _LOOK):
                    if closing:
                        break
                    continue
                data = os.read(self._reading, _PIPE)
                if not data:
                    break
                rest -= len(data) if closing else 0
                self._write(data)
            os.close(self._reading)

    def _write(self, data: bytes) -> None:
        if self._left <= 0:
            return
        kept = data[: self._left]
        self._left -= len(data)
        with contextlib.suppress(OSError):  # a full disk; what a reward prints is not worth the run
            self._file.write(kept)
            if self._left <= 0:
                self._file.write(b"\n[the limit of %d MiB is reached; the rest is dropped]\n" % (self._limit >> 20))
