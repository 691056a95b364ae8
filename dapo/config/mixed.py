"""When a group of responses counts as mixed, which is what dynamic sampling keeps."""

from __future__ import annotations

from dapo.config.schema import Recipe


def mixed_by_spread(recipe: Recipe) -> bool:
    """Return whether the spread of scores decides, and not how many responses are correct."""
    sampling = recipe.algorithm.dynamic_sampling
    if sampling.mixed != "auto":
        return sampling.mixed == "spread"
    if sampling.metric != "accuracy":
        return True
    return any(
        reward.kind == "service" or (reward.kind == "code" and reward.partial)
        for reward in recipe.rewards
        if reward.name == "accuracy"
    )


def correct_decides(recipe: Recipe) -> bool:
    """Return whether the number of correct responses decides, and neither their spread nor a function of the user's."""
    return recipe.algorithm.dynamic_sampling.keep is None and not mixed_by_spread(recipe)


def mixed_said(recipe: Recipe) -> str:
    """Return the rule in words, for ``dapo check``."""
    sampling = recipe.algorithm.dynamic_sampling
    if sampling.keep is not None:
        return f"mixed groups: as {sampling.keep} says"
    if mixed_by_spread(recipe):
        return f"mixed groups: scores of {sampling.metric} differ by more than {sampling.tolerance:g} (tolerance)"
    return f"mixed groups: some responses, not all, have {sampling.metric} >= {sampling.correct_at:g} (correct_at)"
