"""Which ``rollout.max_staleness`` fits a recipe, by arithmetic with the assumptions of ``check_time``."""

from __future__ import annotations

import math
from collections.abc import Iterator

from dapo.cli.check_time import KEPT, MEAN_LENGTH
from dapo.config import Recipe
from dapo.config.deployment import Deployment


def steps_of_the_longest(recipe: Recipe) -> float:
    """Training steps that go by while a response at the limit is generated, with every slot taken.

    A step has the decode steps in which its responses, rejected ones included, leave the slots at their mean length.
    """
    rollout = recipe.rollout
    responses = rollout.prompts_per_step * rollout.group_size
    generated = responses / (KEPT if recipe.algorithm.dynamic_sampling.mode == "filter" else 1.0)
    rows = min(sum(slots or responses for slots in Deployment(recipe).slots), responses)
    return rollout.max_response_tokens / (generated * MEAN_LENGTH * rollout.max_response_tokens / rows)


def recommended_staleness(recipe: Recipe) -> int:
    """Return the least S with which no engine waits for a response at the limit. It is the steps of that response, plus
    one for the weights learned meanwhile, and at least 2: with 1, every step waits for all of its groups."""
    return max(2, 1 + math.ceil(steps_of_the_longest(recipe) - 1e-9))


def overlap_lines(recipe: Recipe) -> Iterator[str]:
    """Yield the S that the recipe's numbers suggest, and the effect of the present one."""
    limit, fits = recipe.rollout.max_staleness, recommended_staleness(recipe)
    if Deployment(recipe).engine in ("generate", "own"):
        return
    spans = steps_of_the_longest(recipe)
    why = (
        f"a response at the limit takes {spans:.1f} training steps, and one version more goes by while the learner "
        f"learns (assumed: responses of {MEAN_LENGTH:.0%} of the limit, {KEPT:.0%} of the groups kept)"
    )
    if not limit:
        yield (
            f"rollout.max_staleness is 0: engines and learner take turns. With devices of their own for each, {fits} "
            f"lets both work at once: {why}. On devices that both share 0 is right"
        )
    elif limit < fits:
        yield f"rollout.max_staleness = {limit}: {fits} would be enough never to wait for a long response: {why}"
    else:
        more = f"; {fits} would be enough, and trains younger tokens" if limit > fits else ""
        yield f"rollout.max_staleness = {limit}{more}: {why}"
    yield "docs/overlap.md has what was simulated and measured of each"
