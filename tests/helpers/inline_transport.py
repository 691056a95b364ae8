"""A transport whose hosts live in the driver's own process: nothing runs at the same time, nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo.processes.transport import HostLost, HostSpec, Transport


@dataclass(eq=False, slots=True)
class InlineHost:
    """An object of this process."""

    name: str
    thing: Any = None
    broken: Exception | None = None  # what making it raised
    lost: bool = False
    waiting: list[InlineCall] = field(default_factory=list)  # not answered yet, in order


@dataclass(eq=False, slots=True)
class InlineCall:
    """A call that is computed when somebody waits for it."""

    host: InlineHost
    method: str
    args: tuple[Any, ...]
    answered: bool = False
    value: Any = None
    error: Exception | None = None


class InlineTransport(Transport):
    """Keeps ``dapo.processes.transport.Transport``. A host's ``environment`` is not looked at: it is the driver's."""

    def __init__(self) -> None:
        self.hosts: list[InlineHost] = []

    def start(self, spec: HostSpec) -> InlineHost:
        """Make the object, now."""
        host = InlineHost(spec.name)
        try:
            host.thing = spec.make(*spec.args)
        except Exception as error:
            host.broken = error
        self.hosts.append(host)
        return host

    def call(self, host: InlineHost, method: str, *args: Any) -> InlineCall:
        """Remember the call."""
        call = InlineCall(host, method, args)
        host.waiting.append(call)
        return call

    def wait(self, calls: Sequence[InlineCall], *, every: bool = False, timeout: float | None = None) -> list[int]:
        """Answer the first call that has no answer, with ``every`` all of them."""
        if every or not any(self._ready(call) for call in calls):
            for call in calls if every else calls[:1]:
                self._answer(call)
        return [index for index, call in enumerate(calls) if self._ready(call)]

    def get(self, call: InlineCall) -> Any:
        """Compute the call, and those of the same host that come before it."""
        self._answer(call)
        if not call.answered:
            raise HostLost(f"{call.host.name} was killed")
        if call.error is not None:
            raise call.error
        return call.value

    def put(self, value: Any) -> Any:
        """The value itself."""
        return value

    def kill(self, host: InlineHost) -> None:
        """Forget the object."""
        host.lost, host.thing = True, None
        host.waiting.clear()

    def close(self) -> None:
        """Forget all of them."""
        for host in self.hosts:
            self.kill(host)
        self.hosts.clear()

    def _ready(self, call: InlineCall) -> bool:
        return call.answered or call.host.lost

    def _answer(self, call: InlineCall) -> None:
        while not self._ready(call):
            self._compute(call.host.waiting.pop(0))

    def _compute(self, call: InlineCall) -> None:
        try:
            if call.host.broken is not None:
                raise call.host.broken
            call.value = getattr(call.host.thing, call.method)(*call.args)
        except Exception as error:
            call.error = error
        call.answered = True
