"""What every training loop counts, and gives out after a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dapo.types.batch import Group, Metrics


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
