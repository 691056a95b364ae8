"""The embedded engine: slot-based continuous batching in the trainer's own process.

One step gives waiting requests free slots (each distinct prompt is computed once; every new response gets its
next token from it) and then makes one token for every live response. A finished response leaves at once.

Who owns what: the collector owns responses beyond their life here; :class:`Roster` owns what live responses have
produced; :class:`SlotCache` owns keys and values; a decoder owns what is derived from weights.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from torch import Tensor

from dapo.engines.cache import DecodeBatch, SlotCache
from dapo.engines.decoders import choose_decoder
from dapo.engines.fused import FusedDecoder
from dapo.engines.graphs import make_graphs
from dapo.engines.inbox import EngineInbox, check_idle, lost_to_the_machine
from dapo.engines.kept import Kept, KeptSlots, Past
from dapo.engines.pools import Prefilled
from dapo.engines.received_weights import take_weights, tensor_sums
from dapo.engines.requests import Gate, sequence_of, token_count
from dapo.engines.roster import Roster
from dapo.engines.sampling import Candidates, SamplingSettings, draw_mixed
from dapo.engines.slots import check_slots, choose_slots, kept_bytes
from dapo.engines.traffic import as_bytes, of_bytes, read, send
from dapo.errors import EngineError
from dapo.models.loaded import LoadedModel
from dapo.models.meter import give_back
from dapo.models.routing import RoutedPass, Routing
from dapo.types.batch import IntArray, Key, Metrics, Response, SampleRequest, TensorSum, Ticket

PREFILL_TOKENS = 4096  # padded tokens of one prefill pass

_T = TypeVar("_T")


class EmbeddedEngine:
    """An ``Engine`` (``dapo.types.protocols``) that decodes in this process.

    Args:
        loaded: The model. With ``shares_weights`` it is the learner's own, else a copy that belongs to the engine.
        slots: Responses that decode at once; None: chosen from the model's size.
        shares_weights: The learner changes this very model; ``load`` then only derives fused matrices again.
        longest: Tokens of the longest sequence (prompt and response) that will be asked for; None: not known.
        reserve: Bytes that the learner will hold on the device beside the cache.
        cuda_graphs: Decode steps as CUDA graphs (``dapo.engines.graphs``); None: where device and decoder can.
        recompute_cache: After a ``load`` that keeps live responses, compute their keys and values with the new weights.
            False: those of the old weights stay, and later log-probabilities are those of no version.
        record_routes: Give the experts of each token with a response (``dapo.models.routing``).
        keeps: Requests will ask to keep their slots; False: none is kept, and on a GPU no memory is planned for them.

    Raises:
        EngineError: The model cannot be decoded here (the message names ``rollout.engine: generate``), a CUDA device
            is too small for the slots, or graphs are wanted and cannot be.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        *,
        slots: int | None = None,
        shares_weights: bool = True,
        longest: int | None = None,
        reserve: int = 0,
        cuda_graphs: bool | None = None,
        recompute_cache: bool = True,
        record_routes: bool = False,
        keeps: bool = False,
    ) -> None:
        self._loaded = loaded
        self.shares_weights = shares_weights
        self.decoder = choose_decoder(loaded)
        shape = self.decoder.shape
        self.capacity = slots or choose_slots(loaded, shape, longest, reserve, keeps=keeps)
        check_slots(self.capacity, loaded, shape, longest, reserve, keeps=keeps)
        self.kept = KeptSlots(kept_bytes(self.capacity, loaded, shape, longest)) if keeps else None
        self._longest, self._recompute_cache = longest, recompute_cache
        self._routing = routing_of(loaded) if record_routes else None
        like = loaded.model.get_input_embeddings().weight
        self.graphs = make_graphs(cuda_graphs, self.decoder, self.capacity, like)
        if self.graphs is not None:
            assert isinstance(self.decoder, FusedDecoder)  # make_graphs
            self.decoder.use_graphs(self.graphs, longest)
        self.clock = 0
        self.version = 0
        self._gate = Gate.of(loaded.model, loaded.exact_positions, loaded.tokenizer)
        self._inbox = EngineInbox(self._gate)
        self._waiting: Counter[bytes] = Counter()  # queued requests by what stands before their next token
        self._prefilled: dict[bytes, tuple[Prefilled, int]] = {}  # of sequences that queued requests still need
        self._stats = Counter[str]()
        self._candidates = Candidates()
        self._clear()

    def _clear(self) -> None:
        self._roster = Roster(self.capacity, self._gate.vocabulary, self._gate.strings)
        if self.graphs is not None:
            self.graphs.forget()
        rounded = None if self.graphs is None else self.graphs.rows
        self._cache = SlotCache(self.decoder.shape, self.capacity, self._longest, rounded=rounded)
        self._batch: DecodeBatch | None = None  # None: rows have changed
        self._tokens: Tensor | None = None  # [rows] input of the next step, when the rows have not changed

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queue requests, in order of (priority, arrival).

        Raises:
            EngineError: A key that has not come back yet, or a request that does not fit the model or the longest
                sequence that this engine was made for; none is taken.
        """
        for request in requests:
            tokens = len(request.prompt_ids) + request.sampling.max_tokens
            if self._longest is not None and tokens > self._longest:
                raise EngineError(
                    f"request {request.key} may grow to {tokens} tokens; this engine was made for {self._longest}"
                )
        for request in self._inbox.accept(requests, self.clock):
            self._waiting[sequence_of(request).tobytes()] += 1

    @torch.inference_mode()
    def poll(self, timeout: float | None = None) -> list[Response]:
        """Decode until at least one response has ended, or nothing is left; with ``timeout`` a step at least, and no
        further one after so many seconds.

        Raises:
            EngineError: the machine has no memory left.
        """
        events = self._inbox.take_ended()
        until = math.inf if timeout is None else time.monotonic() + timeout
        while not events and (len(self._inbox.queue) or len(self._roster)):
            with lost_to_the_machine():
                events = self._step()
            if time.monotonic() >= until:
                break
        return self._inbox.hand_out(events)

    def abort(self, keys: Iterable[Key] | None = None) -> list[Response]:
        """Take back responses with the tokens made so far, and let kept slots go. Keys unknown here are ignored."""
        named = self._inbox.names(keys)
        if self.kept is not None:
            self.kept.drop(None if keys is None else named)
        events, waited = self._inbox.take_back(named, self.clock)
        for request in waited:
            self._no_longer_waiting(sequence_of(request).tobytes())
        events += self._release(self._roster.seats_of(named), ended=False)
        return sorted(self._inbox.hand_out(events), key=lambda event: event.key)

    @property
    def _model(self) -> list[Any]:
        """Return what keys and values have to fit."""
        shape = self._cache.shape
        return [shape.layers, shape.kv_heads, shape.head_dim, str(shape.dtype), self.version]

    @torch.inference_mode()
    def suspended(self) -> dict[str, Any] | None:
        """Return keys and values of what decodes, and who has which slot. None on a device other than a CPU, whose
        cache is too large to be written at a stop, and where slots are kept or routes recorded."""
        if self._cache.fixed or self.kept or self._routing is not None:
            return None
        passes: dict[int, tuple[Prefilled, list[tuple[bytes, int]]]] = {}
        for name, (prefilled, row) in self._prefilled.items():
            passes.setdefault(id(prefilled), (prefilled, []))[1].append((name, row))
        return {
            "capacity": self.capacity,
            "longest": self._longest,
            "model": self._model,
            "places": [[*key, number] for key, number in self._roster.places()],
            "cache": self._cache.state(),
            "prefilled": [
                {
                    "kv": as_bytes(prefilled.kv),
                    "logits": as_bytes(prefilled.logits),
                    "type": str(prefilled.logits.dtype).removeprefix("torch."),
                    "rows": [[np.frombuffer(name, dtype=np.int64), row] for name, row in rows],
                }
                for prefilled, rows in passes.values()
            ],
        }

    @torch.inference_mode()
    def resume(self, state: Mapping[str, Any]) -> bool:
        """Give the requests that decoded their slots again, with their keys and values."""
        places = {Key(*key): number for *key, number in state["places"]}
        made_for = state["capacity"], state.get("longest"), state["model"]  # other lengths have other pools
        same = made_for == (self.capacity, self._longest, self._model)
        if not same or self._cache.fixed or len(self._roster) or not places.keys() <= set(self._inbox.queue.keys()):
            return False
        self._clear()
        requests = sorted(self._inbox.queue.take_out(set(places)), key=lambda request: places[request.key])
        for request in requests:
            self._no_longer_waiting(sequence_of(request).tobytes())
        if requests:
            self._roster.seat_at(requests, sorted(places.values()), self.version)
        self._cache.load(state["cache"])
        for each in state["prefilled"]:
            logits = of_bytes(each["logits"], getattr(torch, each["type"]))
            prefilled = Prefilled(of_bytes(each["kv"], self._cache.shape.dtype), logits)
            self._prefilled |= {name.tobytes(): (prefilled, row) for name, row in each["rows"]}
        return True

    @torch.inference_mode()
    def load(self, ticket: Ticket, in_flight: Literal["abort", "keep"] = "abort") -> None:
        """Take new weights. With ``keep``, live responses go on: their keys and values are computed with the new
        weights, unless ``recompute_cache`` is False. Kept slots are let go.

        Raises:
            EngineError: ``abort`` while responses are unfinished, weights that do not lead here or do not fit, or
                the machine has no memory left.
        """
        check_idle(self._inbox.unfinished, in_flight)
        take_weights(self._loaded.model, ticket, self.shares_weights)
        self.decoder.refresh()
        self._prefilled.clear()
        if self.kept is not None:
            self.kept.drop()
        self._candidates.forget()
        self.version = ticket.version
        self._roster.new_version(ticket.version)
        if self._recompute_cache:
            with lost_to_the_machine():
                self._recompute()

    @torch.inference_mode()
    def checksums(self) -> Mapping[str, TensorSum] | None:
        """Return checksums of the model's own tensors; None if they are the learner's.

        Raises:
            EngineError: a fused matrix is not the one that the weights give.
        """
        stale = self.decoder.stale()
        if stale:
            raise EngineError(
                f"{len(stale)} tensors that the {self.decoder.name} decoder derives from the weights are old "
                f"({', '.join(stale[:3])}): it did not make them again after the last publish. This is a defect of the "
                "decoder; set rollout.engine: generate, which derives nothing"
            )
        return None if self.shares_weights else tensor_sums(self._loaded.model)

    def sleep(self) -> None:
        """Hand the cache's memory to the learner, on a GPU and unless responses live in it. A CPU's cache stays."""
        if self.kept is not None:
            self.kept.drop()
        if not self._cache.fixed:
            return
        self._batch = self._tokens = None
        if self.graphs is not None:
            self.graphs.forget()
        self._cache.give_back()
        give_back()

    def stats(self) -> Metrics:
        """Counters since construction."""
        names = ("decode_steps", "generated_tokens", "prefill_tokens", "slot_steps", "busy_slot_steps")
        return {name: float(self._stats[name]) for name in names}

    def close(self) -> None:
        """Drop everything unfinished and free the cache."""
        self.abort()
        self._clear()

    def _step(self) -> list[Response]:
        """Admit waiting requests, then make one token for every live response."""
        events = self._admit()
        if not len(self._roster):
            return events
        if self._batch is None or self._batch.full:
            self._batch = self._cache.layout()
            self._tokens = None
        batch = self._batch
        try:
            if self._tokens is None:
                self._tokens = send(self._roster.last[batch.seats], self._loaded.device)
            with self._following() as made:
                logits = self.decoder.decode(self._tokens, batch)
            if made is not None:
                self._roster.add_routes(batch.seats, list(made.routes()[:, None].cpu().numpy()))
            uniform = self._uniform(batch.seats)  # a card decodes meanwhile; the copy is queued, and nobody waits
        except BaseException:  # ``abort`` gives back what ended with its first token, too
            self._inbox.keep(events)
            raise
        self.clock += 1
        self._stats.update(decode_steps=1, slot_steps=self.capacity, busy_slot_steps=len(batch.seats))
        self._cache.advance(batch)
        return events + self._sample(batch.seats, logits, uniform)

    def _uniform(self, seats: IntArray) -> Tensor:
        """Return the uniform numbers that draw the next tokens of ``seats`` [n, 1]."""
        return send(self._roster.uniforms(seats), self._loaded.device)[:, None]

    def _sample(self, seats: IntArray, logits: Tensor, uniform: Tensor) -> list[Response]:
        """Draw and record the next token of ``seats`` from ``logits`` [n, vocabulary]; returns what ended."""
        tokens, logprobs = draw_mixed(logits, uniform, groups := self._settings(seats), self._candidates.count)
        found = read(tokens[:, 0], logprobs[:, 0])
        if any(setting.truncates for setting, _ in groups) and len(doubtful := np.flatnonzero(~np.isfinite(found[1]))):
            rows = send(doubtful, logits.device)
            again = draw_mixed(logits[rows], uniform[rows], self._settings(seats[doubtful]))
            tokens[rows], logprobs[rows] = again
            found = read(tokens[:, 0], logprobs[:, 0])
            if np.isfinite(found[1][doubtful]).any():  # else it is the model whose logits are not finite
                self._candidates.missed()
        self._tokens = tokens[:, 0]
        ended, failed = self._roster.record(seats, *found)
        self._stats["generated_tokens"] += len(seats) - len(failed)
        events = self._release(ended)
        if len(failed):
            events += self._release(failed, failed="the model's logits are not finite")
        return events

    def _settings(self, seats: IntArray) -> list[tuple[SamplingSettings, Tensor | None]]:
        """Return how the next tokens of ``seats`` are drawn, with the rows that each setting is for; None means all."""
        settings = self._roster.settings(seats)
        return [(setting, None if rows is None else send(rows, self._loaded.device)) for setting, rows in settings]

    def _release(self, seats: IntArray, *, ended: bool = True, failed: str | None = None) -> list[Response]:
        if not len(seats):
            return []
        self._batch = None
        if self.kept is not None and ended and not failed:
            for seat, key in self._roster.to_keep(seats):
                held = self._roster.sequence(seat)[: self._cache.length[seat]]
                self.kept.keep(key, held, self._cache.copy_of(seat))
        self._cache.remove(seats, wipe=failed is not None)
        return self._roster.release(seats, self.clock, ended=ended, failed=failed)

    def _admit(self) -> list[Response]:
        """Admit waiting requests and make their first token; returns those that ended with it."""
        free, waiting = self._roster.free, len(self._inbox.queue)
        # A prefill pass costs about as much as a decode step, so a few slots wait for company.
        if not waiting or free < min(waiting, max(1, self.capacity // 16)):
            return []
        requests = [self._inbox.queue.pop() for _ in range(min(free, waiting))]
        names = [sequence_of(request).tobytes() for request in requests]
        kept: dict[int, Kept] = {}
        if self.kept is not None:
            kept = {i: found for i, request in enumerate(requests) if (found := self.kept.take(request)) is not None}
        fresh = [i for i in range(len(names)) if i not in kept]
        try:
            self._prefill([name for name in dict.fromkeys(names[i] for i in fresh) if name not in self._prefilled])
            starts = list(self._continued(names, kept)) if kept else []
        except BaseException:  # out of memory, Ctrl-C: ``abort`` still gives everything back
            for request in requests:
                self._inbox.queue.push(request)
            raise
        source: dict[int, Prefilled] = {id(p): p for p, _ in (self._prefilled[names[i]] for i in fresh)}
        for prefilled in source.values():
            chosen = [i for i in fresh if self._prefilled[names[i]][0] is prefilled]
            starts.append((chosen, prefilled, [self._prefilled[names[i]][1] for i in chosen]))
        events: list[Response] = []
        for chosen, prefilled, rows in starts:
            lengths = np.array([token_count(names[i]) for i in chosen], dtype=np.int64)
            events += self._begin([requests[i] for i in chosen], lengths, prefilled, np.array(rows, dtype=np.int64))
        for name in names:
            self._no_longer_waiting(name)
        return events

    def _begin(
        self, requests: Sequence[SampleRequest], lengths: IntArray, prefilled: Prefilled, rows: IntArray
    ) -> list[Response]:
        """Begin requests of ``lengths`` tokens, which are ``rows`` of ``prefilled``, and make their first token."""
        seats = self._roster.seat(requests, self.version)
        self._cache.insert(seats, lengths, prefilled, rows)
        self._batch = None
        if (routes := prefilled.routes) is not None:
            self._roster.add_routes(seats, [routes[row, :n] for row, n in zip(rows, lengths, strict=True)])
        logits = prefilled.logits.index_select(0, send(rows, self._loaded.device))
        return self._sample(seats, logits, self._uniform(seats))

    def _following(self) -> AbstractContextManager[RoutedPass | None]:
        """Record what the routers choose, where that is asked for."""
        return nullcontext() if self._routing is None else self._routing.following()

    def _no_longer_waiting(self, name: bytes) -> None:
        self._waiting[name] -= 1
        if not self._waiting[name]:
            del self._waiting[name]
            self._prefilled.pop(name, None)

    def _prefill(self, names: list[bytes]) -> None:
        """Compute the named sequences (their int64 token ids as bytes), and keep them for queued requests."""
        for part, prefilled in self._computed(names):
            self._prefilled.update((name, (prefilled, row)) for row, name in enumerate(part))

    def _recompute(self) -> None:
        """Replace the keys and values of live responses by those of the present weights."""
        seats_of: dict[bytes, list[int]] = {}  # members of a group may have equal sequences
        for seat, sequence in self._roster.sequences().items():
            held = sequence[: self._cache.length[seat]]  # the newest token enters the cache with the next step
            seats_of.setdefault(held.tobytes(), []).append(seat)
        for part, prefilled in self._computed(list(seats_of)):
            seats = [seat for name in part for seat in seats_of[name]]
            rows = np.repeat(np.arange(len(part)), [len(seats_of[name]) for name in part])
            self._cache.write(np.array(seats, dtype=np.int64), prefilled, rows)

    def _computed(self, names: list[bytes]) -> Iterator[tuple[list[bytes], Prefilled]]:
        """Yield the named sequences in passes of similar length, each with its result: row i is the i-th name."""
        for part in _passes(sorted(names, key=len), token_count):
            yield part, self._pass([np.frombuffer(name, dtype=np.int64) for name in part])

    def _continued(
        self, names: list[bytes], kept: Mapping[int, Kept]
    ) -> Iterator[tuple[list[int], Prefilled, list[int]]]:
        """Compute, each once, the sequences of which a slot was kept, in passes of similar length.

        Yields:
            Of each pass the indices in ``names`` that it is for, its result, and their rows in that.
        """
        slots = {names[i]: slot for i, slot in kept.items()}  # members of a group may have equal sequences
        new = {name: token_count(name) - len(slot.tokens) for name, slot in slots.items()}
        for part in _passes(sorted(slots, key=lambda name: (new[name], len(name))), token_count):
            tokens = [np.frombuffer(name, dtype=np.int64)[-new[name] :] for name in part]
            chosen = [i for i in kept if names[i] in part]
            yield chosen, self._pass(tokens, [slots[name] for name in part]), [part.index(names[i]) for i in chosen]

    def _pass(self, part: Sequence[IntArray], kept: Sequence[Kept] = ()) -> Prefilled:
        """Compute sequences in one pass; with ``kept``, only the tokens that follow those slots."""
        lengths = [len(tokens) for tokens in part]
        padded = np.zeros((len(part), max(lengths)), dtype=np.int64)
        for row, tokens in zip(padded, part, strict=True):
            row[: len(tokens)] = tokens
        past = Past([slot.kv for slot in kept], max(lengths)) if kept else None
        with self._following() as made:
            prefilled = self.decoder.prefill(send(padded, self._loaded.device), lengths, past)
        if made is not None:
            routes = made.routes().cpu().numpy()
            routes = routes.reshape(*padded.shape, *routes.shape[1:])
            prefilled.routes = routes if past is None else past.behind(routes)
        # The newest token of a kept slot is one of the model's own, which is computed now for the first time.
        self._stats["prefill_tokens"] += sum(lengths) - sum(slot.whole for slot in kept)
        return prefilled


def _passes(ordered: Sequence[_T], tokens: Callable[[_T], int]) -> Iterator[list[_T]]:
    """Cut what is to be computed, in order of length, into passes of at most ``PREFILL_TOKENS`` padded tokens."""
    start = 0
    while start < len(ordered):
        stop, widest = start + 1, tokens(ordered[start])
        while stop < len(ordered):
            widest = max(widest, tokens(ordered[stop]))
            if (stop + 1 - start) * widest > PREFILL_TOKENS:
                break
            stop += 1
        yield list(ordered[start:stop])
        start = stop


def routing_of(loaded: LoadedModel) -> Routing:
    """Return the routers of a mixture of experts.

    Raises:
        EngineError: the model has none that can be recorded.
    """
    if loaded.routing is None:
        raise EngineError(
            f"learner.router_replay is 'sampler', and {loaded.name} ({type(loaded.model).__name__}) has no routers of "
            "experts that can be recorded; set learner.router_replay=off"
        )
    return loaded.routing
