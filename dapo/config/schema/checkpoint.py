"""The recipe's section ``checkpoint``: saving."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dapo.config.section import Positive, Section


class Checkpoint(Section):
    every: Annotated[int, Field(ge=0)] = 10
    """Training steps between checkpoints; 0: only at the end."""
    keep: Positive = 2
    """Newest checkpoints to keep."""
    seconds: Annotated[float, Field(gt=0)] | None = None
    """Also save at the first end of a step so many seconds after the last checkpoint; null: by steps alone."""
    asynchronous: bool = False
    """Write a checkpoint while the next steps are trained; needs ``learner.ranks`` above 1."""
