"""Start, ask, kill and reap guarded worker processes, for the pools of verifiers and of environments.

Workers are fresh interpreters (not forks: torch's threads do not survive one), without torch, in sessions of their own:
Ctrl-C does not reach them. Each has a guard (``dapo.processes.guard``) that ends whatever it started, also when the
driver dies. The driver never waits for a worker that does not read or write.
"""

from __future__ import annotations

import contextlib
import pickle
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

from dapo.processes.guarded import GuardedProcess, end
from dapo.processes.parts import advance
from dapo.rewards.output import OutputFile
from dapo.rewards.wire import MAX_ANSWER_FRAME, Inbox, WireError, heading

ENDED = "crash: the process ended"
"""Why a worker is lost that ended by itself."""
_CHUNK = 1 << 16  # bytes taken from a connection at a time
_CHUNKS = 64  # at a time, and those of one frame: a worker that never stops sending does not block the driver


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
    """

    def __init__(self, process: GuardedProcess, most: int = MAX_ANSWER_FRAME) -> None:
        process.connection.setblocking(False)
        self.process, self.since = process, time.monotonic()
        self.ready, self.loading = False, ""
        self.outbox: list[memoryview] = []
        self._inbox, self._most = Inbox(most), most
        self._closed = False

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
            self._closed = True
            return
        for _ in range(_CHUNKS + self._most // _CHUNK):
            try:
                data = connection.recv(_CHUNK)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._closed = True
                return
            self._inbox.feed(data)
            yield from self._inbox.frames()
            if len(data) < _CHUNK:  # that was all
                return

    @property
    def closed(self) -> bool:
        """Return whether ``exchange`` found the end of the connection."""
        return self._closed


W = TypeVar("W", bound=GuardedWorker)


class GuardedWorkers(Generic[W]):
    """The worker processes of one pool.

    Args:
        code: what a worker's interpreter runs; its argument is the number of its end of the connection.
        make: a started process -> the pool's own worker.
        output: file to which whatever workers print is appended, up to a limit; None: it is dropped.
        memory_mib: limit of each worker, and of each process that it starts, in MiB; None: none.
        patience: seconds for a guard to end what it guards.

    Attributes:
        living: those that were started and not ended.
    """

    def __init__(
        self,
        code: str,
        make: Callable[[GuardedProcess], W],
        *,
        output: Path | None,
        memory_mib: int | None,
        patience: float,
    ) -> None:
        self.living: list[W] = []
        self._code, self._make, self._memory_mib, self._patience = code, make, memory_mib, patience
        self._path = output
        self._output: OutputFile | None = None

    @property
    def seen_in(self) -> str:
        """Return where a person finds what the workers printed, as the end of a message."""
        return f"; see {self._path}" if self._path else ""

    def start(self, message: Any) -> W:
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
        self.living.append(worker)
        worker.send(message)
        return worker

    def exchange(
        self, seconds: float, take: Callable[[W, bytes], None], *, gather: float = 0.0
    ) -> Iterator[tuple[W, str | None]]:
        """Take in what workers sent; yield each that lives still, and why it is to be ended, if it is.

        Args:
            seconds: to wait for something to read.
            take: hears of each frame; it may end the worker.
            gather: of these seconds, those to wait in any case: a look costs as much as many frames.
        """
        moved: set[int] = set()  # connections on which something can be read or written
        if self.living:
            poller = select.poll()
            for worker in self.living:
                poller.register(worker.process.connection, select.POLLIN | (select.POLLOUT if worker.outbox else 0))
            gather = min(gather, seconds)
            if gather:
                time.sleep(gather)
            moved = {descriptor for descriptor, _ in poller.poll((seconds - gather) * 1000)}
        for worker in list(self.living):
            ended = worker.process.ended  # asked first: what it sent before its end is still read
            why = ENDED if ended else None
            if ended or worker.process.connection.fileno() in moved:
                try:
                    for body in worker.exchange():
                        take(worker, body)
                        if worker not in self.living:
                            break
                    why = ENDED if ended or worker.closed else None
                except WireError as error:
                    why = f"crash: something that is no answer came from the worker ({error})"
            if worker in self.living:
                yield worker, why

    def end(self, worker: W) -> None:
        """Kill a worker with all that it started, and wait for its end."""
        end([worker.process], self._patience)
        self.living.remove(worker)

    def close(self) -> None:
        """End all workers. May be called twice."""
        end([worker.process for worker in self.living], self._patience)
        self.living.clear()
        if self._output is not None:
            self._output.close()
            self._output = None
