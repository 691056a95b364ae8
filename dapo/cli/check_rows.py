"""The longest row that ranks can learn from on GPUs whose datasheet is known: arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.cli.check_memory import LARGE, estimate_memory
from dapo.cli.check_time import CARDS, SPARE
from dapo.config import Recipe
from dapo.types.model import ModelFacts

_STEP = 500  # tokens: no estimate is more precise
_MOST = 1 << 20


def longest_row(recipe: Recipe, facts: ModelFacts, memory: float) -> int:
    """Return the most tokens of one row that ranks with so many bytes each can learn from; 0: not even a short one."""
    fitting, too_many = 0, _MOST // _STEP
    while fitting + 1 < too_many:
        tried = (fitting + too_many) // 2
        whole = estimate_memory(recipe, facts, 0, tried * _STEP)
        fitting, too_many = (tried, too_many) if whole.learning * SPARE <= memory else (fitting, tried)
    return fitting * _STEP


def row_lines(recipe: Recipe, facts: ModelFacts) -> Iterator[str]:
    """Yield the longest row on each known GPU; nothing for one rank, small models and CPUs."""
    learner = recipe.learner
    if learner.ranks == 1 or facts.parameters < LARGE or recipe.model.device == "cpu":
        return
    longest = [(card.name, longest_row(recipe, facts, card.memory)) for card in CARDS]
    told = ", ".join(f"{name} {tokens:,}" for name, tokens in longest if tokens) or "none of the known GPUs"
    shared = f"over {learner.context_parallel} ranks" if learner.context_parallel > 1 else "on one rank"
    yield f"longest row (prompt and response) that fits {shared}, in tokens: {told}"
    if learner.context_parallel == 1:
        yield "learner.context_parallel lets several ranks share longer rows"
