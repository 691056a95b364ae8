"""Start, kill and reap a process behind its guard: all that it starts ends with it, with the driver, or by ``kill``."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import IO

from dapo.processes import guard

_IN_FLIGHT = 1 << 20  # bytes that a connection holds where the system allows it: fewer calls move a message


class GuardedProcess:
    """A process with a connection to it, in a session of its own: Ctrl-C reaches the driver alone.

    It finds the modules that the driver finds, hooks in the working directory too.

    Attributes:
        connection: our end; its reader closes it, after ``reap``.
        pid: the guard's process id.
    """

    def __init__(
        self,
        command: Callable[[int], list[str]],
        sink: int | IO[bytes],
        environment: Mapping[str, str],
        memory_mib: int | None = None,
    ) -> None:
        """Start it.

        Args:
            command: the number of its end of the connection -> what is run.
            sink: takes what it prints.
            environment: variables beside the driver's.
            memory_mib: limit of each of its processes in MiB; None: none.

        Raises:
            OSError: the machine starts no further process.
        """
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _IN_FLIGHT)
        lifeline, our_lifeline = os.pipe()
        passed = (lifeline, theirs.fileno())
        paths = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))  # "": where it was called
        limit = str(memory_mib or 0)
        try:
            self._guard = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__, *map(str, passed), limit, *command(theirs.fileno())],
                pass_fds=passed,
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
                env={**os.environ, "PYTHONPATH": paths, **environment},
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            os.close(our_lifeline)
            raise
        finally:
            theirs.close()
            os.close(lifeline)
        self.connection, self.pid = ours, self._guard.pid
        self._lifeline: int | None = our_lifeline

    @property
    def ended(self) -> bool:
        """Return whether the process has ended, and all that it started."""
        return self._guard.poll() is not None

    def exit_code(self, seconds: float) -> int | None:
        """Wait for the end: the process's exit code, below 0 for a signal. None: it goes on after ``seconds``."""
        try:
            return self._guard.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        """Close the lifeline: the guard kills the process and all that it started. May be called twice."""
        lifeline, self._lifeline = self._lifeline, None
        if lifeline is not None:
            os.close(lifeline)

    def reap(self, seconds: float) -> None:
        """Wait until all of a killed process has ended.

        A guard that is stopped or stuck for ``seconds`` is killed itself; the kernel then ends the process.
        """
        if self.exit_code(seconds) is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self.exit_code(seconds)


def end(processes: Iterable[GuardedProcess], seconds: float) -> None:
    """Kill processes, all at once, wait for each, and close the connections.

    Connections close last: a process that ends by itself takes its children out of the guard's sight where the guard
    does not adopt them.
    """
    processes = list(processes)
    for process in processes:
        process.kill()
    for process in processes:
        process.reap(seconds)
        process.connection.close()
