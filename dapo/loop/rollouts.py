"""The one mailbox of engine and verifiers: whoever wants responses has a lane, and nobody sees another's.

Training, evaluation and the sync check ask here, also while another lane's responses are under way: what ended is kept
for its lane until that asks. Responses come whole: what the engine made is joined to the prefix it continued.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dapo.loop.texts import Decode, Texts, cut_text
from dapo.types.batch import (
    Completion,
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


@dataclass(frozen=True, slots=True)
class Response:
    """What came back for one request, its prefix included."""

    key: Key
    completion: Completion  # with ``ABORTED``: as far as it got
    new_tokens: int  # made since it was submitted
    tick: int  # the engine's clock when it ended
    reason: str | None  # with ``FAILED``: what happened

    def partial(self) -> Partial:
        """What an engine continues behind."""
        made = self.completion
        return Partial(made.token_ids, made.logprobs, made.versions, made.generated)


class Rollouts:
    """Requests in, responses and scores out, lane by lane.

    Args:
        engine: Makes responses.
        scorer: Judges them.
        texts: How responses are read, or the function from token ids of many of them to their texts alone.

    Attributes:
        watch: called whenever the engine was asked for what ended.
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
        """With a thinking budget a response is made in two parts, the first as long as the budget."""
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
        """What the engine is asked for: up to the budget, or on from there, with a closing tag where none was."""
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
        """The second part of a response whose first one ended with the budget; None: it ended."""
        asked = self._thinking.pop(event.key, None)
        if asked is None or event.finish is not FinishReason.LENGTH:
            return None
        self._earlier[event.key] = self._earlier.get(event.key, 0) + len(event.token_ids)
        return replace(asked, prefix=_joined(self._requests.pop(event.key).prefix, event))

    def pump(self, timeout: float | None = None) -> bool:
        """Let the engine work. True when something ended, in whichever lane.

        Args:
            timeout: seconds after which False means "nothing yet"; None: until something ends, and False means that
                what is still under way is lost.

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
        """Seconds in which the engine worked (of several, their mean), so far.

        One that works by itself counts them; any other works within ``poll``.
        """
        return self.engine.busy_seconds() if isinstance(self.engine, WorksAlone) else self._polled

    def has_ended(self, lane: Lane) -> bool:
        """Whether ``ended`` has something to give."""
        return bool(self._ended.get(lane))

    def ended(self, lane: Lane) -> list[Response]:
        """Responses of a lane that ended since it asked, ordered by (tick, key)."""
        return self._whole(self._ended.pop(lane, []))

    def under_way(self, lane: Lane) -> int:
        """Responses of a lane that the engine has and that have not ended."""
        return self._under_way[lane]

    def lost(self, lane: Lane) -> list[Key]:
        """Responses of a lane that the engine had and that never came back, told once."""
        return sorted(self._lost.pop(lane, []))

    def recall(self, lane: Lane) -> list[Response]:
        """Take back everything of a lane: what ended and was not asked for, and the rest as far as it got."""
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
        """The events with their prefixes and texts; a stop token is not part of a text."""
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
        """Taken back at the very moment when its budget was spent, a response did not end."""
        asked = self._thinking.pop(event.key, None)
        spent = asked is not None and event.finish is FinishReason.LENGTH
        return replace(event, finish=FinishReason.ABORTED) if spent else event

    def _read(self, event: SampleEvent, whole: Partial, request: SampleRequest, texts: Iterator[str]) -> Completion:
        """A response that ended, with its text: up to its first stop string, whether or not its engine knows them."""
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
        """Scores of a lane that arrived since it asked.

        Args:
            lane: whose.
            timeout: seconds to wait for one; 0: what is there; None: until there is one, and an empty answer means
                that those asked for never came back.
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
    """What a response has: its prefix and what the engine made since."""
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
    """Whether a stop token ended it, which is no text; without stop strings nothing else could."""
    if finish is not FinishReason.STOP:
        return False
    return not request.sampling.stop or int(whole.token_ids[-1]) in request.sampling.stop_token_ids


def _unread(partial: Partial) -> Completion:
    """A response that goes on later."""
    made = partial.token_ids, partial.logprobs, partial.versions
    return Completion(*made, FinishReason.ABORTED, "", partial.generated)


def _cut(whole: Partial, count: int) -> Partial:
    """The first ``count`` tokens."""
    if count == len(whole):
        return whole
    own = None if whole.generated is None else whole.generated[:count]
    return Partial(whole.token_ids[:count], whole.logprobs[:count], whole.versions[:count], own)
