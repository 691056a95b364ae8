"""Generation beside learning: what the driver does while a training step is under way at the learner."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeVar

from dapo.contracts.handle import Handle
from dapo.contracts.phases import Phases
from dapo.errors import EngineError, RewardError, SamplingStopped
from dapo.loop.collector import StreamingCollector

T = TypeVar("T")
LOOK = 0.05
"""Seconds between two looks at the learner: what a step may end late by."""
FAILURES = (EngineError, RewardError, SamplingStopped)


class Overlap:
    """Turns the collector's crank for the next training step until the learner has finished this one.

    The step that is learnt from is whole whatever happens to the next: a failure there is kept, and raised by ``check``
    once this step is recorded.

    Args:
        collector: Its ``begin`` is called first, so what it dispatches meanwhile counts for the next step.
        phases: Waiting with nothing to turn is the phase ``learn``.
        turns: Turns of the crank in every step, for runs that no clock decides: the result is then waited for. None:
            as many as the learner's time allows.
    """

    def __init__(self, collector: StreamingCollector, phases: Phases, turns: int | None = None) -> None:
        self.collector, self.phases, self.turns = collector, phases, turns
        self._failure: Exception | None = None

    def result(self, handle: Handle[T], next_step: int) -> T:
        """The learner's result, and until then work for ``next_step``."""
        try:
            self.collector.begin(next_step)
            if self.turns is None:
                self._until(handle)
            else:
                for _ in range(self.turns):
                    if not self.collector.pump():
                        break
        except FAILURES as error:
            self.collector.give_up(error)
            self._failure = error
        with self.phases("learn"):
            return handle.result()

    def _until(self, handle: Handle[T]) -> None:
        while not handle.done():
            if not self.collector.pump(LOOK):
                with self.phases("learn"), suppress(TimeoutError):
                    handle.result(LOOK)

    def check(self) -> None:
        """Raise what went wrong with the next step meanwhile."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
