"""Whether a run ends before ``trainer.steps``, and why."""

from __future__ import annotations

from dapo.checkpoint.store import CheckpointStore
from dapo.contracts.recorder import Recorder
from dapo.loop.interrupt import Interrupt


class Stopping:
    """Asked between two steps; it decides nothing in the middle of one.

    Attributes:
        by: "Ctrl-C", "SIGTERM" or what ``stop`` was told, where the run was stopped; "" otherwise.
        early: why the run is at its end before ``trainer.steps``; "" otherwise.
    """

    def __init__(self, recorder: Recorder, checkpoints: CheckpointStore) -> None:
        self._recorder, self._checkpoints = recorder, checkpoints
        self.by = ""
        self.early = ""
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

    def now(self) -> bool:
        """No further step is to be begun."""
        return bool(self.by) or self._interrupt.requested

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
