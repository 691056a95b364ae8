"""A request before an engine has it: what stands before its next token, whether it can be made, who goes first.

No torch: code that only hands requests on needs no more.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any

import numpy as np

from dapo.engines.stops import StopStrings
from dapo.errors import EngineError
from dapo.types.batch import IntArray, Key, Response, SampleRequest
from dapo.types.enums import FinishReason


def sequence_of(request: SampleRequest) -> IntArray:
    """Return the tokens before the next one: the prompt and the prefix."""
    prompt = np.ascontiguousarray(request.prompt_ids, dtype=np.int64)
    if request.prefix is None or not len(request.prefix):
        return prompt
    return np.concatenate([prompt, np.asarray(request.prefix.token_ids, dtype=np.int64)])


def token_count(sequence: bytes) -> int:
    """Tokens of a ``sequence_of`` that was made bytes."""
    return len(sequence) // np.dtype(np.int64).itemsize


class Gate:
    """Refuses requests that cannot be decoded.

    Args:
        vocabulary: rows of the model's embedding.
        max_positions: that the model knows; None: no limit.
        strings: finds stop strings; None: no request may have any.
    """

    def __init__(self, vocabulary: int, max_positions: int | None, strings: StopStrings | None = None) -> None:
        self.vocabulary, self._max_positions, self.strings = vocabulary, max_positions, strings
        self._seen: IntArray | None = None  # prompt checked last; a group's requests share the array

    @classmethod
    def of(cls, model: Any, exact_positions: int | None = None, tokenizer: Any = None) -> Gate:
        """Make the gate of a Hugging Face model: its vocabulary and positions (of which only so many may be exact)."""
        limits = (getattr(model.config, "max_position_embeddings", None), exact_positions)
        positions = min((limit for limit in limits if limit is not None), default=None)
        strings = None if tokenizer is None else StopStrings(tokenizer)
        return cls(model.get_input_embeddings().weight.shape[0], positions, strings)

    def check(self, request: SampleRequest) -> None:
        """Look at prompt, prefix and length.

        Raises:
            EngineError: An empty prompt, a token outside the vocabulary, a response that would not fit the model, or
                stop strings where no tokenizer can read text.
        """
        if request.sampling.stop and self.strings is None:
            raise EngineError(
                f"request {request.key} has stop strings {list(request.sampling.stop)}, and this engine was made "
                "without a tokenizer, so it reads no text; name tokens in rollout.stop_token_ids"
            )
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


def ended_before(request: SampleRequest, tick: int, strings: StopStrings | None = None) -> Response | None:
    """Return the end of a request whose prefix is whole already; None when a token is left to make."""
    prefix, made, stop = request.prefix, 0, request.sampling.stop
    if prefix is not None and (made := len(prefix)) > prefix.turn_start:  # a reply ends no response
        if int(prefix.token_ids[-1]) in request.sampling.stop_token_ids:
            return Response.empty(request.key, FinishReason.STOP, tick=tick)
        if stop and strings is not None and strings.ends_with(prefix.token_ids[prefix.turn_start :], stop):
            return Response.empty(request.key, FinishReason.STOP, tick=tick)
    if made >= request.sampling.max_tokens:
        return Response.empty(request.key, FinishReason.LENGTH, tick=tick)
    return None


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
