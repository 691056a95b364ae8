"""Which runs belong together: those whose recipes differ in seeds, name and what changes no number alone."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

FREE = {"name", "dir", "seed", "if_exists"}
"""Settings of ``run`` in which the runs of one family may differ."""
ASIDE = {"checkpoint", "logging", "slurm"}
"""Sections that change no number of a run."""
LARGEST = 1e100
"""A number beyond it was not measured, and sums of such overflow."""


def family_of(given: dict[str, Any]) -> str:
    """Return a name that recipes of one family share.

    Args:
        given: as YAML has it, so a key may be any value.

    Raises:
        ValueError: a number that no recipe has; RecursionError: a value too deep.
    """
    plain = shared(_plain(given))
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:12]


def shared(recipe: dict[str, Any]) -> dict[str, Any]:
    """Return what runs of one family share: a recipe without ``FREE``, ``ASIDE`` and seeds of generated problems."""
    recipe = {key: value for key, value in recipe.items() if key not in ASIDE}
    run, data = (part if isinstance(part := recipe.get(name), dict) else {} for name in ("run", "data"))
    kept = recipe | {"run": {key: value for key, value in run.items() if key not in FREE}}
    return kept | {"data": {key: _without_seeds(value) for key, value in data.items()}} if data else kept


def _without_seeds(sources: Any) -> Any:
    if not isinstance(sources, list):
        return sources
    return [
        {key: value for key, value in one.items() if key != "seed"} if isinstance(one, dict) else one for one in sources
    ]


def _plain(value: Any) -> Any:
    """With keys that can be sorted."""
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    if isinstance(value, int) and not -(2**63) <= value < 2**64:
        raise ValueError("it has a number of more than 64 bits")
    if isinstance(value, float) and math.isfinite(value) and abs(value) > LARGEST:
        raise ValueError(f"it has a number beyond {LARGEST:g}")
    return value
