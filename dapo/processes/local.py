"""Hosts in processes of this machine: fresh interpreters and pipes, nothing else.

A guard (``dapo.processes.guard``) ends each process, and all that it started, when the driver ends it or dies. Each
process is in a session of its own: Ctrl-C reaches the driver alone.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from dapo.processes.guarded import GuardedProcess
from dapo.processes.host_threads import Line
from dapo.processes.large_messages import Parts, packed, receive, send, unpacked
from dapo.processes.packed import PackedTransport
from dapo.processes.transport import HostLost, HostSpec

_SERVE = "import sys; from dapo.processes.served import main; main(int(sys.argv[1]))"
_PATIENCE = 10.0  # seconds for a guard to end what it guards, and for a process whose pipe has ended to end as well


class ProcessHost:
    """A process, and the driver's end of its pipe.

    Attributes:
        process: its id, as soon as it said so; 0 before.
        output: the file that takes what it prints; None: dropped.
        begun: the call that it answers once its interpreter runs, before its object is made.
    """

    def __init__(
        self, name: str, make: Parts, environment: Mapping[str, str], output: Path | None, told: threading.Condition
    ) -> None:
        self.name, self.output, self.process = name, output, 0
        self._guarded = _spawn(environment, output)
        self._killed = False
        self.line = Line(name, self, told)
        self.begun = self.line.put(make)
        self.line.start()

    def ask(self, message: Parts) -> Parts:
        """In the line's thread: send a call and wait for its answer."""
        try:
            send(self._guarded.connection, message)
            answer = receive(self._guarded.connection)
        except (EOFError, OSError):
            raise HostLost(self._ended()) from None
        if not self.process:  # the first answer of all
            self.process = int(unpacked(answer))
        return answer

    def left(self) -> None:
        """Leave the end of the process to its guard."""

    def let_go(self) -> None:
        """Close the lifeline: the guard kills the worker and all that it started."""
        if not self._killed:
            self._killed = True
            self.line.lose(f"{self.name} was killed by the driver")
            self._guarded.kill()

    def reap(self) -> None:
        """Wait until all of it is gone."""
        self._guarded.reap(_PATIENCE)
        self.line.join(_PATIENCE)
        if not self.line.is_alive():
            self._guarded.connection.close()

    def _ended(self) -> str:
        """How it ended: its pipe ends a moment before the process does."""
        who = f"{self.name} (process {self.process or 'that had not begun'})"
        code = self._guarded.exit_code(_PATIENCE)
        if code is None:
            return f"{who} closed its connection"
        how = f"ended with code {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"was ended by {signal.Signals(-code).name}"
        return f"{who} {how}{self._printed()}"

    def _printed(self) -> str:
        """Return a hint to the host's printed output, if it printed anything."""
        if self.output is None:
            return ""
        with contextlib.suppress(OSError):
            if not self.output.stat().st_size:
                return "; it printed nothing"
        return f"; what it printed is in {self.output}"


class ProcessTransport(PackedTransport[ProcessHost]):
    """Keeps ``dapo.processes.transport.Transport``.

    Args:
        output: folder for what hosts print, a file ``NAME.txt`` for each, appended to; None: it is dropped.
    """

    def __init__(self, output: Path | None = None) -> None:
        super().__init__()
        self._output = output

    def start(self, spec: HostSpec) -> ProcessHost:
        """Start the process; it imports and makes its object meanwhile.

        Raises:
            OSError: no further process can be started.
        """
        return self.open(spec.name, packed((spec.make, spec.args)), spec.environment)  # refused if it cannot travel

    def open(self, name: str, make: Parts, environment: Mapping[str, str]) -> ProcessHost:
        """``start``, of what was packed elsewhere: ``make`` and its arguments, which are not unpacked here."""
        output = None
        if self._output is not None:
            self._output.mkdir(parents=True, exist_ok=True)
            output = self._output / f"{name}.txt"
        host = ProcessHost(name, make, environment, output, self._told)
        self._hosts.append(host)
        return host

    def _end(self, hosts: Sequence[ProcessHost]) -> None:
        mine = [host for host in hosts if host in self._hosts]
        for host in mine:
            host.let_go()
        for host in mine:
            host.reap()
            self._hosts.remove(host)


def _spawn(environment: Mapping[str, str], output: Path | None) -> GuardedProcess:
    """Start a process that serves calls, and appends what it prints to ``output``."""
    serve = [sys.executable, "-P", "-u", "-X", "faulthandler", "-c", _SERVE]
    sink = contextlib.nullcontext(subprocess.DEVNULL) if output is None else output.open("ab")
    with sink as file:
        return GuardedProcess(lambda end: [*serve, str(end)], file, environment)
