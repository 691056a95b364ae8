"""Ctrl-C: the first one asks a run to save and end; the second ends it at once. Outside of steps the first does."""

from __future__ import annotations

import _thread
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

from dapo.errors import Terminated
from dapo.types.evidence import Signal

log = logging.getLogger(__name__)

AGAIN = 0.05
"""Seconds after which a signal is delivered again whose exception was lost."""


class Interrupt:
    """Context manager that turns SIGINT and SIGTERM into a request, once.

    ``requested`` is read where the run may end: ``Stopping.due``, ``Stopping.look``. A second signal raises
    KeyboardInterrupt at once. A signal that came before, and whose exception was lost on its way, is a request from the
    start.
    """

    def __init__(self, on_first: Callable[[Signal], None], on_second: Callable[[], None]) -> None:
        """``on_first`` gets what came."""
        self.requested = False
        self._on_first, self._on_second = on_first, on_second
        self._previous: dict[int, object] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Interrupt:
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._handle)
            except ValueError:  # not the main thread: the host program handles signals
                break
        self._stack.enter_context(delivered_until_heard())
        if _wish.by is not None:
            self._request(_wish.by)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            self._on_second()
            raise KeyboardInterrupt
        self._request("Ctrl-C" if number == signal.SIGINT else "SIGTERM")

    def _request(self, cause: Signal) -> None:
        self.requested = True
        try:
            self._on_first(cause)
        except Exception:  # a word on the screen: no step ends in its middle for it
            log.warning("%s is heard, and could not be reported", cause, exc_info=True)


class _Wish:
    """Remember which signal asked the process to end, while ``outside_of_steps`` goes on."""

    by: Signal | None = None


_wish = _Wish()


@contextmanager
def outside_of_steps() -> Iterator[None]:
    """Handle signals during a whole run that have no handler yet. ``Interrupt`` has SIGTERM while steps are done.

    A terminal that is closed sends SIGHUP, which would end the run in the middle of a step: it goes on instead. SIGTERM
    ends it as Ctrl-C does, by an exception, so that what it has started and written elsewhere goes as well; a second
    one at once. Who started it under ``nohup``, or handles the signal, is left alone.
    """

    def hung_up(number: int, frame: FrameType | None) -> None:
        log.info("the terminal was closed; the run goes on (`kill %d` stops it)", os.getpid())

    def terminated(number: int, frame: FrameType | None) -> None:
        _wish.by = "SIGTERM"
        signal.signal(number, signal.SIG_DFL)
        raise Terminated

    def interrupted(number: int, frame: FrameType | None) -> None:
        _wish.by = "Ctrl-C"
        raise KeyboardInterrupt

    mine: dict[int, Any] = {}  # the handlers before ours
    before, _wish.by = _wish.by, None
    try:
        kinds: list[tuple[int, Any, Callable[[int, FrameType | None], None]]] = [
            (signal.SIGHUP, signal.SIG_DFL, hung_up),
            (signal.SIGTERM, signal.SIG_DFL, terminated),
            (signal.SIGINT, signal.default_int_handler, interrupted),
        ]
        for number, usual, handler in kinds:
            if signal.getsignal(number) is usual:
                signal.signal(number, handler)
                mine[number] = usual
    except ValueError:  # not the main thread: the host program handles signals
        pass
    try:
        with delivered_until_heard(terminated if signal.SIGTERM in mine else None):
            yield
    finally:
        _wish.by = before
        for own, usual in mine.items():
            signal.signal(own, usual)


@contextmanager
def delivered_until_heard(terminated: Callable[[int, FrameType | None], None] | None = None) -> Iterator[None]:
    """Deliver a signal again whose exception Python dropped, as it does in a destructor, until it is heard.

    Args:
        terminated: the handler of SIGTERM, which takes itself away when it is called.
    """
    if threading.current_thread() is not threading.main_thread():  # signals are handled elsewhere
        yield
        return
    previous, timers = sys.unraisablehook, list[threading.Timer]()

    def hook(lost: sys.UnraisableHookArgs) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):
            previous(lost)
            return
        number = signal.SIGINT
        if issubclass(lost.exc_type, Terminated):
            number = signal.SIGTERM
            if terminated is not None:
                signal.signal(number, terminated)
        timers.append(threading.Timer(AGAIN, _thread.interrupt_main, [number]))
        timers[-1].daemon = True
        timers[-1].start()

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = previous
        for timer in timers:
            timer.cancel()
