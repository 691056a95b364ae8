"""Ctrl-C: the first one finishes the step and saves; the second leaves at once."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType

from dapo.contracts.evidence import Signal


class Interrupt:
    """Context manager that turns SIGINT and SIGTERM into a request, once.

    ``requested`` is read by the trainer between steps. A second signal raises KeyboardInterrupt at once.
    """

    def __init__(self, on_first: Callable[[Signal], None], on_second: Callable[[], None]) -> None:
        """``on_first`` gets what came."""
        self.requested = False
        self._on_first, self._on_second = on_first, on_second
        self._previous: dict[int, object] = {}

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread: the host program handles signals
                break
        return self

    def __exit__(self, *exc: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self._on_second()
            raise KeyboardInterrupt
        self.requested = True
        self._on_first("Ctrl-C" if number == signal.SIGINT else "SIGTERM")
