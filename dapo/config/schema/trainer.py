"""The recipe's section ``trainer``: the loop."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Above, Factor, Positive, Section, Whole


class EarlyStop(Section):
    metric: str | None = None
    """Metric, such as ``validation/accuracy``, that has to get better for the run to go on. null: no such rule."""
    best_is: Literal["auto", "highest", "lowest"] = "auto"
    """Which value of it is the best. ``auto``: as docs/metrics.md has the metric."""
    patience: Positive = 5
    """So many lines with the metric in a row (evaluations, where it comes from them) without a better value end the
    run. The evaluation before training counts as the first value."""
    min_change: Factor = 0.0
    """A value is better only if it is so by more than this."""


class Trainer(Section):
    steps: Whole = 100
    """Training steps (one rollout batch each)."""
    max_hours: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """Hours from the start of the command by which it has saved and ended, with exit code 75; ``dapo train --resume``
    goes on, with as many hours again. No step is begun that would end later if it took as long as the longest of the
    last twenty. null: no limit."""
    early_stop: EarlyStop = EarlyStop()
    """The end before ``steps`` where nothing gets better."""
    sync_check_tolerance: Above | None = None
    """Largest mean |sampler - learner| log-probability, nats, accepted right after a publish (engines with own
    weights). None: three times the healthy gap of this engine and precision, between 1e-5 and 0.05."""
