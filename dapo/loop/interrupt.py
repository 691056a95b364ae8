"""Ctrl-C: the first one finishes the step and saves; the second leaves at once. Outside of steps the first does."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dapo.errors import Terminated
from dapo.types.evidence import Signal

log = logging.getLogger(__name__)


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


@contextmanager
def outside_of_steps() -> Iterator[None]:
    """Handle signals during a whole run that have no handler yet. ``Interrupt`` has SIGTERM while steps are done.

    A terminal that is closed sends SIGHUP, which would end the run in the middle of a step: it goes on instead. SIGTERM
    ends it as Ctrl-C does, by an exception, so that what it has started and written elsewhere goes as well; a second
    one at once. Who started it under ``nohup``, or handles the signal, is left alone.
    """

    def hung_up(number: int, frame: FrameType | None) -> None:
        log.info("the terminal was closed; the run goes on (`kill %d` stops it after its step)", os.getpid())

    def terminated(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    mine = []
    try:
        for number, handler in ((signal.SIGHUP, hung_up), (signal.SIGTERM, terminated)):
            if signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handler)
                mine.append(number)
    except ValueError:  # not the main thread: the host program handles signals
        pass
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, signal.SIG_DFL)
