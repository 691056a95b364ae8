"""Who is waiting, who is decoding, and what each has produced. No model and no cache here, only bookkeeping."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapo.contracts.enums import FinishReason
from dapo.contracts.types import IntArray, Key, SampleEvent, SampleRequest
from dapo.errors import EngineError
from dapo.rollout.sampling import Law, law_of, stream_keys, uniforms


def sequence_of(request: SampleRequest) -> IntArray:
    """What stands before the next token: the prompt and the prefix."""
    prompt = np.ascontiguousarray(request.prompt_ids, dtype=np.int64)
    if request.prefix is None or not len(request.prefix):
        return prompt
    return np.concatenate([prompt, np.asarray(request.prefix.token_ids, dtype=np.int64)])


class Gate:
    """Refuses requests that cannot be decoded."""

    def __init__(self, vocabulary: int, max_positions: int | None) -> None:
        self.vocabulary, self._max_positions = vocabulary, max_positions
        self._seen: IntArray | None = None  # prompt checked last; a group's requests share the array

    @classmethod
    def of(cls, model: Any, exact_positions: int | None = None) -> Gate:
        """The gate of a Hugging Face model: its vocabulary and positions (of which only so many may be exact)."""
        limits = (getattr(model.config, "max_position_embeddings", None), exact_positions)
        positions = min((limit for limit in limits if limit is not None), default=None)
        return cls(model.get_input_embeddings().weight.shape[0], positions)

    def check(self, request: SampleRequest) -> None:
        """Look at prompt, prefix and length.

        Raises:
            EngineError: An empty prompt, a token outside the vocabulary, or a response that would not fit the model.
        """
        longest = len(request.prompt_ids) + request.sampling.max_tokens
        if self._max_positions is not None and longest > self._max_positions:
            raise EngineError(
                f"request {request.key}: prompt of {len(request.prompt_ids)} tokens + {request.sampling.max_tokens} "
                f"response tokens = {longest}, but the model knows {self._max_positions} positions; lower "
                "rollout.max_response_tokens or data.max_prompt_tokens"
            )
        if request.prompt_ids is self._seen and request.prefix is None:
            return
        if len(request.prompt_ids) == 0:
            raise EngineError(f"request {request.key} has an empty prompt; expected at least one token (a start token)")
        tokens = sequence_of(request)
        outside = tokens[(tokens < 0) | (tokens >= self.vocabulary)]
        if len(outside):
            raise EngineError(
                f"request {request.key} holds token {outside[0]}; the model's vocabulary is 0..{self.vocabulary - 1}: "
                "use the tokenizer that belongs to the model"
            )
        self._seen = request.prompt_ids


def ended_before(request: SampleRequest, tick: int) -> SampleEvent | None:
    """The event of a request whose prefix is whole already; None when there is a token left to make."""
    prefix, made = request.prefix, 0
    if prefix is not None and (made := len(prefix)) and int(prefix.token_ids[-1]) in request.sampling.stop_token_ids:
        return empty_event(request.key, FinishReason.STOP, tick)
    if made >= request.sampling.max_tokens:
        return empty_event(request.key, FinishReason.LENGTH, tick)
    return None


def empty_event(key: Key, finish: FinishReason, tick: int) -> SampleEvent:
    """A response that ended without a new token."""
    none = np.empty(0)
    return SampleEvent(
        key, none.astype(np.int64), none.astype(np.float32), none.astype(np.int32), finish=finish, tick=tick
    )


class Queue:
    """Requests in order of (priority, arrival)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, SampleRequest]] = []
        self._arrivals = 0  # number of the next one behind
        self._returns = 0  # number of the last one in front: negative, falling

    def __len__(self) -> int:
        return len(self._heap)

    def push(self, request: SampleRequest) -> None:
        heapq.heappush(self._heap, (request.priority, self._arrivals, request))
        self._arrivals += 1

    def push_front(self, requests: Sequence[SampleRequest]) -> None:
        """Before all that wait with the same priority, in their own order."""
        for request in reversed(requests):
            self._returns -= 1
            heapq.heappush(self._heap, (request.priority, self._returns, request))

    def pop(self) -> SampleRequest:
        return heapq.heappop(self._heap)[2]

    def take_out(self, keys: set[Key]) -> list[SampleRequest]:
        """Remove and return the requests named by ``keys``."""
        taken = [entry[2] for entry in self._heap if entry[2].key in keys]
        self._heap = [entry for entry in self._heap if entry[2].key not in keys]
        heapq.heapify(self._heap)
        return taken

    def keys(self) -> list[Key]:
        return [entry[2].key for entry in self._heap]


@dataclass(slots=True)
class _Seat:
    request: SampleRequest
    versions: list[tuple[int, int]] = field(default_factory=list)  # (from which made token on, version)


class Roster:
    """The responses that decode now. A response keeps its seat, a number below ``seats``, until it ends."""

    def __init__(self, seats: int, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._free = list(range(seats))  # a heap: the lowest seat first
        self._occupied: dict[int, _Seat] = {}
        self.last = np.zeros(seats, dtype=np.int64)  # the newest token
        self.made = np.zeros(seats, dtype=np.int64)  # tokens made since submission
        self._first = np.zeros(seats, dtype=np.int64)  # length of the prefix: index t of the first token made
        self._left = np.zeros(seats, dtype=np.int64)  # tokens that may be made
        self._stream = np.zeros(seats, dtype=np.uint64)
        self._tokens = np.zeros((seats, 64), dtype=np.int64)
        self._logprobs = np.zeros((seats, 64), dtype=np.float32)
        self._law = np.zeros(seats, dtype=np.int64)  # index into ``_laws``
        self._laws: dict[Law, int] = {}
        self._users: Counter[int] = Counter()  # live responses by index of their law
        self._stop_set = np.zeros(seats, dtype=np.int64)  # row of ``_stops``
        self._stop_sets: dict[tuple[int, ...], int] = {}
        self._stops = np.zeros((0, vocabulary), dtype=np.bool_)  # [stop sets, vocabulary]

    def __len__(self) -> int:
        return len(self._occupied)

    @property
    def free(self) -> int:
        return len(self._free)

    def seats_of(self, keys: set[Key]) -> IntArray:
        """Seats of the named responses, ordered by key."""
        found = sorted(
            (seat.request.key, number) for number, seat in self._occupied.items() if seat.request.key in keys
        )
        return np.array([number for _, number in found], dtype=np.int64)

    def seat(self, requests: Sequence[SampleRequest], version: int) -> IntArray:
        """Give each request a seat; returns the seats."""
        seats = np.array([heapq.heappop(self._free) for _ in requests], dtype=np.int64)
        for number, request in zip(seats.tolist(), requests, strict=True):
            first = 0 if request.prefix is None else len(request.prefix)
            self._occupied[number] = _Seat(request, [(0, version)])
            self._first[number], self._left[number] = first, request.sampling.max_tokens - first
            law = law_of(request.sampling)
            self._law[number] = index = self._laws.setdefault(law, len(self._laws))
            self._users[index] += 1
            self._stop_set[number] = self._index_of_stops(request.sampling.stop_token_ids)
        self.made[seats] = 0
        self._stream[seats] = stream_keys([request.seed for request in requests])
        self._reserve(int(self._left[seats].max()))
        return seats

    def _reserve(self, tokens: int) -> None:
        if tokens > (have := self._tokens.shape[1]):
            more = ((0, 0), (0, max(tokens, 2 * have) - have))
            self._tokens, self._logprobs = np.pad(self._tokens, more), np.pad(self._logprobs, more)

    def _index_of_stops(self, tokens: tuple[int, ...]) -> int:
        index = self._stop_sets.setdefault(tokens, len(self._stop_sets))
        if index == len(self._stops):
            stops = np.zeros((1, self._vocabulary), dtype=np.bool_)
            stops[0, [token for token in tokens if 0 <= token < self._vocabulary]] = True
            self._stops = np.concatenate([self._stops, stops])
        return index

    def laws(self, seats: IntArray) -> list[tuple[Law, IntArray | None]]:
        """The laws in use with the rows of ``seats`` that follow them; None: all rows."""
        in_use = [law for law, index in self._laws.items() if self._users[index]]
        if len(in_use) == 1:
            return [(in_use[0], None)]
        rows = [(law, np.flatnonzero(self._law[seats] == self._laws[law])) for law in in_use]
        return [(law, own) for law, own in rows if len(own)]

    def uniforms(self, seats: IntArray) -> NDArray[np.float64]:
        """The uniform number behind the next token of each seat."""
        return uniforms(self._stream[seats], self._first[seats] + self.made[seats])

    def record(self, seats: IntArray, tokens: IntArray, logprobs: NDArray[np.float32]) -> tuple[IntArray, IntArray]:
        """Add one token to each seat.

        Returns:
            Seats that ended (stop token or limit), and seats whose log-probability is not finite; the latter keep
            the token out.
        """
        made = self.made[seats]
        self._tokens[seats, made], self._logprobs[seats, made], self.last[seats] = tokens, logprobs, tokens
        finite = np.isfinite(logprobs)
        self.made[seats] = made + finite
        over = self._stops[self._stop_set[seats], tokens] | (made + 1 >= self._left[seats])
        if finite.all():
            return seats[over], seats[:0]
        return seats[over & finite], seats[~finite]

    def new_version(self, version: int) -> None:
        """Tokens from now on are made by ``version`` of the weights."""
        for number, seat in self._occupied.items():
            seat.versions.append((int(self.made[number]), version))

    def release(
        self, seats: Iterable[int], tick: int, finish: FinishReason | None = None, reason: str | None = None
    ) -> list[SampleEvent]:
        """End responses and free their seats. ``finish`` None: stop or length, by the last token."""
        events = []
        for number in map(int, seats):
            seat, made = self._occupied.pop(number), int(self.made[number])
            self._users[int(self._law[number])] -= 1
            heapq.heappush(self._free, number)
            how = finish
            if how is None:
                how = (
                    FinishReason.STOP if self._stops[self._stop_set[number], self.last[number]] else FinishReason.LENGTH
                )
            versions = np.zeros(made, dtype=np.int32)
            for start, version in seat.versions:
                versions[start:] = version
            events.append(
                SampleEvent(
                    key=seat.request.key,
                    token_ids=self._tokens[number, :made].copy(),
                    logprobs=self._logprobs[number, :made].copy(),
                    versions=versions,
                    finish=how,
                    tick=tick,
                    reason=reason,
                )
            )
        return events
