"""Time of each phase of a step: exclusive seconds, begin and end; on a GPU also memory."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from dapo.metrics.metric import COMPUTING
from dapo.types.protocols import Span

_AWAITED = frozenset(COMPUTING) - {"generate"}  # generation reads what it made at every step


class Meter(Protocol):
    """A device that goes on with its work while the host does something else."""

    def settle(self) -> None:
        """Wait until it has done what it was given."""

    def peak(self) -> int:
        """Most bytes that were held on it since this was last asked."""


class Phases:
    """Adds up the seconds of named phases. For one thread.

    With a ``meter`` the phases of ``COMPUTING`` end when the device has done its work, so that the seconds of its
    kernels are theirs: at most three waits a step. A phase's memory is what was held from its beginning to the
    beginning of the next one of them.

    A phase inside another counts for the inner one only, so the phases of a step add up to the step::

        with phases("generate"):
            ...
            with phases("score"):  # the time of generate pauses
                ...
        metrics |= phases.take()  # {"time/generate": ..., "time/score": ..., "time/other": ..., "time/step": ...}
    """

    def __init__(
        self,
        sink: Callable[[Span], None] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        epoch: Callable[[], float] = time.time,
        meter: Meter | None = None,
    ) -> None:
        """``sink`` is called with every span when it ends. ``meter``: of this process's device, if any.

        Spans speak of seconds since 1970: ``epoch`` is read once, and ``clock``, which never jumps, tells the rest.
        """
        self.step = 0  # the training step that spans belong to; the trainer sets it
        self._sink, self.clock = sink, clock
        self._taken = self._mark = clock()
        self._origin = epoch() - self._mark
        self._stack: list[str] = []
        self._seconds: dict[str, float] = {}
        self._meter = meter
        self._computing: str | None = None  # whose memory the meter counts now
        self._peaks: dict[str, int] = {}

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        outermost = not self._stack
        if outermost and name in COMPUTING and name != self._computing:
            self._read_meter()
            self._computing = name
        start = self._switch()
        self._stack.append(name)
        try:
            yield
        finally:
            if self._meter is not None and outermost and name in _AWAITED:
                self._meter.settle()
            end = self._switch()
            self._stack.pop()
            if self._sink is not None:
                self._sink(Span(self.step, name, self._origin + start, end - start, end - start))

    @property
    def current(self) -> str:
        """Return the innermost phase that goes on, "other" outside of all. Any thread may ask."""
        stack = self._stack
        return stack[-1] if stack else "other"

    def beside(self, name: str, start: float, end: float, busy: float | None = None) -> None:
        """Work of another process, whatever phase the driver is in: a span, and no phase's seconds.

        Args:
            name: one of ``dapo.metrics.glossary.BESIDE``.
            start: on ``clock``.
            end: likewise.
            busy: seconds of work in between; None: all of them.
        """
        if self._sink is not None:
            self._sink(Span(self.step, name, self._origin + start, end - start, end - start if busy is None else busy))

    def take(self) -> dict[str, float]:
        """Seconds of each phase since the last ``take`` as ``time/<phase>``, the rest and the whole; starts anew."""
        now = self._switch()
        seconds, self._seconds = self._seconds, {}
        whole, self._taken = now - self._taken, now
        return {f"time/{name}": value for name, value in sorted(seconds.items())} | {"time/step": whole}

    def peaks(self) -> dict[str, float]:
        """MiB held on the device since the last call, as ``memory/peak_cuda_mib``, and by phase; {} without a meter."""
        self._read_meter()
        found, self._peaks = self._peaks, {}
        self._computing = None
        if not found:
            return {}
        name = "memory/peak_cuda_mib"
        by_phase = {f"{name}/{phase}": found[phase] / 2**20 for phase in COMPUTING if phase in found}
        return by_phase | {name: max(found.values()) / 2**20}

    def _read_meter(self) -> None:
        """Give what was held since the last reading to the phase that computes, or computed last."""
        if self._meter is not None:
            phase = self._computing or "other"
            self._peaks[phase] = max(self._peaks.get(phase, 0), self._meter.peak())

    def _switch(self) -> float:
        """Give the time since the last switch to the innermost phase."""
        now = self.clock()
        current = self._stack[-1] if self._stack else "other"
        self._seconds[current] = self._seconds.get(current, 0.0) + now - self._mark
        self._mark = now
        return now
