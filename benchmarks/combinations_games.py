"""Environments of ``combinations.py``; the workers of its runs import them."""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from typing import Any

from dapo import Reply


def tries(prompt: Any, rng: random.Random) -> Generator[str, Any, dict[str, float]]:
    """Give two tries at the answer, with replies of several lengths; the last turn may be lucky."""
    turn = yield rng.choice(["", "?"])
    for _ in range(2):
        if turn.text.strip() == prompt.answer:
            return {"accuracy": 1.0}
        turn = yield rng.choice(["+1", "-1 =", "=3 +2"])
    return {"accuracy": float(turn.text.strip()[-1:] in tuple("02468"))}


class Counting:
    """Count turns and pay for odd lengths; a resume restores it from its state."""

    def start(self, prompt: Any, seed: int) -> None:
        self.turns = self.last = 0

    def step(self, turn: Any) -> Reply:
        self.turns, self.last = self.turns + 1, int(turn.token_ids[0]) if len(turn.token_ids) else 0
        return Reply(f"+{self.turns}", reward=0.1 * (len(turn.token_ids) % 2), facts={"asked": float(self.turns)})

    def end(self, why: str) -> dict[str, float]:
        return {"accuracy": float(self.last % 2)}

    def state(self) -> dict[str, int]:
        return {"turns": self.turns, "last": self.last}

    def restore(self, state: dict[str, int]) -> None:
        self.turns, self.last = state["turns"], state["last"]


def thinks(prompt: Any, rng: random.Random) -> Generator[str, Any, dict[str, float]]:
    """Take up to a third of a second for each of two replies."""
    turn = yield ""
    for _ in range(2):
        time.sleep(rng.random() / 3)
        turn = yield rng.choice(["+1", "-1 =", "?"])
    return {"accuracy": float(turn.text.strip()[-1:] in tuple("02468"))}
