"""What a simulated fleet samples: lengths of responses, verdicts with a latency, prompts. All functions of a seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from simulated_engine import UNIT, Lengths, SimulatedEngine

from dapo.types.batch import Completion, IntArray, Key, Prompt, Score


def log_normal_lengths(
    seed: int, group_size: int, *, mean: float = 3500.0, spread: float = 0.8, cap: int = 20480
) -> Lengths:
    """Long-tailed lengths: log-normal over prompts and over the responses of a prompt, in equal parts of the variance.

    Args:
        seed: of all of them.
        group_size: responses per group.
        mean: tokens, before the cap.
        spread: standard deviation of the logarithm.
        cap: tokens; longer responses end there.
    """
    part = spread / math.sqrt(2.0)

    def lengths(group: int) -> IntArray:
        random = np.random.Generator(np.random.Philox(key=[seed, group]))
        normal = random.standard_normal(group_size + 1)
        tokens = mean * np.exp(part * (normal[0] + normal[1:]) - spread**2 / 2)
        return _whole_units(tokens, cap)

    return _remembered(lengths)


def resampled_lengths(seed: int, group_size: int, histogram: Sequence[int], *, mean: float, cap: int) -> Lengths:
    """Lengths drawn from a real run: ``histogram[n - 1]`` responses had n tokens; scaled to ``mean`` tokens."""
    counts = np.asarray(histogram, dtype=np.float64)
    scale = mean / ((np.arange(1, len(counts) + 1) * counts).sum() / counts.sum())
    edges = np.cumsum(counts) / counts.sum()

    def lengths(group: int) -> IntArray:
        random = np.random.Generator(np.random.Philox(key=[seed, group]))
        bins = np.searchsorted(edges, random.random(group_size), side="right")
        tokens = scale * (bins + 1 + random.uniform(-0.5, 0.5, group_size))  # anywhere within one original token
        return _whole_units(tokens, cap)

    return _remembered(lengths)


def _whole_units(tokens: NDArray[np.float64], cap: int) -> IntArray:
    return np.clip(np.ceil(tokens / UNIT), 1, cap // UNIT).astype(np.int64)


def _remembered(lengths: Lengths) -> Lengths:
    table: dict[int, IntArray] = {}

    def look_up(group: int) -> IntArray:
        if group not in table:
            table[group] = lengths(group)
        return table[group]

    return look_up


def group_accuracy(seed: int, acceptance: float, group: int) -> tuple[float, float]:
    """Accuracy of the group's even and odd samples: they differ with probability ``acceptance``, so it is kept."""
    chance = np.random.Generator(np.random.Philox(key=[seed + 1, group])).random()
    if chance < acceptance:
        return 0.0, 1.0
    value = float(chance < (1.0 + acceptance) / 2.0)
    return value, value


class SimulatedScorer:
    """Every score is there ``latency`` ticks after its response ended. Implements ``Scorer``."""

    def __init__(self, engine: SimulatedEngine, seed: int, acceptance: float, latency: int) -> None:
        self.engine, self.latency = engine, latency
        self._seed, self._acceptance = seed, acceptance
        self._pending: list[tuple[int, Key]] = []  # in order of submission, so of the tick at which they are there
        self._values: dict[int, tuple[float, float]] = {}  # group -> accuracy of even and of odd samples

    def submit(self, key: Key, prompt: Prompt, completion: Completion) -> None:
        self._pending.append((self.engine.clock + self.latency, key))

    def poll(self, timeout: float | None = None) -> list[tuple[Key, Score]]:
        if timeout is None and self._pending and self._pending[0][0] > self.engine.clock:
            self.engine.wait(self._pending[0][0])
        there = 0
        while there < len(self._pending) and self._pending[there][0] <= self.engine.clock:
            there += 1
        out = [(key, self._score(key)) for _, key in self._pending[:there]]
        del self._pending[:there]
        return out

    def _score(self, key: Key) -> Score:
        if key[-2] not in self._values:
            self._values[key[-2]] = group_accuracy(self._seed, self._acceptance, key[-2])
        value = self._values[key[-2]][key[-1] % 2]
        return Score({"accuracy": value}, value)

    def close(self) -> None:
        pass


class NumberedPrompts:
    """Prompt 0, 1, 2, ... without end. Implements ``PromptStream``."""

    size = 10**9

    def __init__(self) -> None:
        self.position = 0
        self._ids = np.zeros(1, np.int64)

    def take(self, n: int) -> list[Prompt]:
        first, self.position = self.position, self.position + n
        return [Prompt(f"{i:016x}", "", self._ids, "", "", "simulated") for i in range(first, first + n)]

    def state(self) -> dict[str, Any]:
        return {"position": self.position}

    def load(self, state: dict[str, Any]) -> None:
        self.position = state["position"]
