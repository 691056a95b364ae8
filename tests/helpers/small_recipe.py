"""A recipe for parts of the loop: valid, and read as a user's would be."""

from __future__ import annotations

from dapo.config.load import recipe_from_dict
from dapo.config.schema import Recipe


def small_recipe(**sections) -> Recipe:
    """Two steps, no validation, no checkpoints but the last; sections are laid on top."""
    base = {
        "model": {"path": "builtin/signed-sum"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rewards": [{"name": "accuracy", "kind": "exact"}],
        "trainer": {"steps": 2},
        "validation": {"every": 0},
        "checkpoint": {"every": 0},
    }
    return recipe_from_dict(
        {key: base.get(key, {}) | sections.get(key, {}) if key != "rewards" else base[key] for key in base | sections}
    ).recipe
