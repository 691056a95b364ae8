"""Generation beside learning: what the driver does while a training step is under way at the learner."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from dapo.loop.method import on_failure
from dapo.loop.sampling.collector import StreamingCollector
from dapo.metrics.phases import Phases
from dapo.types.protocols import Handle

T = TypeVar("T")
LOOK = 0.05
"""Seconds between two looks at the learner: what a step may end late by."""


class Overlap:
    """Turns the collector's crank for the next training step until the learner has finished this one.

    The step that is learnt from is whole whatever happens to the next: any error there is kept, and raised by ``check``
    once this step is recorded. A learner that is lost is no error of the next step.

    Args:
        collector: Its ``begin`` is called first, so what it dispatches meanwhile counts for the next step.
        phases: Waiting with nothing to turn is the phase ``learn``.
        turns: Turns of the crank in every step, for runs that no clock decides. Unfinished responses are then taken
            back from the engine, and the result is waited for: publish, evaluation, checkpoint and the restart of an
            engine meet no response under way. None: as many as the learner's time allows.
    """

    def __init__(self, collector: StreamingCollector, phases: Phases, turns: int | None = None) -> None:
        self.collector, self.phases, self.turns = collector, phases, turns
        self._failure: Exception | None = None

    def result(self, handle: Handle[T], next_step: int) -> T:
        """Work for ``next_step`` until the learner is done; return the learner's result."""
        with on_failure(self._keep):
            self.collector.begin(next_step)
        if self.turns is None:
            self._until(handle)
        else:
            with on_failure(self._keep):
                self._turn(self.turns)
        with self.phases("learn"):
            return handle.result()

    def rest(self) -> None:
        """Take unfinished responses back from the engine, so that a state can be saved."""
        with on_failure(self._keep):
            self.collector.rest()

    def check(self) -> None:
        """Raise what went wrong with the next step meanwhile."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _until(self, handle: Handle[T]) -> None:
        while not handle.done():
            going = False
            with on_failure(self._keep):
                going = self._failure is None and self.collector.pump(LOOK)
            if not going:
                with self.phases("learn"), suppress(TimeoutError):
                    handle.result(LOOK)

    def _turn(self, turns: int) -> None:
        if self._failure is not None:
            return
        for _ in range(turns):
            if not self.collector.pump():
                break
        self.collector.pause()

    def _keep(self, error: Exception) -> bool:
        """Keep an error for ``check``."""
        self.collector.give_up(error)
        self._failure = self._failure or error
        return True
