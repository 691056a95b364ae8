"""Environments of ``combinations.py``; the workers of its runs import them."""

from __future__ import annotations

import json
import random
import time
import urllib.request
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


def asks(prompt: Any, *, base_url: str, api_key: str) -> float:
    """Ask the model twice, as an agent: on top of its first answer, or of a conversation that forgets it."""

    def answer(*said: dict[str, str]) -> dict[str, str]:
        body = json.dumps({"messages": said}).encode()
        asked = urllib.request.Request(f"{base_url}/chat/completions", body, {"Authorization": f"Bearer {api_key}"})
        with urllib.request.urlopen(asked) as reply:
            return json.loads(reply.read())["choices"][0]["message"]

    question = {"role": "user", "content": prompt.problem}
    first = answer(question)
    kept = [question, first] if len(first["content"]) % 2 else []
    last = answer(*kept, {"role": "user", "content": f"+{len(first['content']) % 9} ="})
    return float(last["content"].strip()[-1:] in tuple("02468"))
