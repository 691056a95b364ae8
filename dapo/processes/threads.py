"""Hosts in threads of the driver, for hosts that only wait for another program, such as a server's client."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dapo.processes.host_threads import Line, LineCall, answer_of
from dapo.processes.packed import LineTransport
from dapo.processes.transport import HostSpec


class ThreadHost:
    """An object of this process, asked by a thread of its own. A thread cannot be killed: one that was given up goes on
    with the call that it is at, and is heard no more."""

    def __init__(self, spec: HostSpec, told: threading.Condition) -> None:
        self.name, self._spec = spec.name, spec
        self._thing: Any = None
        self._broken: Exception | None = None
        self.line = Line(spec.name, self, told)
        self.line.put(None)
        self.line.start()

    def let_go(self) -> None:
        """End the line."""
        self.line.lose(f"{self.name} was given up")

    def left(self) -> None:
        """In the line's thread, at its end."""
        with suppress(Exception):
            self._thing.close()
        self._thing = None

    def ask(self, message: tuple[str, tuple[Any, ...]] | None) -> tuple[bool, Any]:
        """In the line's thread; the first message makes the object."""
        try:
            if message is None:
                self._thing = self._spec.make(*self._spec.args)
                return True, None
            if self._broken is not None:
                raise self._broken
            return True, getattr(self._thing, message[0])(*message[1])
        except Exception as error:
            if message is None:
                self._broken = error
            return False, error


class ThreadTransport(LineTransport[ThreadHost]):
    """Keeps ``dapo.processes.transport.Transport``. A host's ``environment`` is not looked at: it is the driver's."""

    def start(self, spec: HostSpec) -> ThreadHost:
        """Start a thread that makes the object."""
        host = ThreadHost(spec, self._told)
        self._hosts.append(host)
        return host

    def call(self, host: ThreadHost, method: str, *args: Any) -> LineCall:
        """For the thread."""
        return host.line.put((method, args))

    def get(self, call: LineCall) -> Any:
        """Return what the host's method returned."""
        fine, value = answer_of(self._told, call)
        if not fine:
            raise value
        return value

    def put(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def _end(self, hosts: Sequence[ThreadHost]) -> None:
        """Drop hosts. The ``close`` of one that has it is called as soon as its present call has ended."""
        for host in hosts:
            host.let_go()
        self._hosts = [host for host in self._hosts if host not in hosts]
