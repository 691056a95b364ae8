"""An engine where it lives: the far end of a pool. One call is one turn, and everything travels with it."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from dapo.types.batch import IdArray, Key, Metrics, Response, SampleRequest, TensorSum, Ticket
from dapo.types.protocols import Engine
from dapo.types.sent import SentByValue


@dataclass(frozen=True, slots=True)
class HostFacts:
    """Facts by which a pool decides what to give an engine."""

    capacity: int
    clock: int
    process: int
    machine: str
    ready: float = 0.0  # when it could first be asked, since 1970


@dataclass(frozen=True, slots=True)
class TurnResult(SentByValue):
    """Results of one turn."""

    events: list[Response]  # ticks are the engine's own
    clock: int  # the engine's, at the end of the turn
    stats: Metrics  # of the engine, since its construction
    seconds: float  # that the engine worked


class EngineHost:
    """Asked by a pool, through a transport.

    Args:
        make: called here, with ``args``; gives the engine, of which the host is the only user.
        seconds: an engine that decodes by itself (a server's client) is waited for so long in a turn, or until a
            response ends. None: a turn is a number of decode steps, which the engine makes when it is polled.
        decode: token ids of many responses -> their texts, which then travel with them. None: the driver decodes.
    """

    def __init__(
        self,
        make: Callable[..., Engine],
        *args: Any,
        seconds: float | None = None,
        decode: Callable[[Sequence[IdArray]], list[str]] | None = None,
    ) -> None:
        self._engine = make(*args)
        self._seconds, self._decode = seconds, decode
        self._unfinished: dict[Key, SampleRequest] = {}
        self._ready = time.time()

    def describe(self) -> HostFacts:
        """Return the facts of this engine."""
        return HostFacts(self._engine.capacity, self._engine.clock, os.getpid(), socket.gethostname(), self._ready)

    def turn(self, requests: Sequence[SampleRequest], steps: int, dropped: Sequence[Key] = ()) -> TurnResult:
        """Take ``requests``, decode for about ``steps`` steps while anything is unfinished, give what ended.

        The kept slots of ``dropped`` are let go before.
        """
        began, engine = time.perf_counter(), self._engine
        if dropped:
            engine.abort(dropped)
        engine.submit(requests)
        self._unfinished.update((request.key, request) for request in requests)
        until, events = engine.clock + steps, list[Response]()
        while self._unfinished:
            found = engine.poll(self._seconds or 0.0)
            events += self._taken(found)
            if engine.clock >= until or self._seconds is not None:
                break
        return self._answer(events, began)

    def abort(self, keys: Sequence[Key]) -> TurnResult:
        """Abort the named responses and return them as far as they got."""
        began = time.perf_counter()
        events = self._taken(self._engine.abort(keys))
        for key in keys:
            self._unfinished.pop(key, None)
        return self._answer(events, began)

    def replay(self, journal: Sequence[tuple[Literal["turn", "abort"], tuple[Any, ...]]]) -> TurnResult:
        """Repeat turns and aborts, to reach the state of another engine. The caller already has what ended in them."""
        began = time.perf_counter()
        for method, args in journal:
            getattr(self, method)(*args)
        return self._answer([], began)

    def load(self, ticket: Ticket, in_flight: Literal["abort", "keep"]) -> TurnResult:
        """Let the engine read new weights. Its counters may have moved: responses under way are computed anew."""
        began = time.perf_counter()
        self._engine.load(ticket, in_flight)
        return self._answer([], began)

    def checksums(self) -> Mapping[str, TensorSum] | None:
        """Return checksums of the weights that the engine computes with."""
        return self._engine.checksums()

    def sleep(self) -> None:
        """Nothing comes before the next ``load``."""
        self._engine.sleep()

    def close(self) -> None:
        """Let the engine hand back what it holds."""
        self._unfinished.clear()
        self._engine.close()

    def _taken(self, events: Sequence[Response]) -> list[Response]:
        """Forget requests that came back; return their events as they travel, with ids of 32 bits and with texts."""
        asked = [self._unfinished.pop(event.key, None) for event in events]
        texts = [""] * len(events)
        if self._decode is not None:
            ids = {
                n: _text_ids(request, event)
                for n, (request, event) in enumerate(zip(asked, events, strict=True))
                if request is not None and event.finish is not None
            }
            for n, text in zip(ids, self._decode(list(ids.values())), strict=True):
                texts[n] = text
        return [
            replace(event, token_ids=event.token_ids.astype(np.int32), text=text)
            for event, text in zip(events, texts, strict=True)
        ]

    def _answer(self, events: list[Response], began: float) -> TurnResult:
        return TurnResult(events, self._engine.clock, self._engine.stats(), time.perf_counter() - began)


def _text_ids(request: SampleRequest, event: Response) -> IdArray:
    """Return the tokens of a whole response that are its text."""
    ids: IdArray = event.token_ids
    if request.prefix is not None:
        ids = np.concatenate([request.prefix.token_ids, ids])
    return request.text_ids(ids, event.finish)
