"""Whether a run ends before ``trainer.steps``, and why: decided between two steps, or in the middle of one.

A part of a step that may be left in its middle (sampling, an evaluation) calls ``Stopping.look`` where it waits.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from dapo.checkpoint.store import CheckpointStore
from dapo.loop.best import Best
from dapo.loop.interrupt import Interrupt
from dapo.types.batch import Metrics
from dapo.types.evidence import ClusterLost, DataEnded, Interrupted, LeftAtOnce, LeftInStep, NoGain, OutOfTime, Signal
from dapo.types.protocols import Recorder

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
        """Forget the time before the first step, which is about to begin."""
        self._last = None

    def over(self, save: float | None) -> OutOfTime | None:
        """Return why a step has to be left in its middle; None: there is time for more than a save of ``save`` seconds.

        Without a save so far it is taken to need no time.
        """
        passed = self._clock() - self._begun
        if self.hours is None or self.hours * 3600 - passed > (save or 0.0):
            return None
        return OutOfTime(self.hours, passed, None, in_step=self._last is not None)

    def passed(self, save: float | None) -> OutOfTime | None:
        """Return why there is no time for another step; None if there is. Call it between two steps.

        ``save``: seconds of the longest save; None: none was seen, and it is taken to be as long as a step.
        """
        now = self._clock()
        if self._last is not None:
            self._steps.append(now - self._last)
        self._last = now
        if self.hours is None:
            return None
        step = max(self._steps, default=0.0)
        passed = now - self._begun
        if self.hours * 3600 - passed >= step + (step if save is None else save):
            return None
        return OutOfTime(self.hours, passed, step if self._steps else None)


class Stopped(BaseException):
    """The run is asked to end, and what goes on may be left in its middle. No ``except Exception`` takes it for an
    error."""


class Stopping:
    """Asked between two steps, and where a step waits for samples, scores, environments or an evaluation.

    Attributes:
        interrupts: while it is entered, a first signal stops the run, and a second one ends it without a checkpoint.
        by: "Ctrl-C", "SIGTERM" or the argument of ``stop``, where the run was stopped; "" otherwise.
        early: why the run is at its end before ``trainer.steps``; None otherwise.
        left: what a stop in the middle of a step left; None otherwise.
        cause: why it was stopped, if it was not asked for: ``trainer.max_hours``, or its cluster was lost.
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
        self.best, self._patience = best, patience
        self.by = ""
        self.early: DataEnded | NoGain | None = None
        self.left: LeftInStep | None = None
        self.cause: OutOfTime | ClusterLost | None = None
        self._may_leave = False  # what goes on now, in its middle
        self._save: float | None = None  # seconds of the longest save
        self.interrupts = Interrupt(self._interrupted, self._interrupted_again)

    @contextmanager
    def may_leave(self) -> Iterator[None]:
        """Let ``look`` raise in this context: a checkpoint can be written in the middle of what is done here."""
        self._may_leave = True
        try:
            yield
        finally:
            self._may_leave = False

    def look(self) -> None:
        """Raise ``Stopped`` if a signal came, or ``trainer.max_hours`` is over, within ``may_leave``."""
        if not self._may_leave:
            return
        if not self.interrupts.requested:
            if (out_of_time := self._deadline.over(self._save)) is None:
                return
            self._end_for(out_of_time)
        raise Stopped

    def stop(self, why: str) -> None:
        """End after the step at hand, as Ctrl-C does; the first reason stays."""
        self.by = self.by or why

    def lose(self, cluster: ClusterLost) -> None:
        """End after the step at hand, as long as it can be done with what was started. Called in any thread."""
        if not self.by:
            self.by, self.cause = "the loss of its cluster", cluster
        self._recorder.ending(cluster)

    def end(self, why: DataEnded | NoGain) -> None:
        """There is nothing left to do: the run is at its end."""
        self.early = why
        self._recorder.ending(why)

    def start(self) -> None:
        """Take note that the first step is about to begin."""
        self._deadline.start()

    def finished(self, left: int) -> bool:
        """Whether the run is at its end, ``left`` training steps before ``trainer.steps``: what came while the last
        step was done, or saved, stopped nothing."""
        return left <= 0 or self.early is not None or not self.by

    def seen(self, step: int, metrics: Metrics) -> None:
        """Take note of a step's metrics."""
        if self.best is not None:
            self.best.seen(step, metrics)

    def due(self, save: float | None = None) -> bool:
        """Decides whether no further step is begun, and tells why; ``save``: see ``Deadline.passed``."""
        self._save = save
        out_of_time = self._deadline.passed(save)
        if self.by or self.interrupts.requested:
            return True
        best = self.best
        if best is not None and best.since >= self._patience:
            self.end(NoGain(best.metric, best.since, self._patience, best.value, best.step))
            return True
        if out_of_time is not None:
            self._end_for(out_of_time)
        return out_of_time is not None

    def leave(self, left: LeftInStep) -> None:
        """Take note of, and tell, where the run stopped in the middle of a step."""
        self.left = left
        self._recorder.ending(left)

    def _end_for(self, out_of_time: OutOfTime) -> None:
        self.by, self.cause = self.by or "trainer.max_hours", self.cause or out_of_time
        self._recorder.ending(out_of_time)

    def _interrupted(self, cause: Signal) -> None:
        self.by = cause
        self._recorder.ending(Interrupted(cause))

    def _interrupted_again(self) -> None:
        steps = self._checkpoints.steps()
        self._recorder.ending(LeftAtOnce(steps[-1] if steps else None, str(self._checkpoints.folder)))
