"""The recipe's sections ``launch`` and ``cluster``: where the parts of a run live, and how long they are waited for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Seconds, Section


class Launch(Section):
    backend: Literal["local", "ray"] = "local"
    """Where engines and ranks live that have a process of their own. ``local``: on this machine. ``ray``: on a Ray
    cluster, which this version cannot use yet."""


class Cluster(Section):
    start_timeout: Seconds = 600.0
    """Seconds that an engine may take to start: imports, the model, for vLLM the compilation."""
    engine_timeout: Seconds = 300.0
    """Seconds after which an engine of a pool that does not come back from a turn is killed, and counts as lost. Longer
    than a turn of ``rollout.turn_steps`` and longer than loading weights."""
    max_engine_restarts: Annotated[int, Field(ge=0, le=10_000)] = 10
    """Engines of a pool that are started again in a run, together; after a further loss the others go on. When none is
    left the run is saved and stops."""
    max_learner_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """How often one command starts a learner over ranks again, from the last checkpoint, after a rank was lost."""
