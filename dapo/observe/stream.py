"""A text stream whose reader may go away: `dapo train ... | head`, a dead `tee`, a closed terminal, a full disk.

A run is worth more than what is said about it: the first failed write silences the stream, and the run goes on.
"""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

log = logging.getLogger(__name__)


class UnbreakableStream:
    """Passes everything on to a text stream until a write fails; from then on it swallows what it gets."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.silent = False

    def write(self, text: str) -> int:
        if not self.silent:
            try:
                return self._stream.write(text)
            except OSError as error:
                self._silence(error)
            except RuntimeError:  # a signal handler speaks in the middle of another write: that word is lost
                pass
        return len(text)

    def flush(self) -> None:
        if not self.silent:
            try:
                self._stream.flush()
            except OSError as error:
                self._silence(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _silence(self, error: OSError) -> None:
        self.silent = True
        _discard_what_follows(self._stream)
        log.info("the console is silent from here on: it cannot be written (%s); the run goes on", error)


def _discard_what_follows(stream: TextIO) -> None:
    """Whatever else is written there, by the interpreter at its exit or by a library, goes nowhere without an error."""
    with suppress(OSError, ValueError):
        gone = os.fstat(stream.fileno())
        devnull = os.open(os.devnull, os.O_WRONLY)
        try:
            for other in (stream, sys.stdout, sys.stderr):
                with suppress(OSError, ValueError, AttributeError):
                    number = other.fileno()
                    if os.path.samestat(os.fstat(number), gone):  # `2>&1 | head`: both have the same reader
                        os.dup2(devnull, number)
        finally:
            os.close(devnull)
