"""Handlers of signals that a library must not replace."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def signals_kept() -> Iterator[None]:
    """Ray answers SIGTERM by ending the program, without a save; who handles signals goes on doing so."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in zip(numbers, before, strict=True):
                if handler is not None:
                    signal.signal(number, handler)
