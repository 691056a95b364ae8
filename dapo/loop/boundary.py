"""A checkpoint of a loop: its own state, and the learner's files in a folder beside it."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from dapo.checkpoint.tree import as_damage, load_state, save_state
from dapo.errors import CheckpointError
from dapo.loop.counters import Counters
from dapo.types.batch import SavedFile
from dapo.types.model import check_fingerprint
from dapo.types.protocols import Handle, Learner, Mapped

_LEARNER = "learner"


def begin_boundary(folder: Path, learner: Learner, state: Mapping[str, Any]) -> Handle[list[SavedFile]]:
    """Write the loop's state, and have the learner write its own; what comes back are the learner's files."""
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
    """A checkpoint's state and its counters.

    Raises:
        CheckpointError: it is damaged, of another step than its name says, or of another model.
    """
    try:
        state = load_state(folder)
    except FileNotFoundError as error:
        raise CheckpointError(f"checkpoint {folder} is damaged: {error.filename} is missing") from None
    with as_damage(folder):
        check_fingerprint(state["fingerprint"], fingerprint, folder)
        counters = Counters(**{name: operator.index(value) for name, value in state["counters"].items()})
        if folder.name != f"step_{counters.training_steps:06d}":
            raise ValueError(f"it is the state of step {counters.training_steps}")
    return state, counters
