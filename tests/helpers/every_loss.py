"""The built-in losses, found by their registration: a new kind is in these tests by itself."""

from __future__ import annotations

from dapo.algorithms.objective import Objective, clip_objective
from dapo.config.schema.kinds import Clip, Loss, LossKind
from dapo.config.section import OWN, kinds_of
from dapo.run.algorithm import built_in_loss


def every_loss() -> dict[str, Objective]:
    """Return each kind with its default options and a dual clip where it has one; and the ratio of whole responses."""
    found = {"sequence": clip_objective(low=3e-4, high=4e-4, ratio="sequence")}
    for kind, section in kinds_of(Loss.__origin__).items():  # type: ignore[attr-defined]
        if kind != OWN:
            assert issubclass(section, LossKind)
            found[kind] = built_in_loss(section(), Clip(dual=3.0))
    return found
