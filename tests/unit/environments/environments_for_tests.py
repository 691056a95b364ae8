"""Environments of all kinds, sound and bad, for the tests of their processes."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Literal

from dapo import Reply


def guess(prompt, rng, most=6):
    turn = yield f"a number, please ({rng.randrange(100)})"
    for _ in range(most):
        if turn.text.strip() == prompt.answer:
            return {"accuracy": 1.0}
        turn = yield "no"
    return {"accuracy": 0.0}


async def slow_guess(prompt, rng):
    turn = yield "a number, please"
    await asyncio.sleep(0.01)
    yield {"accuracy": float(turn.text.strip() == prompt.answer)}


def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


async def later(a: float, unit: Literal["s", "h"] = "s") -> str:
    await asyncio.sleep(0)
    return f"{a:g} {unit}"


def breaks(path: str) -> str:
    raise OSError(f"cannot open {path}")


class Shop:
    """Keeps a stock, and lets the model buy."""

    tools = ("buy",)

    def __init__(self, stock: int = 3) -> None:
        self.stock = stock

    @classmethod
    def load(cls, args):
        cls.loaded = dict(args)

    def start(self, prompt, seed):
        return Reply(f"{self.stock} in stock")

    def buy(self, count: int) -> str:
        """Buy some."""
        if count > self.stock:
            raise ValueError("not so many")
        self.stock -= count
        return f"{self.stock} left"

    def step(self, turn):
        return Reply(done=True, scores={"accuracy": float(self.stock == 0)})

    def state(self):
        return self.stock

    def restore(self, state):
        self.stock = state


class Bad:
    """Does what its prompt says."""

    def start(self, prompt, seed):
        self.what = prompt.answer

    def step(self, turn):
        if self.what == "hang":
            time.sleep(600)
        if self.what == "exit":
            os._exit(3)
        if self.what == "sys.exit":
            raise SystemExit(1)
        if self.what == "raise":
            raise ValueError("no")
        if self.what == "fork":
            os.fork()
        if self.what == "daemon" and os.fork() == 0:
            os.setsid()
            time.sleep(600)
        if self.what == "huge":
            return Reply("x" * (50 << 20))
        if self.what == "memory":
            return Reply(str(len(bytearray(8 << 30))))
        if self.what == "write":
            for number in range(3, 1024):  # its connection has the number that its parent gave it
                try:
                    os.write(number, b"garbage" * 100)
                except OSError:
                    continue
        if self.what == "nonsense":
            return Reply("w", reward=object())
        return Reply(f"fine {turn.number}")

    def close(self):
        if self.what == "hang at the end":
            time.sleep(600)


class Sleepy:
    async def step(self, turn):
        await asyncio.sleep(600 if turn.text == "sleep" else 0.05)
        return Reply("awake")
