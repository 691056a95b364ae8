"""Each host has a thread of the driver's, its line, which asks it one call after another.

So the driver waits for no host: neither for one that does not read its call nor for one that stopped in the middle of
an answer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from dapo.processes.transport import HostLost


@dataclass(eq=False, slots=True)
class LineCall:
    """A call on its way to a host and back."""

    line: Line
    message: Any  # as the host's end takes it
    answer: Any = None  # as the host's end gave it
    answered: bool = False
    lost: str = ""  # how the host was lost before it answered


class LineEnd(Protocol):
    """Object that a line asks."""

    def ask(self, message: Any) -> Any:
        """Send a message and return its answer.

        Raises:
            HostLost: there will be none, now or later.
        """

    def left(self) -> None:
        """Take note that no more questions come."""


class Line(threading.Thread):
    """Asks one host its calls, in order, until the host is lost."""

    def __init__(self, name: str, end: LineEnd, told: threading.Condition) -> None:
        """``told`` is notified of every answer."""
        super().__init__(name=f"line to {name}", daemon=True)
        self.end, self._told = end, told
        self._calls: queue.SimpleQueue[LineCall | None] = queue.SimpleQueue()
        self._lost = ""
        self._open: list[LineCall] = []  # asked and not answered, in order

    def put(self, message: Any) -> LineCall:
        """Queue a call; the host is asked as soon as it is free."""
        call = LineCall(self, message)
        with self._told:
            if self._lost:
                call.lost = self._lost
                return call
            self._open.append(call)
        self._calls.put(call)
        return call

    def run(self) -> None:
        """Answer queued calls: the thread's function."""
        try:
            self._ask_all()
        finally:
            self.end.left()

    def _ask_all(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                answer = self.end.ask(call.message)
            except HostLost as error:
                self.lose(str(error))
                return
            with self._told:
                if not call.lost:  # else it was given up meanwhile
                    call.answer, call.answered = answer, True
                    self._open.remove(call)
                    self._told.notify_all()
            call.message = None

    def lose(self, why: str) -> None:
        """No call is answered from now on. From any thread; the first reason stays."""
        with self._told:
            self._lost = self._lost or why
            for call in self._open:
                call.lost = self._lost
            self._open.clear()
            self._told.notify_all()
        self._calls.put(None)


def wait_for(told: threading.Condition, calls: Sequence[LineCall], every: bool, timeout: float | None) -> list[int]:
    """``Transport.wait`` over lines."""
    until = None if timeout is None else time.monotonic() + timeout
    with told:
        while True:
            ready = [index for index, call in enumerate(calls) if call.answered or call.lost]
            if len(ready) == len(calls) or (ready and not every):
                return ready
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                return ready
            told.wait(left)


def answer_of(told: threading.Condition, call: LineCall) -> Any:
    """Return the answer of the host's end, after waiting for it.

    Raises:
        HostLost: the host was lost before.
    """
    wait_for(told, [call], True, None)
    if not call.answered:
        raise HostLost(call.lost)
    return call.answer
