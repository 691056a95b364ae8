"""A scripted engine, scorer and stream: no model, prepared lengths and scores, any order."""

from __future__ import annotations

from functools import cache, partial

import numpy as np

from dapo.algorithms.advantages import group_advantages
from dapo.algorithms.algorithm import Algorithm
from dapo.algorithms.keep import judge_group
from dapo.algorithms.reduction import loss_weights
from dapo.config.schema import DynamicSampling
from dapo.engines.inbox import check_idle, check_requests
from dapo.engines.requests import Gate, ended_before, sequence_of
from dapo.loop.sampling.collector import BatchShape, CollectorTiming, StreamingCollector
from dapo.loop.sampling.rollouts import Rollouts
from dapo.types.batch import Prompt, Response, SamplingParams, Score, Ticket, content_id
from dapo.types.enums import FinishReason
from dapo.types.seeds import derive_seed


def ticket(version):
    """To weights that nobody looks at."""
    return Ticket(version, "shared", "", ())


class ScriptedEngine:
    """Response i of group g has ``length(g, i)`` tokens; token t is ``g * 1000 + i * 100 + t``.

    A response stands still for ``delay(g, i)`` steps each time it is seated: latency that is not length.
    """

    shares_weights = True

    def __init__(self, length, capacity=8, version=0, fail=lambda g, i: False, delay=lambda g, i: 0):
        self.length = cache(length)  # asked for with every token
        self.capacity, self.version, self.fail = capacity, version, fail
        self.delay, self.waits = delay, {}
        self.clock = 0
        self.queue, self.active, self.made_with = [], {}, {}
        self.submitted, self.requests = [], []
        self.generated = self.prefilled = self.slot_steps = self.busy = 0
        self.gate, self.present, self.ended = Gate(10**9, None), set(), []

    def submit(self, requests):
        check_requests(requests, self.gate, self.present)
        self.present |= {r.key for r in requests}
        self.submitted += [r.key for r in requests]
        self.requests += requests
        for r in requests:
            done = ended_before(r, self.clock)
            self.ended += [] if done is None else [done]
            self.queue += [[r, []]] if done is None else []
        self.queue.sort(key=lambda entry: entry[0].priority)

    def _fill(self):
        while self.queue and len(self.active) < self.capacity:
            request, tokens = self.queue.pop(0)
            self.active[request.key] = (request, tokens)
            self.prefilled += len(sequence_of(request))
            self.waits[request.key] = self.delay(*request.key[-2:])

    def _event(self, request, tokens, finish):
        n = len(tokens)
        return Response(
            key=request.key,
            token_ids=np.array(tokens, dtype=np.int64),
            logprobs=np.full(n, -1.0, dtype=np.float32),
            versions=np.array(self.made_with.pop(request.key, []), dtype=np.int32),
            finish=finish,
            tick=self.clock,
            reason="scripted" if finish is FinishReason.FAILED else None,
        )

    def checksums(self):
        return None

    def sleep(self):
        assert not self.active
        assert not self.queue

    def poll(self, timeout=None):
        events, self.ended = self.ended, []
        stepped = False
        while not events:
            self._fill()
            if not self.active:
                return []
            if timeout is not None and stepped:
                return []
            stepped = True
            self.clock += 1
            self.slot_steps += self.capacity
            for key in sorted(self.active):
                request, tokens = self.active[key]
                if self.waits[key]:
                    self.waits[key] -= 1
                    continue
                done = len(request.prefix) if request.prefix else 0
                *_, g, i = key  # any lane
                tokens.append(g * 1000 + i * 100 + done + len(tokens))
                self.made_with.setdefault(key, []).append(self.version)
                self.generated += 1
                self.busy += 1
                made, limit = done + len(tokens), request.sampling.max_tokens
                if made >= min(limit, self.length(g, i)):
                    finish = FinishReason.STOP if made < limit else FinishReason.LENGTH
                    if self.fail(g, i):
                        finish = FinishReason.FAILED
                    events.append(self._event(request, tokens, finish))
                    del self.active[key]
        self.present -= {event.key for event in events}
        return sorted(events, key=lambda e: (e.tick, e.key))

    def abort(self, keys=None):
        everything = [*self.active.values(), *self.queue]
        named = set(self.present) if keys is None else set(keys)
        events = [event for event in self.ended if event.key in named]
        self.ended = [event for event in self.ended if event.key not in named]
        events += [self._event(r, tokens, None) for r, tokens in everything if r.key in named]
        self.active = {key: value for key, value in self.active.items() if key not in named}
        self.queue = [entry for entry in self.queue if entry[0].key not in named]
        self.present -= {event.key for event in events}
        return sorted(events, key=lambda e: e.key)

    def load(self, ticket, in_flight="abort"):
        check_idle(len(self.active) + len(self.queue), in_flight)
        self.version = ticket.version

    def stats(self):
        return {
            "decode_steps": float(self.clock),
            "generated_tokens": float(self.generated),
            "prefill_tokens": float(self.prefilled),
            "slot_steps": float(self.slot_steps),
            "busy_slot_steps": float(self.busy),
        }

    def close(self):
        pass


class ScriptedScorer:
    """Accuracy of response i of group g is ``accuracy(g, i)``; a string is the reason why it is unscored.

    Groups in ``slow`` are not ready until they leave it. ``held_out``: the same for the lane of evaluation.
    """

    def __init__(self, accuracy, held_out=None):
        self.held_out = held_out or accuracy
        self.accuracy, self.pending, self.keys, self.slow = accuracy, [], [], set()

    def submit(self, key, prompt, completion):
        self.keys.append(key)
        self.pending.append(key)

    def poll(self, timeout=None):
        out = []
        ready = [key for key in self.pending if key[-2] not in self.slow]
        for key in reversed(ready):  # late and out of order on purpose
            value = (self.held_out if key[0] == "evaluate" else self.accuracy)(*key[-2:])
            score = Score(reason=value) if isinstance(value, str) else Score({"accuracy": value}, value)
            out.append((key, score))
        self.pending = [key for key in self.pending if key[-2] in self.slow]
        return out

    def close(self):
        self.pending = []


class CountingStream:
    """Problem 0, 1, 2, ...; with ``distinct`` they start again after that many."""

    def __init__(self, end=None, distinct=None):
        self.position, self.end, self.distinct = 0, end, distinct

    @property
    def size(self):
        return self.distinct or self.end or 1000

    def take(self, n):
        out = []
        while len(out) < n and (self.end is None or self.position < self.end):
            text = f"problem {self.position % (self.distinct or 10**9)}"
            out.append(Prompt(content_id(text), text, np.array([1, 2]), text, "", "scripted"))
            self.position += 1
        return out

    def state(self):
        return {"position": self.position}

    def load(self, state):
        self.position = state["position"]


class Published(StreamingCollector):
    """As a trainer leaves the engine: with the weights of the step before."""

    def collect(self, step):
        self.engine.version = max(self.engine.version, step - 1)
        return super().collect(step)


def make_algorithm(kind=Algorithm, **changes):
    settings = {
        "judge": partial(judge_group, metric_is_accuracy=True),
        "shape": lambda rewards, lengths, truncated: (2 * rewards - 1, np.zeros(len(rewards))),
        "advantages": group_advantages,
        "loss_weights": partial(loss_weights, reduction="token_mean"),
    }
    return kind(**(settings | changes))


def make_collector(
    *,
    length,
    accuracy,
    prompts=4,
    group=2,
    capacity=8,
    end=None,
    distinct=None,
    lag=0,
    version=0,
    fail=lambda g, i: False,
    delay=lambda g, i: 0,
    watch=None,
    limit=1000,
    engine=None,
    algorithm=None,
    phases=None,
    held_out=None,
    overlaps=False,
    turn=None,
    **settings,
):
    kind = Published if engine is None else StreamingCollector
    engine = engine or ScriptedEngine(length, capacity, version, fail, delay)
    chosen = DynamicSampling(**settings)
    judge = partial(judge_group, metric_is_accuracy=True, correct_at=chosen.correct_at, band=chosen.band)
    decode = lambda ids: [" ".join(map(str, x)) for x in ids]  # noqa: E731
    return kind(
        rollouts=Rollouts(engine, ScriptedScorer(accuracy, held_out), decode),
        stream=CountingStream(end, distinct),
        algorithm=algorithm or make_algorithm(judge=judge),
        sampling=SamplingParams(max_tokens=limit),
        settings=chosen,
        shape=BatchShape(prompts, group),
        run_seed=1,
        timing=CollectorTiming(lag, overlaps, turn),
        watch=watch,
        phases=phases,
    )


def random_world(seed, *, mean_length=12, kept=0.5):
    """Lengths and accuracies as functions of (seed, group, sample): equal in every run that uses them."""

    def unit(*parts):
        return derive_seed(seed, *parts) / 2**63

    def length(g, i):
        return 1 + int(-mean_length * np.log(1 - unit(1, g, i)))

    def accuracy(g, i):
        u = unit(2, g)
        if u < kept:
            return float(i == 0) if i < 2 else float(unit(3, g, i) < 0.5)
        return float(u < (1 + kept) / 2)

    return length, accuracy
