"""An engine without a model whose responses can be recomputed, for pools; in processes too, where it loads no torch.

Token t of a request is ``token(seed, t)``, whatever the weights; a response ends at its limit, or with a stop token.
Its "weights" are the version that was loaded, which its checksums tell.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np

from dapo.engines.inbox import EngineInbox, check_idle
from dapo.engines.requests import Gate
from dapo.engines.stops import StopStrings
from dapo.types.batch import Response, TensorSum, Ticket
from dapo.types.enums import FinishReason

VOCABULARY = 40


class Numbers:
    """A tokenizer whose tokens are their numbers as words; 0 is special."""

    all_special_ids = (0,)

    @staticmethod
    def decode(token_ids, skip_special_tokens=True):
        return " ".join(f"w{number}" for number in token_ids if number or not skip_special_tokens)


GATE = Gate(VOCABULARY, 4096, StopStrings(Numbers))
WEIGHTS = ("embed.weight", "head.weight")


def token(seed: int, t: int) -> int:
    return 3 + (seed * 7919 + t * 104729 + seed * t) % (VOCABULARY - 3)


def ticket(version: int) -> Ticket:
    """To weights that are their version."""
    return Ticket(version, "shared", "", WEIGHTS)


def sums(version: int) -> dict[str, TensorSum]:
    return {name: TensorSum("float32", 1000 * version + n) for n, name in enumerate(WEIGHTS)}


class NumberEngine:
    """Keeps ``dapo.types.protocols.Engine``."""

    shares_weights = False

    def __init__(self, slots: int = 4, stale: tuple[str, ...] = ()) -> None:
        """``stale``: weights that stay those of version 0, as a forgotten tied head does."""
        self.capacity, self.stale = slots, stale
        self.version = self.clock = 0
        self.inbox, self.active = EngineInbox(GATE), {}  # key -> (request, tokens, versions)
        self.kept, self.behind = set(), set()  # keys whose slot waits, and those that went on behind theirs
        self.found = 0  # requests that found their slot
        self.counts = dict.fromkeys(("decode_steps", "generated_tokens", "prefill_tokens", "slot_steps"), 0)

    def submit(self, requests):
        self.inbox.accept(requests, self.clock)

    def poll(self, timeout=None):
        events = self.inbox.take_ended()
        while not events and (self.active or len(self.inbox.queue)):
            events = self._step()
            if timeout is not None:
                break
        return self.inbox.hand_out(events)

    def _step(self):
        while len(self.active) < self.capacity and len(self.inbox.queue):
            request = self.inbox.queue.pop()
            self.active[request.key] = (request, [], [])
            if request.key in self.kept:
                self.kept.remove(request.key)
                self.behind.add(request.key)
                self.found += 1
            self.counts["prefill_tokens"] += len(request.prompt_ids)
        self.clock += 1
        self.counts["decode_steps"] += 1
        self.counts["slot_steps"] += self.capacity
        events = []
        for key, (request, tokens, versions) in list(self.active.items()):
            made = len(tokens) + (len(request.prefix) if request.prefix else 0)
            tokens.append(token(request.seed, made))
            versions.append(self.version)
            self.counts["generated_tokens"] += 1
            if tokens[-1] in request.sampling.stop_token_ids or GATE.strings.end(request, tokens, 1):
                events.append(self._end(key, FinishReason.STOP))
            elif made + 1 >= request.sampling.max_tokens:
                events.append(self._end(key, FinishReason.LENGTH))
        return events

    def _end(self, key, finish):
        request, tokens, versions = self.active.pop(key)
        logprobs = -np.ones(len(tokens), dtype=np.float32)
        if key in self.behind:  # as rounding would: nothing that matters, and something that can be seen
            self.behind.remove(key)
            logprobs -= 1e-6
        if request.keep and finish is not None:
            self.kept.add(key)
        arrays = np.array(tokens, dtype=np.int64), logprobs, np.array(versions, dtype=np.int32)
        return Response(*arrays, finish, key=key, tick=self.clock)

    def abort(self, keys=None):
        named = self.inbox.names(keys)
        self.kept -= self.kept if keys is None else named
        events, _ = self.inbox.take_back(named, self.clock)
        events += [self._end(key, None) for key in list(self.active) if key in named]
        return sorted(self.inbox.hand_out(events), key=lambda event: event.key)

    def load(self, ticket, in_flight="abort"):
        check_idle(self.inbox.unfinished, in_flight)
        self.version = ticket.version
        self.kept.clear()

    def checksums(self):
        return {name: sums(0 if name in self.stale else self.version)[name] for name in WEIGHTS}

    def sleep(self):
        assert not self.inbox.unfinished
        self.kept.clear()

    def stats(self):
        made = self.counts["generated_tokens"]
        return {name: float(value) for name, value in self.counts.items()} | {"busy_slot_steps": float(made)}

    def close(self):
        self.abort()


class MortalEngine(NumberEngine):
    """Kills its process at a decode step, where a file says so: once."""

    def __init__(self, slots: int, order: str, how: int = signal.SIGKILL) -> None:
        super().__init__(slots)
        self.order, self.how = order, how

    def _step(self):
        events = super()._step()
        try:
            at = int(Path(self.order).read_text())
        except (OSError, ValueError):
            return events
        if self.clock >= at:
            os.unlink(self.order)
            os.kill(os.getpid(), self.how)
        return events
