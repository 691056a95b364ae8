"""Ask the engine for responses and the verifiers for scores, for training, evaluation and the sync check alike.

Each of the three has a lane and gets the responses of its own lane only. What ended is kept until its lane asks for
it, so the responses of several lanes may be under way at once. A response comes whole: its tokens are joined to the
prefix that they continue, and its text is read (``Texts``).
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dapo.types.batch import (
    Completion,
    IntArray,
    Key,
    Lane,
    Partial,
    Prompt,
    SampleEvent,
    SampleRequest,
    Score,
)
from dapo.types.enums import FinishReason
from dapo.types.evidence import ENGINE
from dapo.types.protocols import Engine, Scorer, WorksAlone

Decode = Callable[[Sequence[IntArray]], list[str]]


@dataclass(frozen=True, slots=True)
class Texts:
    """Say how responses are read."""

    decode: Decode  # token ids of many responses -> their texts
    response_prefix: str = ""  # what each begins with, though none of its tokens is the response's
    first_stop: Callable[[IntArray, tuple[str, ...]], int | None] | None = None  # tokens up to a stop string
    keep_stop: bool = False  # the stop string stays in the text
    thinking: Thinking | None = None  # None: the answer may stand anywhere


@dataclass(frozen=True, slots=True)
class Thinking:
    """Find where the thinking of a response ends."""

    open: str
    close: str
    begun: Callable[[IntArray], bool]  # whether a prompt's tokens end with the opening tag
    first: Callable[[IntArray, tuple[str, ...]], int | None]  # tokens up to the first of some texts
    budget: int | None = None  # tokens of the response after which it is closed
    forced: IntArray | None = None  # the tokens that close it

    def answer(self, text: str, begun: bool) -> tuple[str, bool]:
        """Return what follows the thinking, and whether it was closed: "" and False where it was not.

        The last closing tag counts, with or without an opening one before it. Without any tag there was no thinking,
        and the whole text is the answer.

        Args:
            text: of the response.
            begun: the prompt ends with the opening tag.
        """
        _, tag, rest = text.rpartition(self.close)
        if self.open in rest or (begun and not tag):
            return "", False
        return rest, True

    def tokens(self, token_ids: IntArray, closings: int) -> int:
        """Count the tokens of a response up to its last closing tag, the ``closings``-th; all of them without one."""
        done = 0
        for _ in range(closings):
            count = self.first(token_ids[done:], (self.close,))
            if count is None:
                break
            done += count
        return done

    def ended(self, partial: Partial, text: str, begun: bool) -> Partial:
        """Append the closing tag to a response that spent its budget and still thinks; return any other as it is."""
        closed = partial.generated is not None and not partial.generated.all()
        if closed or self.forced is None or self.answer(text, begun)[1]:
            return partial
        count, made = len(self.forced), np.ones(len(partial), dtype=np.bool_)
        return Partial(
            np.concatenate([partial.token_ids, self.forced]),
            np.concatenate([partial.logprobs, np.zeros(count, np.float32)]),
            np.concatenate([partial.versions, np.repeat(partial.versions[-1:], count)]),
            np.concatenate([made if partial.generated is None else partial.generated, np.zeros(count, np.bool_)]),
        )


@dataclass(frozen=True, slots=True)
class Response:
    """Hold what came back for one request, its prefix included."""

    key: Key
    completion: Completion  # with ``ABORTED``: as far as it got
    new_tokens: int  # made since it was submitted
    tick: int  # the engine's clock when it ended
    reason: str | None  # with ``FAILED``: what happened

    def partial(self) -> Partial:
        """Return the tokens that an engine continues."""
        made = self.completion
        return Partial(made.token_ids, made.logprobs, made.versions, made.generated)


class Rollouts:
    """Pass requests on, and give out responses and scores lane by lane.

    Args:
        engine: makes responses.
        scorer: scores them.
        texts: how responses are read, or only the function from the token ids of many responses to their texts.

    Attributes:
        watch: called after each ``engine.poll``.
    """

    watch: Callable[[], None] | None = None

    def __init__(self, engine: Engine, scorer: Scorer, texts: Texts | Decode) -> None:
        self.engine, self.scorer = engine, scorer
        self.texts = texts if isinstance(texts, Texts) else Texts(texts)
        self._requests: dict[Key, SampleRequest] = {}  # what the engine has
        self._thinking: dict[Key, SampleRequest] = {}  # of these, as asked for, those that the budget may interrupt
        self._earlier: dict[Key, int] = {}  # tokens of these since ``submit`` that the engine does not count as new
        self._under_way: defaultdict[Lane, int] = defaultdict(int)
        self._ended: defaultdict[Lane, list[SampleEvent]] = defaultdict(list)
        self._lost: defaultdict[Lane, list[Key]] = defaultdict(list)
        self._asked: defaultdict[Lane, int] = defaultdict(int)  # scores that did not arrive
        self._scores: defaultdict[Lane, list[tuple[Key, Score]]] = defaultdict(list)
        self._polled = 0.0  # seconds within the engine's ``poll``

    # ------------------------------------------------------------------ responses

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Queue requests.

        Raises:
            EngineError: the engine is lost, or cannot take one of them; then it has none.
        """
        self._hand_over(requests)
        for request in requests:
            self._under_way[request.key.lane] += 1

    def _hand_over(self, requests: Sequence[SampleRequest]) -> None:
        """Submit requests; with a thinking budget, first the part of each that is as long as the budget."""
        parts = [self._part(request) for request in requests]
        self.engine.submit(parts)
        for request, part in zip(requests, parts, strict=True):
            self._requests[part.key] = part
            if part.sampling is not request.sampling:
                self._thinking[part.key] = request
            elif part is not request:
                made = 0 if request.prefix is None else len(request.prefix)
                self._earlier[part.key] = self._earlier.get(part.key, 0) + len(part.prefix or ()) - made

    def _part(self, request: SampleRequest) -> SampleRequest:
        """Return the request for the part up to the budget, or for the part after it, with a closing tag if missing."""
        thinking, sampling = self.texts.thinking, request.sampling
        if thinking is None or thinking.budget is None or thinking.forced is None:
            return request
        if sampling.max_tokens <= thinking.budget + len(thinking.forced):
            return request  # a few tokens that are only compared
        prefix = request.prefix
        if prefix is None or len(prefix) < thinking.budget:
            return replace(request, sampling=replace(sampling, max_tokens=thinking.budget))
        (text,) = self.texts.decode([prefix.token_ids])
        ended = thinking.ended(prefix, self.texts.response_prefix + text, thinking.begun(request.prompt_ids))
        return request if ended is prefix else replace(request, prefix=ended)

    def _go_on(self, event: SampleEvent) -> SampleRequest | None:
        """Return the request for the second part of a response whose first part spent the budget, else None."""
        asked = self._thinking.pop(event.key, None)
        if asked is None or event.finish is not FinishReason.LENGTH:
            return None
        self._earlier[event.key] = self._earlier.get(event.key, 0) + len(event.token_ids)
        return replace(asked, prefix=_joined(self._requests.pop(event.key).prefix, event))

    def pump(self, timeout: float | None = None) -> bool:
        """Let the engine work. True when a response of any lane ended.

        Args:
            timeout: seconds after which False means "nothing yet"; None: until a response ends, and False means that
                all that is still under way is lost.

        Raises:
            EngineError: the engine is lost. ``recall`` still gives back everything unfinished.
        """
        start = time.perf_counter()
        events = self.engine.poll(timeout)
        self._polled += time.perf_counter() - start
        if self.watch is not None:
            self.watch()
        further = []
        for event in events:
            if (request := self._go_on(event)) is not None:
                further.append(request)
                continue
            self._ended[event.key.lane].append(event)
            self._under_way[event.key.lane] -= 1
        if further:
            self._hand_over(further)
        if not events and timeout is None:
            for key in self._requests.keys() - {e.key for ended in self._ended.values() for e in ended}:
                self._lost[key.lane].append(key)
                self._under_way[key.lane] -= 1
                self._forget(key)
        return bool(events)

    def busy_seconds(self) -> float:
        """Return the seconds in which the engine worked so far; of several engines, the mean.

        An engine that works between two calls counts its own seconds; any other works within ``poll``.
        """
        return self.engine.busy_seconds() if isinstance(self.engine, WorksAlone) else self._polled

    def has_ended(self, lane: Lane) -> bool:
        """Return whether ``ended`` has a response to give."""
        return bool(self._ended.get(lane))

    def ended(self, lane: Lane) -> list[Response]:
        """Return the responses of a lane that ended since the last call, ordered by (tick, key)."""
        return self._whole(self._ended.pop(lane, []))

    def under_way(self, lane: Lane) -> int:
        """Count the responses of a lane that the engine has and that have not ended."""
        return self._under_way[lane]

    def lost(self, lane: Lane) -> list[Key]:
        """Return the responses of a lane that the engine had and that never came back, each once."""
        return sorted(self._lost.pop(lane, []))

    def recall(self, lane: Lane) -> list[Response]:
        """Take back all responses of a lane: those that ended and were not given out, and the rest as far as it got."""
        waiting = self._ended.pop(lane, [])
        ended = {event.key for event in waiting}
        keys = [key for key in self._requests if key.lane == lane and key not in ended]
        events = self.engine.abort(keys) if keys else []
        self._under_way[lane] = 0
        responses = self._whole([*waiting, *events])
        for key in keys:
            self._forget(key)
        return responses

    def _forget(self, key: Key) -> None:
        self._requests.pop(key, None)
        self._thinking.pop(key, None)
        self._earlier.pop(key, None)

    def _whole(self, events: Iterable[SampleEvent]) -> list[Response]:
        """Join events to their prefixes and read their texts; a stop token is not part of a text."""
        joined = []
        for event in map(self._unless_it_goes_on, events) if self._thinking else events:
            request = self._requests.pop(event.key)
            joined.append((event, _joined(request.prefix, event), request))
        texts = iter(
            self.texts.decode(
                [
                    whole.token_ids[:-1] if _by_token(event.finish, whole, request) else whole.token_ids
                    for event, whole, request in joined
                    if event.finish is not FinishReason.ABORTED
                ]
            )
        )
        return [
            Response(
                event.key,
                _unread(whole) if event.finish is FinishReason.ABORTED else self._read(event, whole, request, texts),
                len(event.token_ids) + self._earlier.pop(event.key, 0),
                event.tick,
                event.reason,
            )
            for event, whole, request in joined
        ]

    def _unless_it_goes_on(self, event: SampleEvent) -> SampleEvent:
        """Mark a response as unfinished that was taken back just when its thinking budget was spent."""
        asked = self._thinking.pop(event.key, None)
        spent = asked is not None and event.finish is FinishReason.LENGTH
        return replace(event, finish=FinishReason.ABORTED) if spent else event

    def _read(self, event: SampleEvent, whole: Partial, request: SampleRequest, texts: Iterator[str]) -> Completion:
        """Make a completion of a response that ended, cut at its first stop string even if the engine ignores those."""
        text, finish, stops = next(texts), event.finish, request.sampling.stop
        if stops and finish is not FinishReason.FAILED and any(stop in text for stop in stops):
            text = cut_text(text, stops, keep=self.texts.keep_stop)
            end = None if self.texts.first_stop is None else self.texts.first_stop(whole.token_ids, stops)
            if end is not None:
                whole, finish = _cut(whole, end), FinishReason.STOP
        text = self.texts.response_prefix + text
        made = Completion(whole.token_ids, whole.logprobs, whole.versions, finish, text, whole.generated)
        thinking = self.texts.thinking
        if thinking is None:
            return made
        begun = thinking.begun(request.prompt_ids)
        answer, closed = thinking.answer(text, begun)
        closings = text.count(thinking.close) - self.texts.response_prefix.count(thinking.close)
        thought = thinking.tokens(whole.token_ids, closings) if closed else len(made)
        return replace(made, answer=answer, thinking=thought, closed=closed)

    # ------------------------------------------------------------------ scores

    def judge(self, key: Key, prompt: Prompt, completion: Completion, failure: str | None = None) -> None:
        """Ask for the score of a response; ``failure``: why, where the engine could not finish it."""
        if completion.finish is FinishReason.FAILED:  # unscored, not wrong
            self._scores[key.lane].append((key, Score(reason=f"{ENGINE}{failure or 'failed'}")))
        else:
            self._asked[key.lane] += 1
            self.scorer.submit(key, prompt, completion)

    def scores(self, lane: Lane, timeout: float | None = None) -> list[tuple[Key, Score]]:
        """Return the scores of a lane that arrived since the last call.

        Args:
            lane: the lane that asks.
            timeout: seconds to wait for a score; 0: return those that are there; None: wait until there is one. With
                None an empty answer means that the scores asked for never came back.
        """
        while not self._scores[lane] and self._asked[lane]:
            arrived = self.scorer.poll(timeout)
            for key, score in arrived:
                self._scores[key.lane].append((key, score))
                self._asked[key.lane] -= 1
            if timeout is not None or not arrived:
                break
        return self._scores.pop(lane, [])


def _joined(prefix: Partial | None, event: SampleEvent) -> Partial:
    """Join the prefix of a response and the tokens that the engine made since."""
    if prefix is None or not len(prefix):
        return Partial(event.token_ids, event.logprobs, event.versions)
    own = None
    if prefix.generated is not None:
        own = np.concatenate([prefix.generated, np.ones(len(event.token_ids), dtype=np.bool_)])
    return Partial(
        np.concatenate([prefix.token_ids, event.token_ids]),
        np.concatenate([prefix.logprobs, event.logprobs]),
        np.concatenate([prefix.versions, event.versions]),
        own,
    )


def _by_token(finish: FinishReason, whole: Partial, request: SampleRequest) -> bool:
    """Return whether a stop token ended a response; without stop strings nothing else can."""
    if finish is not FinishReason.STOP:
        return False
    return not request.sampling.stop or int(whole.token_ids[-1]) in request.sampling.stop_token_ids


def _unread(partial: Partial) -> Completion:
    """Make a completion without text of a response that goes on later."""
    made = partial.token_ids, partial.logprobs, partial.versions
    return Completion(*made, FinishReason.ABORTED, "", partial.generated)


def _cut(whole: Partial, count: int) -> Partial:
    """Return the first ``count`` tokens."""
    if count == len(whole):
        return whole
    own = None if whole.generated is None else whole.generated[:count]
    return Partial(whole.token_ids[:count], whole.logprobs[:count], whole.versions[:count], own)


def cut_text(text: str, stops: tuple[str, ...], *, keep: bool) -> str:
    """Cut a response's text at its first stop string: before it, or after it (``keep``).

    Text beyond the stop string, from the token that completed it, is left out either way.
    """
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if not found:
        return text
    start, stop = min(found, key=lambda pair: (pair[0], -len(pair[1])))
    return text[: start + len(stop)] if keep else text[:start]
