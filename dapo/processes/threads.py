"""Hosts in threads of the driver, for hosts that only wait for another program, such as a server's client."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from dapo.processes.host_threads import Line, LineCall, answer_of, wait_for
from dapo.processes.transport import HostSpec, Transport


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


class ThreadTransport(Transport):
    """Keeps ``dapo.processes.transport.Transport``. A host's ``environment`` is not looked at: it is the driver's."""

    def __init__(self) -> None:
        self._told = threading.Condition()
        self._hosts: list[ThreadHost] = []

    def start(self, spec: HostSpec) -> ThreadHost:
        """Start a thread that makes the object."""
        host = ThreadHost(spec, self._told)
        self._hosts.append(host)
        return host

    def call(self, host: ThreadHost, method: str, *args: Any) -> LineCall:
        """For the thread."""
        return host.line.put((method, args))

    def wait(self, calls: Sequence[LineCall], *, every: bool = False, timeout: float | None = None) -> list[int]:
        """Sleeps until a line has news."""
        return wait_for(self._told, calls, every, timeout)

    def get(self, call: LineCall) -> Any:
        """Return what the host's method returned."""
        fine, value = answer_of(self._told, call)
        if not fine:
            raise value
        return value

    def put(self, value: Any) -> Any:
        """Return the value itself."""
        return value

    def kill(self, host: ThreadHost) -> None:
        """Drop a host. Its ``close``, if it has one, is called as soon as its present call has ended."""
        host.let_go()
        if host in self._hosts:
            self._hosts.remove(host)

    def close(self) -> None:
        """Drop all hosts."""
        for host in list(self._hosts):
            self.kill(host)
