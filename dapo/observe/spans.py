"""Where the time goes: exclusive seconds of each phase of a step, and spans for those who want a timeline."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """One stretch of one phase; a line of RUN/spans.jsonl."""

    name: str
    start: float  # seconds since the timer was made
    seconds: float  # phases inside it included
    depth: int  # 0: not inside another phase


class Phases:
    """Adds up the seconds of named phases. For one thread.

    A phase inside another counts for the inner one only, so the phases of a step add up to the step::

        with phases("generate"):
            ...
            with phases("score"):  # the clock of generate stands still
                ...
        metrics |= phases.take()  # {"time/generate": ..., "time/score": ..., "time/other": ..., "time/step": ...}
    """

    def __init__(
        self, sink: Callable[[Span], None] | None = None, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        """``sink`` is called with every span when it ends."""
        self._sink, self._clock = sink, clock
        self._origin = self._taken = self._mark = clock()
        self._stack: list[str] = []
        self._seconds: dict[str, float] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        start = self._switch()
        self._stack.append(name)
        try:
            yield
        finally:
            end = self._switch()
            self._stack.pop()
            if self._sink is not None:
                self._sink(Span(name, start - self._origin, end - start, len(self._stack)))

    def take(self) -> dict[str, float]:
        """Seconds of each phase since the last ``take`` as ``time/<phase>``, the rest and the whole; starts anew."""
        now = self._switch()
        seconds, self._seconds = self._seconds, {}
        whole, self._taken = now - self._taken, now
        return {f"time/{name}": value for name, value in sorted(seconds.items())} | {"time/step": whole}

    def _switch(self) -> float:
        """Give the time since the last switch to the innermost phase."""
        now = self._clock()
        current = self._stack[-1] if self._stack else "other"
        self._seconds[current] = self._seconds.get(current, 0.0) + now - self._mark
        self._mark = now
        return now


def peak_rss_mib() -> float:
    """Largest resident memory of this process so far, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB elsewhere
