"""When a checkpoint is due, and one that is written while training goes on."""

from __future__ import annotations

import time
from pathlib import Path

from dapo.checkpoint.store import BeginWrite, CheckpointStore, Saving
from dapo.config.schema import Checkpoint
from dapo.contracts.phases import Phases
from dapo.contracts.recorder import Recorder


class Saver:
    """Checkpoints of one training loop, one under way at a time.

    Attributes:
        at: the step that was last saved, or is being saved.
    """

    def __init__(self, checkpoints: CheckpointStore, recorder: Recorder, phases: Phases) -> None:
        self._checkpoints, self._recorder, self._phases = checkpoints, recorder, phases
        self.at: int | None = None
        self._on = time.monotonic()  # when that was
        self._under_way: Saving | None = None

    def step_done(self, step: int, settings: Checkpoint, write: BeginWrite) -> None:
        """Save where it is due, by steps or by the clock; take note of a checkpoint that has become whole."""
        if self._under_way is not None and self._under_way.done():
            self.finish()
        late = settings.seconds is not None and time.monotonic() - self._on >= settings.seconds
        if late or (settings.every and step % settings.every == 0):
            self.begin(step, write)
            if not settings.asynchronous:
                self.finish()

    def begin(self, step: int, write: BeginWrite) -> None:
        """The state of now; the learner may go on writing."""
        self.finish()
        with self._phases("save"):
            self._under_way = self._checkpoints.begin(step, write)
        self.at, self._on = step, time.monotonic()

    def finish(self) -> Path | None:
        """The checkpoint that is under way, once it is whole; None: there is none."""
        saving, self._under_way = self._under_way, None
        if saving is None:
            return None
        with self._phases("save"):
            folder = saving.finish()
        self._recorder.saved(saving.step, folder)
        return folder
