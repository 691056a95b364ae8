"""The recipe's section ``trainer``: the loop."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dapo.config.section import Section


class Trainer(Section):
    steps: Annotated[int, Field(ge=0)] = 100
    """Training steps (one rollout batch each)."""
    sync_check_tolerance: Annotated[float, Field(gt=0)] | None = None
    """Largest mean |sampler - learner| log-probability, nats, accepted right after a publish (engines with own
    weights). None: three times the healthy gap of this engine and precision, between 1e-5 and 0.05."""
