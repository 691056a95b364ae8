"""Report that nothing happens in a run, from a thread of its own: a driver that waits cannot look itself.

It only reports. A wait that can be proven to have no end is ended elsewhere: by the collector (``RunStuck``) and by the
time limits of verifiers, environments, engines and ranks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dapo.metrics.phases import Phases
from dapo.types.evidence import Awaited, Stillness

log = logging.getLogger(__name__)

LONG = 60.0
"""Seconds without an event after which a run is reported as still."""
EVERY = 5.0
"""Seconds between two looks."""


class StillnessWatch:
    """Look at a run every few seconds while it is entered; report when nothing moves, and when something does again.

    Args:
        phases: know the training step and the phase that the driver is in.
        awaited: returns what is owed to the driver; None of it where the method samples nothing.
        report: gets the state of a still run at every look, and None once it moves again.
        clock: seconds.
        epoch: seconds since 1970.
    """

    def __init__(
        self,
        phases: Phases,
        awaited: Callable[[], Awaited | None],
        report: Callable[[Stillness | None], None],
        clock: Callable[[], float] = time.monotonic,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self._phases, self._awaited, self._report = phases, awaited, report
        self._clock, self._epoch = clock, epoch
        self._before: tuple[int, Awaited | None] | None = None
        self._since = clock()
        self._reported = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._resting = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> StillnessWatch:
        self._since = self._clock()
        self._thread = threading.Thread(target=self._run, name="stillness", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    @contextmanager
    def resting(self) -> Iterator[None]:
        """Look at nothing in this context: the caller of the run has the word."""
        with self._lock:
            self._resting = True
            if self._reported:
                self._reported = False
                self._report(None)
        try:
            yield
        finally:
            with self._lock:
                self._resting, self._since = False, self._clock()

    def look(self) -> None:
        """Look once."""
        with self._lock:
            if self._resting:
                return
            awaited = self._awaited()
            now, position = self._clock(), (self._phases.step, awaited)
            if position != self._before:
                self._before, self._since = position, now
            seconds = now - self._since
            if seconds < LONG:
                if self._reported:
                    self._reported = False
                    self._report(None)
                return
            self._reported = True
            self._report(Stillness(self._phases.step, self._phases.current, seconds, self._epoch() - seconds, awaited))

    def _run(self) -> None:
        while not self._ended.wait(EVERY):
            try:
                self.look()
            except RuntimeError:  # what is counted changed while it was: the next look comes soon
                pass
            except Exception:  # a stream that was closed, an engine of the user's: a run needs no watch
                log.debug("a look at whether anything happens failed", exc_info=True)
