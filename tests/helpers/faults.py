"""A transport whose hosts are lost as a test wants it, and a watch that does not wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from inline_transport import InlineTransport

from dapo.processes.transport import HostLost

Fault = Literal["before", "after", "freeze", None]
"""The host is gone before the call reaches it; after it did what was asked, before it said so; it never answers."""


class Watch:
    """Seconds that pass when somebody waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


class FaultyTransport(InlineTransport):
    """Inline hosts.

    Args:
        fault: asked at each call: (host's name, method) -> what becomes of it.
        watch: moved on where everybody waits for a frozen host.
    """

    def __init__(self, fault: Callable[[str, str], Fault], watch: Watch | None = None) -> None:
        super().__init__()
        self.fault, self.watch = fault, watch or Watch()
        self.faults: list[tuple[str, str, Fault]] = []
        self.frozen: set[int] = set()
        self.killed: list[str] = []

    def call(self, host, method, *args):
        call = super().call(host, method, *args)
        what = None if host.lost or id(host) in self.frozen else self.fault(host.name, method)
        if what is not None:
            self.faults.append((host.name, method, what))
        if what == "freeze":
            self.frozen.add(id(host))
        elif what == "before":
            self.drop(host)
        elif what == "after":
            self._answer(call)
            call.answered, call.value = False, None
            self.drop(host)
        return call

    def drop(self, host):
        """As SIGKILL from elsewhere."""
        super().kill(host)

    def kill(self, host):
        self.killed.append(host.name)
        super().kill(host)

    def wait(self, calls, *, every=False, timeout=None):
        awake = [n for n, call in enumerate(calls) if id(call.host) not in self.frozen or call.host.lost]
        ready = super().wait([calls[n] for n in awake], every=every, timeout=timeout)
        if not ready and calls:
            assert timeout is not None, "everybody waits for a frozen host, and nobody would ever give it up"
            self.watch.seconds += timeout
        return [awake[n] for n in ready]

    def get(self, call):
        if call.host.lost and not call.answered:
            raise HostLost(f"{call.host.name} was killed")
        return super().get(call)
