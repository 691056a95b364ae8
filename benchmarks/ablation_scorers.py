"""Scorers of the ablation's tasks: what a recipe's rewards cannot record or draw."""

from __future__ import annotations

import re
from typing import Any

from dapo.types.batch import Completion, Key, Prompt, Score
from dapo.types.seeds import derive_seed

LAST_TOTAL = re.compile(r"=\s*(-?\d+)\s*$")
COIN = 33  # apart from the domains of dapo.types.seeds


class Worked:
    """Rewards the right total, and records which responses work step by step (they begin with a term)."""

    quick = True

    def __init__(self, context: Any) -> None:
        self.seed: int = context.recipe.run.seed
        self.done: list[tuple[Key, Score]] = []

    def submit(self, key: Key, prompt: Prompt, completion: Completion) -> None:
        found = LAST_TOTAL.search(completion.text)
        answer = None if found is None else found[1]
        worked = completion.text.lstrip().startswith(("+", "-"))
        values = {"accuracy": float(answer == prompt.answer), "worked": float(worked)}
        self.done.append((key, Score(values, reward=self.reward(key, values), answer=answer)))

    def reward(self, key: Key, values: dict[str, float]) -> float:
        return values["accuracy"]

    def poll(self, timeout: float | None = None) -> list[tuple[Key, Score]]:
        done, self.done = self.done, []
        return sorted(done, key=lambda pair: pair[0])

    def close(self) -> None:
        self.done = []


class Coin(Worked):
    """Rewards by a coin that depends on the run's seed, the group and the sample, never on the response."""

    def reward(self, key: Key, values: dict[str, float]) -> float:
        return float(derive_seed(COIN, self.seed, key.group, key.sample) % 2)
