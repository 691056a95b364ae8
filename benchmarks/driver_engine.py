"""The engine of ``driver_step.py``, in a file of its own: processes of engines import it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dapo.models.decode import DecodeSpec
from dapo.rollout.host import EngineHost
from dapo.types.batch import SampleEvent, SampleRequest, Ticket
from dapo.types.enums import FinishReason


class AtOnce:
    """An engine that answers in one step, with drawn tokens."""

    shares_weights, version = False, 0

    def __init__(self, vocabulary: int) -> None:
        self.capacity, self.clock, self.vocabulary = 10**6, 0, vocabulary
        self._asked: list[SampleRequest] = []

    def submit(self, requests: list[SampleRequest]) -> None:
        self._asked += requests

    def poll(self, timeout: float | None = None) -> list[SampleEvent]:
        self.clock += 1
        asked, self._asked = self._asked, []
        return [self._answer(request) for request in asked]

    def _answer(self, request: SampleRequest) -> SampleEvent:
        rng, count = np.random.default_rng(request.seed), request.sampling.max_tokens
        ids = rng.integers(2, self.vocabulary, count)
        made = ids, rng.random(count, np.float32), np.zeros(count, np.int32)
        return SampleEvent(request.key, *made, FinishReason.LENGTH, self.clock)

    def stats(self) -> dict[str, float]:
        return {}

    def load(self, ticket: Ticket, in_flight: str) -> None:
        """Nothing to load."""

    def abort(self, keys: Any = None) -> list[SampleEvent]:
        return []

    def close(self) -> None:
        """Nothing to close."""


def engine_host(vocabulary: int, decode: DecodeSpec | None) -> EngineHost:
    """Return the host of such an engine, as a pool's process makes it."""
    return EngineHost(AtOnce, vocabulary, decode=None if decode is None else decode.make())
