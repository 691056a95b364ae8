"""What a run may take on cards whose datasheet is known: arithmetic with assumptions that are printed beside it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dapo.cli.check_memory import LARGE, Memory, size_text
from dapo.cli.check_ranks import devices_of_engines, engines_apart
from dapo.config import Recipe
from dapo.config.checks import ratio_against
from dapo.config.deployment import engine_count, engine_slots
from dapo.types.model import ModelFacts

MEAN_LENGTH = 0.5  # of the response limit
KEPT = 0.5  # share of the groups that dynamic sampling keeps
BANDWIDTH_SHARE = 0.3  # of the card's, while decoding
PEAK_SHARE = 0.3  # of the card's bfloat16 matrix peak, while learning
_ROWS = 256  # responses that decode together, unless the recipe says otherwise
_LEAST_CACHE = 4 * 1024**3  # responses then wait for their turn
_SPARE = 1.1  # for CUDA itself and the allocator's gaps


@dataclass(frozen=True, slots=True)
class Card:
    """From the vendor's datasheet: memory in bytes, bytes per second, dense bfloat16 operations per second."""

    name: str
    memory: float
    bandwidth: float
    peak: float


CARDS = (
    Card("RTX 4090", 24 * 1024**3, 1.008e12, 165e12),
    Card("L40S", 48 * 1024**3, 0.864e12, 362e12),
    Card("A100 80 GB", 80e9, 2.039e12, 312e12),
    Card("H100 80 GB", 80e9, 3.35e12, 989e12),
    Card("H200", 141e9, 4.8e12, 989e12),
)


@dataclass(frozen=True, slots=True)
class Work:
    """One training step, in what has to be moved and computed."""

    generated: float  # tokens
    trained: float  # response tokens
    decode_bytes: float
    operations: float


def step_work(recipe: Recipe, facts: ModelFacts, prompt: float) -> Work:
    """Bytes that decoding reads and operations that learning makes in a step.

    Args:
        recipe: Of the run.
        facts: Of its model.
        prompt: Mean tokens of a prompt.
    """
    rollout, size = recipe.rollout, 4 if recipe.model.dtype == "float32" else 2
    responses, mean = rollout.prompts_per_step * rollout.group_size, MEAN_LENGTH * rollout.max_response_tokens
    filtered = recipe.algorithm.dynamic_sampling.mode == "filter"
    generated, trained = responses * mean / (KEPT if filtered else 1.0), responses * mean
    rows = min(sum(slots or _ROWS for slots in engine_slots(recipe)), responses)
    untied = not facts.fingerprint.get("tied", True)
    matrices = facts.parameters - untied * facts.vocabulary * facts.hidden  # a step looks up its embeddings
    step = engine_count(recipe) * matrices * size + rows * (prompt + mean / 2) * facts.layers * facts.key_values * size
    tokens = trained + rollout.prompts_per_step * prompt
    return Work(generated, trained, generated / rows * step, 2.0 * matrices * tokens * _passes(recipe))


def _passes(recipe: Recipe) -> int:
    """Forward passes' worth of work in a step: the backward pass is two."""
    from dapo.run.held import keeps_reference

    minibatch = recipe.learner.minibatch_prompts or recipe.rollout.prompts_per_step
    old = ratio_against(recipe) == "learner" and minibatch < recipe.rollout.prompts_per_step
    return 3 + (recipe.model.activation_checkpointing == "full") + old + keeps_reference(recipe)


def step_seconds(work: Work, card: Card) -> tuple[float, float]:
    """Seconds to generate and to learn."""
    generate = work.decode_bytes / (card.bandwidth * BANDWIDTH_SHARE)
    return generate, work.operations / (card.peak * PEAK_SHARE)


def needed_memory(memory: Memory) -> float:
    """Bytes that a card must have: an engine makes do with a smaller cache, and with fewer responses at once."""
    least = memory.generating - memory.cache + min(memory.cache, _LEAST_CACHE)
    return max(memory.learning, least) * _SPARE


def time_lines(recipe: Recipe, facts: ModelFacts, memory: Memory, prompt: float) -> Iterator[str]:
    """Tokens of a step and hours of the run on each known card that holds it; nothing for small models and CPUs.

    Ranks and engines share the work without loss: what links between cards cost is not in it.
    """
    if facts.parameters < LARGE or recipe.model.device == "cpu":
        return
    work, steps = step_work(recipe, facts, prompt), recipe.trainer.steps
    filtered = recipe.algorithm.dynamic_sampling.mode == "filter"
    kept = f", {KEPT:.0%} of the groups are kept" if filtered else ""
    yield (
        f"assumed: responses reach {MEAN_LENGTH:.0%} of the limit{kept}, decoding reads at {BANDWIDTH_SHARE:.0%} of a "
        f"card's bandwidth, learning computes at {PEAK_SHARE:.0%} of its matrix peak. Datasheets, not measurements; "
        "`dapo check --try 4` measures on your card"
    )
    yield f"a step: about {work.generated:,.0f} tokens generated, {work.trained:,.0f} trained on"
    fitting = [card for card in CARDS if card.memory >= needed_memory(memory)]
    ranks = recipe.learner.ranks
    engines, beside = (devices_of_engines(recipe), engines_apart(recipe)) if ranks > 1 else (1, False)
    cards = ranks + engines if beside else max(ranks, engines)
    for card in fitting:
        generate, learn = step_seconds(work, card)
        generate, learn = generate / engines, learn / ranks
        hours = (max(generate, learn) if beside else generate + learn) * steps / 3600
        yield (
            f"{f'{cards} x ' * (cards > 1)}{card.name}: {generate:.0f} s to generate and {learn:.0f} s to learn, "
            f"{steps:,} steps in about {_hours(hours)}, evaluations not counted"
        )
    if not fitting:
        most = max(CARDS, key=lambda card: card.memory)
        yield f"no card known here holds {size_text(int(needed_memory(memory)))}; the largest is the {most.name}"


def _hours(hours: float) -> str:
    return f"{hours:.1f} h" if hours < 10 else f"{math.ceil(hours):,} h"
