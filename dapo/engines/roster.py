"""Bookkeeping of decoding responses and their tokens, without model and cache."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from dapo.engines.requests import sequence_of
from dapo.engines.sampling import SamplingSettings, settings_of
from dapo.engines.stops import StopStrings
from dapo.models.routing import EXTRA, Routes
from dapo.types.batch import IntArray, Key, Response, SampleRequest
from dapo.types.enums import FinishReason
from dapo.types.extra import Extra
from dapo.types.seeds import stream_keys, uniforms


@dataclass(slots=True)
class _Seat:
    request: SampleRequest
    versions: list[tuple[int, int]] = field(default_factory=list)  # (from which made token on, version)


class Roster:
    """Responses that decode now. Each keeps its number, below ``seats``, until it ends."""

    def __init__(self, seats: int, vocabulary: int, strings: StopStrings | None = None) -> None:
        self._vocabulary, self._strings = vocabulary, strings
        self._routes: dict[int, list[Routes]] = {}  # by seat, of its tokens in order, where an engine records them
        self._reading: dict[int, tuple[str, ...]] = {}  # live seats whose response ends with a stop string
        self._read: set[int] = set()  # of these, those that did
        self._free = list(range(seats))  # a heap: the lowest seat first
        self._occupied: dict[int, _Seat] = {}
        self.last = np.zeros(seats, dtype=np.int64)  # the newest token
        self.made = np.zeros(seats, dtype=np.int64)  # tokens made since submission
        self._first = np.zeros(seats, dtype=np.int64)  # length of the prefix: index t of the first token made
        self._left = np.zeros(seats, dtype=np.int64)  # tokens that may be made
        self._stream = np.zeros(seats, dtype=np.uint64)
        self._tokens = np.zeros((seats, 64), dtype=np.int64)
        self._logprobs = np.zeros((seats, 64), dtype=np.float32)
        self._setting = np.zeros(seats, dtype=np.int64)  # index into ``_settings``
        self._settings: dict[SamplingSettings, int] = {}
        self._users: Counter[int] = Counter()  # live responses by index of their setting
        self._stop_set = np.zeros(seats, dtype=np.int64)  # row of ``_stops``
        self._stop_sets: dict[tuple[int, ...], int] = {}
        self._stops = np.zeros((0, vocabulary), dtype=np.bool_)  # [stop sets, vocabulary]

    def __len__(self) -> int:
        return len(self._occupied)

    @property
    def free(self) -> int:
        return len(self._free)

    def seats_of(self, keys: set[Key]) -> IntArray:
        """Return the numbers of the named responses, ordered by key."""
        found = sorted(
            (seat.request.key, number) for number, seat in self._occupied.items() if seat.request.key in keys
        )
        return np.array([number for _, number in found], dtype=np.int64)

    def seat(self, requests: Sequence[SampleRequest], version: int) -> IntArray:
        """Give each request a number below ``seats``; returns the numbers."""
        numbers = [heapq.heappop(self._free) for _ in requests]
        seats = np.array(numbers, dtype=np.int64)
        for number, request in zip(numbers, requests, strict=True):
            self._occupied[number] = _Seat(request, [(0, version)])
            if request.sampling.stop:
                self._reading[number] = request.sampling.stop
        first = np.array([0 if request.prefix is None else len(request.prefix) for request in requests])
        own = [settings_of(request.sampling) for request in requests]
        indices = [self._settings.setdefault(settings, len(self._settings)) for settings in own]
        self._users.update(indices)
        self._setting[seats] = indices
        self._stop_set[seats] = [self._index_of_stops(request.sampling.stop_token_ids) for request in requests]
        self._first[seats] = first
        self._left[seats] = [request.sampling.max_tokens for request in requests] - first
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

    def settings(self, seats: IntArray) -> list[tuple[SamplingSettings, IntArray | None]]:
        """Return the settings in use with the rows of ``seats`` that follow them; None means all rows."""
        in_use = [setting for setting, index in self._settings.items() if self._users[index]]
        if len(in_use) == 1:
            return [(in_use[0], None)]
        rows = [(setting, np.flatnonzero(self._setting[seats] == self._settings[setting])) for setting in in_use]
        return [(setting, own) for setting, own in rows if len(own)]

    def uniforms(self, seats: IntArray) -> NDArray[np.float64]:
        """Return the uniform number that draws the next token of each of ``seats``."""
        return uniforms(self._stream[seats], self._first[seats] + self.made[seats])

    def record(self, seats: IntArray, tokens: IntArray, logprobs: NDArray[np.float32]) -> tuple[IntArray, IntArray]:
        """Add one token to each of ``seats``.

        Returns:
            Numbers that ended (stop token, stop string or limit), and those whose log-probability is not finite; the
            latter keep the token out.
        """
        made = self.made[seats]
        self._tokens[seats, made], self._logprobs[seats, made], self.last[seats] = tokens, logprobs, tokens
        finite = np.isfinite(logprobs)
        self.made[seats] = made + finite
        over = self._stops[self._stop_set[seats], tokens]
        if self._reading:
            over = over | self._said_stop(seats, tokens, over | ~finite)
        over = over | (made + 1 >= self._left[seats])
        if finite.all():
            return seats[over], seats[:0]
        return seats[over & finite], seats[~finite]

    def _said_stop(self, seats: IntArray, tokens: IntArray, others: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Which responses end with a stop string; ``others`` ended otherwise."""
        assert self._strings is not None  # ``Gate.check``
        said = np.zeros(len(seats), dtype=np.bool_)
        for row, (number, token) in enumerate(zip(seats.tolist(), tokens.tolist(), strict=True)):
            stops = self._reading.get(number)
            if stops is None or others[row] or not self._strings.may_end(token, stops):
                continue
            made = self._tokens[number, : self.made[number]]
            if self._strings.end(self._occupied[number].request, made, 1) is not None:
                said[row] = True
                self._read.add(number)
        return said

    def add_routes(self, seats: IntArray, routes: Sequence[Routes]) -> None:
        """Add the routes of its next tokens to each response, [tokens, routers, k]."""
        for number, own in zip(seats.tolist(), routes, strict=True):
            self._routes.setdefault(number, []).append(own)

    def _extra(self, number: int, request: SampleRequest, made: int) -> Extra:
        """Return the routes of a response that ends: of made tokens, and before them of the prompt if these are first.

        The newest token went through no router yet, and of a prefix other weights may have chosen.
        """
        if not (parts := self._routes.pop(number, None)) or not made:
            return {}
        prefix = 0 if request.prefix is None else len(request.prefix)
        start = len(request.prompt_ids) + prefix
        found = np.concatenate([*parts, np.zeros_like(parts[0][:1])])[: start + made]
        return {EXTRA: found[start:] if prefix else found}

    def sequence(self, number: int) -> IntArray:
        """Return prompt, prefix and the tokens made of one live response."""
        return np.concatenate([sequence_of(self._occupied[number].request), self._tokens[number, : self.made[number]]])

    def sequences(self) -> dict[int, IntArray]:
        """Return ``sequence`` of each live response."""
        return {number: self.sequence(number) for number in self._occupied}

    def to_keep(self, seats: IntArray) -> list[tuple[int, Key]]:
        """Return those of ``seats`` whose request asks to keep its slot, with its key."""
        asked = [(number, self._occupied[number].request) for number in seats.tolist()]
        return [(number, request.key) for number, request in asked if request.keep]

    def new_version(self, version: int) -> None:
        """Tokens from now on are made by ``version`` of the weights."""
        for number, seat in self._occupied.items():
            seat.versions.append((int(self.made[number]), version))

    def release(self, seats: IntArray, tick: int, *, ended: bool = True, failed: str | None = None) -> list[Response]:
        """Free the numbers of responses: ``ended`` says whether they do, ``failed`` why they cannot go on."""
        numbers = np.asarray(seats, dtype=np.int64)
        if not len(numbers):
            return []
        events = []
        stops = self._stops[self._stop_set[numbers], self.last[numbers]].tolist()
        made_by, indices = self.made[numbers].tolist(), self._setting[numbers].tolist()
        for number, made, index, stopped in zip(numbers.tolist(), made_by, indices, stops, strict=True):
            seat = self._occupied.pop(number)
            self._users[index] -= 1
            heapq.heappush(self._free, number)
            finish = FinishReason.STOP if stopped or number in self._read else FinishReason.LENGTH
            self._reading.pop(number, None)
            self._read.discard(number)
            versions = np.full(made, seat.versions[0][1], dtype=np.int32)
            for start, version in seat.versions[1:]:
                versions[start:] = version
            events.append(
                Response(
                    token_ids=self._tokens[number, :made].copy(),
                    logprobs=self._logprobs[number, :made].copy(),
                    versions=versions,
                    finish=FinishReason.FAILED if failed else finish if ended else None,
                    extra=self._extra(number, seat.request, made),
                    key=seat.request.key,
                    tick=tick,
                    reason=failed,
                )
            )
        return events
