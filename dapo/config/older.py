"""Settings that had another name or form in an earlier version, as run folders of that time hold them."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

OLDER = "gradient_checkpointing"
_NOW = "activation_checkpointing"


def of_today(given: dict[str, Any]) -> dict[str, Any]:
    """``given`` in today's words: ``gradient_checkpointing: true`` is ``activation_checkpointing: full``."""
    model = given.get("model")
    if not isinstance(model, dict) or not isinstance(model.get(OLDER), bool) or _NOW in model:
        return given
    result = deepcopy(given)
    result["model"][_NOW] = "full" if result["model"].pop(OLDER) else "none"
    return result
