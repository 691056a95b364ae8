"""The recipe's section ``checkpoint``: saving."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Positive, Section, Whole


class Checkpoint(Section):
    every: Whole = 10
    """Training steps between checkpoints; 0: only at the end."""
    keep: Positive = 2
    """Newest checkpoints to keep."""
    seconds: Annotated[float, Field(gt=0, le=2_592_000)] | None = None
    """Also save at the first end of a step so many seconds after the last checkpoint; null: by steps alone."""
    best: str | None = None
    """Metric, such as ``validation/accuracy``: the step that is best by it is saved when it is recorded, and its
    checkpoint is kept beside the newest ones (``dapo export --best``). The evaluation before training does not count:
    of that model there is no checkpoint. null: only the newest."""
    best_is: Literal["auto", "highest", "lowest"] = "auto"
    """Which value of ``best`` is the best. ``auto``: as docs/metrics.md has the metric."""
    dir: str | None = None
    """Folder, on another disk perhaps, that holds the run's checkpoints in a folder of its own; ``RUN/checkpoints`` is
    then a link to that. null: they lie in the run's folder."""
    asynchronous: bool = False
    """Write a checkpoint while the next steps are trained: its tensors are copied to the processor's memory first."""
