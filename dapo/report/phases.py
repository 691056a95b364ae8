"""Phases of a step's row and of a run's spans, in one order everywhere."""

from __future__ import annotations

from collections.abc import Iterable

from dapo.metrics.glossary import BESIDE, PHASES, START
from dapo.observe.metrics import Row

_NO_PHASE = (
    "time/step",
    "time/tokens_per_second",
    "time/trained_tokens_per_second",
    "time/engine_idle",
    "time/learner_idle",
)


def phases_of_row(row: Row) -> list[str]:
    """Phases whose seconds a row holds; one that this version does not know counts, too."""
    names = [key.removeprefix("time/") for key in row if key.startswith("time/") and key not in _NO_PHASE]
    return [name for name in in_order(names) if row[f"time/{name}"] is not None]


def in_order(names: Iterable[str]) -> list[str]:
    """Return processes other than the driver, then phases in the glossary's order, each once; unknown ones last."""
    found = list(dict.fromkeys(names))
    known = (START, *BESIDE, *PHASES)
    return [name for name in known if name in found] + [name for name in found if name not in known]
