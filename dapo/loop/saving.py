"""When a checkpoint is due, and one that is written while training goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from dapo.checkpoint.store import BeginWrite, CheckpointStore, Saving
from dapo.config.schema import Checkpoint
from dapo.loop.best import Best
from dapo.metrics.phases import Phases
from dapo.types.batch import Metrics
from dapo.types.protocols import Recorder


class Saver:
    """Checkpoints of one training loop, one under way at a time.

    Attributes:
        at: the step that was last saved, or is being saved.
        longest: seconds of the save that took longest; None: there was none yet.
    """

    def __init__(
        self, checkpoints: CheckpointStore, recorder: Recorder, phases: Phases, best: Best | None = None
    ) -> None:
        """``best``: the metric whose best step keeps its checkpoint."""
        self._checkpoints, self._recorder, self._phases, self._best = checkpoints, recorder, phases, best
        self.at: int | None = None
        self.longest: float | None = None
        self._improved = False  # by a step that is not saved yet
        self._on = time.monotonic()  # when that was
        self._under_way: Saving | None = None

    def start(self) -> None:
        """Steps begin: a mark of a later time, whose steps are done again, by another metric or by one that the recipe
        no longer names, goes."""
        marked = self._checkpoints.best()
        if marked is None or self._best is None or marked["step"] != self._best.step:
            self._checkpoints.mark(None)

    def seen(self, step: int, metrics: Metrics) -> None:
        """The line of a step; what the model was before training is no checkpoint."""
        if self._best is not None and step and self._best.seen(step, metrics):
            self._improved = True

    def wants(self, step: int) -> bool:
        """Step ``step``, the last one, is not saved as it is."""
        return self.at != step or self._improved

    def step_done(self, step: int, settings: Checkpoint, write: BeginWrite) -> None:
        """Save where it is due, by steps or by the clock; take note of a checkpoint that has become whole."""
        if self._under_way is not None and self._under_way.done():
            self.finish()
        late = settings.seconds is not None and time.monotonic() - self._on >= settings.seconds
        if late or self._improved or (settings.every and step % settings.every == 0):
            self.begin(step, write)
            if not settings.asynchronous:
                self.finish()

    def begin(self, step: int, write: BeginWrite) -> None:
        """The state of now; the learner may go on writing."""
        self.finish()
        best = self._best
        record = {k: v for k, v in best.state().items() if k != "since"} if best and best.step == step else None
        start = time.monotonic()
        with self._phases("save"):
            self._under_way = self._checkpoints.begin(step, write, record)
        self.at, self._on, self._improved = step, time.monotonic(), False
        self.longest = max(self.longest or 0.0, self._on - start)

    def finish(self) -> Path | None:
        """The checkpoint that is under way, once it is whole; None: there is none."""
        saving, self._under_way = self._under_way, None
        if saving is None:
            return None
        start = time.monotonic()
        with self._phases("save"):
            folder = saving.finish()
        self.longest = max(self.longest or 0.0, time.monotonic() - start)
        self._recorder.saved(saving.step, folder)
        return folder

    def save(self, step: int, write: BeginWrite) -> Path:
        """As ``begin``, waited for; returns the checkpoint's folder."""
        self.begin(step, write)
        folder = self.finish()
        assert folder is not None
        return folder

    def state(self) -> dict[str, Any] | None:
        return None if self._best is None else self._best.state()

    def load(self, state: dict[str, Any] | None) -> None:
        """What a checkpoint knew of the best one."""
        if self._best is not None:
            self._best.load(state)
