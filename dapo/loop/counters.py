"""What every training loop counts, gives out after a step, and reads of a checkpoint first."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.checkpoint.tree import as_damage, load_state
from dapo.contracts.model import check_fingerprint
from dapo.contracts.types import Group, Metrics
from dapo.errors import CheckpointError


@dataclass(slots=True)
class Counters:
    """Three kinds of steps that peers confuse."""

    training_steps: int = 0  # rollout batches trained on
    rollout_steps: int = 0  # batches collected from the engine
    optimizer_steps: int = 0  # weight updates
    trained_tokens: int = 0  # response tokens that carried loss


@dataclass(frozen=True, slots=True)
class StepDone:
    """What a training step came to."""

    step: int
    metrics: Metrics  # as recorded
    finished: Sequence[Group]  # groups that were judged or discarded in it


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
