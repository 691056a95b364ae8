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
