"""Checkpoints of a training loop: when one is due, what it holds, and writing one while training goes on.

A checkpoint is the loop's state, and the learner's files in a folder beside it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dapo.checkpoint.store import BeginWrite, CheckpointStore, Saving
from dapo.checkpoint.tree import as_damage, load_state, save_state
from dapo.config.schema import Checkpoint
from dapo.errors import CheckpointError
from dapo.loop.best import Best
from dapo.loop.method import Counters
from dapo.metrics.phases import Phases
from dapo.types.batch import Metrics, SavedFile
from dapo.types.codec import from_tree, to_tree
from dapo.types.model import check_fingerprint
from dapo.types.protocols import Handle, Learner, Mapped, Recorder

_LEARNER = "learner"


class Saver:
    """Checkpoints of one training loop, one under way at a time.

    Attributes:
        at: the step that was last saved, or is being saved.
        longest: seconds of the save that took longest; None: there was none yet.
    """

    def __init__(
        self, checkpoints: CheckpointStore, recorder: Recorder, phases: Phases, best: Best | None = None
    ) -> None:
        """Begin without a checkpoint; ``best``: the metric whose best step keeps its own."""
        self._checkpoints, self._recorder, self._phases, self.best = checkpoints, recorder, phases, best
        self.at: int | None = None
        self.longest: float | None = None
        self._improved = False  # by a step that is not saved yet
        self._on = time.monotonic()  # when that was
        self._under_way: Saving | None = None

    def start(self) -> None:
        """Remove the mark of a best step that this run does not know.

        Such a step is of a later time, to be done again, or best by a metric that the recipe does not name.
        """
        marked = self._checkpoints.best()
        if marked is None or self.best is None or marked["step"] != self.best.step:
            self._checkpoints.mark(None)

    def seen(self, step: int, metrics: Metrics) -> None:
        """Look at the line of a step; the model before training has no checkpoint."""
        if self.best is not None and step and self.best.seen(step, metrics):
            self._improved = True

    def wants(self, step: int) -> bool:
        """Step ``step``, the last one, is not saved as it is."""
        return self.at != step or self._improved

    def step_done(self, step: int, settings: Checkpoint, write: BeginWrite) -> None:
        """Save when it is due, by steps or by time; take note of a checkpoint that has become whole."""
        if self._under_way is not None and self._under_way.done():
            self.finish()
        late = settings.seconds is not None and time.monotonic() - self._on >= settings.seconds
        if late or self._improved or (settings.every and step % settings.every == 0):
            self.begin(step, write)
            if not settings.asynchronous:
                self.finish()

    def begin(self, step: int, write: BeginWrite) -> None:
        """Start to save the state of now; the learner may go on writing."""
        self.finish()
        best = self.best
        record = {k: v for k, v in to_tree(best).items() if k != "since"} if best and best.step == step else None
        start = time.monotonic()
        with self._phases("save"):
            self._under_way = self._checkpoints.begin(step, write, record)
        self.at, self._on, self._improved = step, time.monotonic(), False
        self.longest = max(self.longest or 0.0, self._on - start)

    def finish(self) -> Path | None:
        """Wait for the checkpoint that is under way, and return its folder; None: there is none."""
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


def begin_checkpoint(folder: Path, learner: Learner, state: Mapping[str, Any]) -> Handle[list[SavedFile]]:
    """Write the loop's state, let the learner write its own, and return the learner's files."""
    saving = learner.save(folder / _LEARNER)
    save_state(dict(state), folder)
    return Mapped(saving, lambda files: [replace(file, name=f"{_LEARNER}/{file.name}") for file in files])


def load_learner(folder: Path, learner: Learner) -> None:
    """Let the learner go on from its files.

    Raises:
        CheckpointError: they are damaged.
    """
    with as_damage(folder, f"{_LEARNER}/"):
        learner.load(folder / _LEARNER)


def open_state(folder: Path, fingerprint: dict[str, Any]) -> tuple[dict[str, Any], Counters]:
    """Return a checkpoint's state and its counters.

    Raises:
        CheckpointError: it is damaged, of another step than its name says, or of another model.
    """
    try:
        state = load_state(folder)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {folder} is damaged: {error.filename} is missing") from None
    with as_damage(folder):
        check_fingerprint(state["fingerprint"], fingerprint, folder)
        counters = from_tree(Counters, state["counters"])
        if folder.name != f"step_{counters.training_steps:06d}":
            raise ValueError(f"it is the state of step {counters.training_steps}")
    return state, counters
