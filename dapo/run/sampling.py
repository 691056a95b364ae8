"""How responses are drawn, and what ends one, from a recipe and what is known of its model."""

from __future__ import annotations

from dapo.config.schema import Recipe
from dapo.errors import ModelError
from dapo.types.batch import SamplingParams
from dapo.types.model import ModelFacts


def make_sampling(recipe: Recipe, facts: ModelFacts) -> SamplingParams:
    rollout = recipe.rollout
    return SamplingParams(
        max_tokens=rollout.max_response_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        stop_token_ids=stop_tokens(recipe, facts),
        stop=tuple(rollout.stop),
    )


def make_validation_sampling(recipe: Recipe, facts: ModelFacts) -> SamplingParams:
    validation = recipe.validation
    return SamplingParams(
        max_tokens=validation.max_response_tokens or recipe.rollout.max_response_tokens,
        temperature=validation.temperature,
        top_p=validation.top_p,
        stop_token_ids=stop_tokens(recipe, facts),
        stop=tuple(recipe.rollout.stop),
    )


def stop_tokens(recipe: Recipe, facts: ModelFacts) -> tuple[int, ...]:
    """Return the tokens that end a response.

    Raises:
        ModelError: neither the model nor the recipe names an end token: every response would run to the limit.
    """
    given = recipe.rollout.stop_token_ids
    stops = facts.stop_token_ids if given is None else tuple(given)
    if not stops:
        raise ModelError(
            f"{facts.name} names no end-of-sequence token and rollout.stop_token_ids is "
            f"{'not set' if given is None else 'empty'}; set it to the token ids that end a response"
        )
    return stops
