"""Whether a run ends before ``trainer.steps``, and why."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

from dapo.checkpoint.store import CheckpointStore
from dapo.contracts.recorder import Recorder
from dapo.contracts.types import Metrics
from dapo.contracts.words import in_a_row
from dapo.loop.best import Best
from dapo.loop.interrupt import Interrupt

REMEMBERED = 20
"""Steps whose seconds say how long the next one may take."""


class Deadline:
    """``trainer.max_hours``: counted from where it is made, the beginning of the command."""

    def __init__(self, hours: float | None, clock: Callable[[], float] = time.monotonic) -> None:
        """``hours``: None: there is no end. ``clock``: seconds."""
        self.hours, self._clock = hours, clock
        self._begun = clock()
        self._last: float | None = None  # when a step was asked for last
        self._steps: deque[float] = deque(maxlen=REMEMBERED)  # seconds of each, with all that came behind it

    def start(self) -> None:
        """The first step is about to begin: what came before is no step."""
        self._last = None

    def passed(self, save: float | None) -> str:
        """Called between two steps: why there is no time for another one; "" where there is.

        ``save``: seconds of the longest save; None: none was seen, and it is taken to be as long as a step.
        """
        now = self._clock()
        if self._last is not None:
            self._steps.append(now - self._last)
        self._last = now
        if self.hours is None:
            return ""
        step = max(self._steps, default=0.0)
        left = self.hours * 3600 - (now - self._begun)
        if left >= step + (step if save is None else save):
            return ""
        given = f"trainer.max_hours = {self.hours:g}"
        if not self._steps:
            before = now - self._begun
            return (
                f"{given} left no time for a single step: what comes before the first one (loading, the evaluation "
                f"before training) took {_seconds(before)}. Give more: a resume needs that time again"
            )
        if left < 0:
            return f"{given} is over by {_seconds(-left)}, as a step took up to {_seconds(step)}. Give more"
        return f"{given}: {_seconds(left)} are left, and a step took up to {_seconds(step)}"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s"


class Stopping:
    """Asked between two steps; it decides nothing in the middle of one.

    Attributes:
        by: "Ctrl-C", "SIGTERM" or what ``stop`` was told, where the run was stopped; "" otherwise.
        early: why the run is at its end before ``trainer.steps``; "" otherwise.
        out_of_time: it was stopped by ``trainer.max_hours``.
    """

    def __init__(
        self,
        recorder: Recorder,
        checkpoints: CheckpointStore,
        deadline: Deadline,
        best: Best | None = None,
        patience: int = 0,
    ) -> None:
        """``best``: the metric that has to get better within ``patience`` lines that have it."""
        self._recorder, self._checkpoints, self._deadline = recorder, checkpoints, deadline
        self._best, self._patience = best, patience
        self.by = ""
        self.early = ""
        self.out_of_time = False
        self._interrupt = Interrupt(self._interrupted, self._interrupted_again)

    @property
    def interrupts(self) -> Interrupt:
        """While it is entered, a first signal stops the run after its step, and a second one at once."""
        return self._interrupt

    def stop(self, why: str) -> None:
        """End after the step at hand, as Ctrl-C does; the first reason stays."""
        self.by = self.by or why

    def end(self, why: str) -> None:
        """There is nothing left to do: the run is at its end."""
        self.early = why
        self._recorder.say(why)

    def start(self) -> None:
        """The first step is about to begin."""
        self._deadline.start()

    def finished(self, left: int) -> bool:
        """Whether the run is at its end, ``left`` training steps before ``trainer.steps``: what came while the last
        step was done, or saved, stopped nothing."""
        return left <= 0 or bool(self.early) or not self.by

    def seen(self, step: int, metrics: Metrics) -> None:
        """The line of a step."""
        if self._best is not None:
            self._best.seen(step, metrics)

    def due(self, save: float | None = None) -> bool:
        """Decides whether no further step is begun, and says why; ``save``: see ``Deadline.passed``."""
        why = self._deadline.passed(save)
        if self.by or self._interrupt.requested:
            return True
        best = self._best
        if best is not None and best.since >= self._patience:
            self.end(
                f"{best.metric} was not better {in_a_row(best.since)} (best: {best.value:.4g}, at step {best.step}; "
                f"trainer.early_stop.patience = {self._patience})"
            )
            return True
        if why:
            self.by, self.out_of_time = "trainer.max_hours", True
            self._recorder.say(f"{why}: saving and ending here")
        return bool(why)

    def state(self) -> dict[str, Any] | None:
        return None if self._best is None else self._best.state()

    def load(self, state: dict[str, Any] | None) -> None:
        if self._best is not None:
            self._best.load(state)

    def _interrupted(self, cause: str) -> None:
        self.by = cause
        again = "Press it again" if cause == "Ctrl-C" else "Send it again"
        self._recorder.warn(f"{cause}: finishing this step, then saving. {again} to leave at once.")

    def _interrupted_again(self) -> None:
        steps = self._checkpoints.steps()
        last = (
            f"step {steps[-1]} in {self._checkpoints.folder}" if steps else "not there yet: the run has to start again"
        )
        self._recorder.warn(f"left at once; the last checkpoint is {last}")
