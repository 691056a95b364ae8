"""Common code of transports whose hosts are asked by lines and whose calls are pickled."""

from __future__ import annotations

import pickle
import threading
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from dapo.processes.host_threads import Line, LineCall, answer_of, wait_for
from dapo.processes.large_messages import Parts, packed, unpacked
from dapo.processes.transport import Transport


class HasLine(Protocol):
    """A started host."""

    line: Line


H = TypeVar("H", bound=HasLine)


@dataclass(frozen=True, slots=True)
class Packed:
    """A value that was pickled once; unpickling this gives the value itself."""

    content: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.content,)


class LineTransport(Transport, Generic[H]):
    """Keeps what of ``dapo.processes.transport.Transport`` is the same whatever travels on a host's line."""

    def __init__(self) -> None:
        self._hosts: list[H] = []
        self._told = threading.Condition()

    def wait(self, calls: Sequence[LineCall], *, every: bool = False, timeout: float | None = None) -> list[int]:
        """Sleeps until a line has news."""
        return wait_for(self._told, calls, every, timeout)

    def kill(self, host: H) -> None:
        """As ``close``, of one host."""
        self._end([host])

    def close(self) -> None:
        """End all of them."""
        self._end(list(self._hosts))

    @abstractmethod
    def _end(self, hosts: Sequence[H]) -> None:
        """End those of them that are ours and live."""


class PackedTransport(LineTransport[H]):
    """Keeps ``dapo.processes.transport.Transport`` but for ``start``, and for how hosts are ended."""

    def call(self, host: H, method: str, *args: Any) -> LineCall:
        """Queue a call, pickled now but for large arrays, which are not to be written to from now on."""
        return host.line.put(packed((method, args)))

    def answer(self, call: LineCall) -> Parts:
        """Return a host's answer in pickled form.

        Raises:
            HostLost: the host was lost before it answered.
        """
        answer: Parts = answer_of(self._told, call)
        return answer

    def get(self, call: LineCall) -> Any:
        """Return what the host's method returned."""
        fine, value = unpacked(self.answer(call))
        if not fine:
            raise value
        return value

    def put(self, value: Any) -> Packed:
        """Pickled once."""
        return Packed(pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL))
