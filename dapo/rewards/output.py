"""The file for what rewards print, with a limit."""

from __future__ import annotations

import contextlib
import os
import select
import threading
from pathlib import Path

MAX_OUTPUT = 16 << 20  # bytes
_PIPE = 1 << 16  # bytes that a pipe holds
_TICK = 200  # milliseconds between looks at whether it is over


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
        self._thread = threading.Thread(target=self._copy, name="rewards-output", daemon=True)
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
                if not poller.poll(0 if closing else _TICK):
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
