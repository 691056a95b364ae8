"""Ask the engine for responses and the verifiers for scores, for training, evaluation and the sync check alike.

Each of the three has a lane and gets the responses of its own lane only. What ended is kept until its lane asks for
it, so the responses of several lanes may be under way at once. A response comes whole: its tokens are joined to the
prefix that they continue, and its text is read (``Texts``). With an environment a response is an episode: its turns are
asked for one after the other (``Episodes``). The lanes see whole episodes.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dapo.errors import EngineError
from dapo.loop.sampling.episodes import PATIENCE, Episodes
from dapo.loop.sampling.patience import patiently
from dapo.loop.sampling.texts import Decode, Texts, cut_text
from dapo.types.batch import Key, Lane, Prompt, Response, SampleRequest, Score
from dapo.types.enums import FinishReason
from dapo.types.evidence import ENGINE, ENVIRONMENT, Awaited
from dapo.types.extra import extra_problem
from dapo.types.protocols import Engine, Scorer, ScoresGroups, Suspends, WorksAlone


class Rollouts:
    """Pass requests on, and give out responses and scores lane by lane.

    Args:
        engine: makes responses.
        scorer: scores them.
        texts: how responses are read, or only the function from the token ids of many responses to their texts.
        episodes: play environments between the parts of a response; None: a response has one turn.
        names_answers: whether the verifier of the accuracy names the answers that it reads.

    Attributes:
        watch: called after each ``engine.poll``.
        look: called before each wait for the engine or a score, and every second of it. It may raise to leave
            the wait, and nothing has changed then. None: nothing asks for that.
        happened: responses that ended, replies that took effect and scores that arrived, so far.
        by_group: whether the verifiers are asked about all responses to a prompt at once.
    """

    watch: Callable[[], None] | None = None
    look: Callable[[], None] | None = None

    def __init__(
        self,
        engine: Engine,
        scorer: Scorer,
        texts: Texts | Decode,
        episodes: Episodes | None = None,
        *,
        names_answers: bool = False,
    ) -> None:
        self.engine, self.scorer, self.names_answers = engine, scorer, names_answers
        self.by_group = isinstance(scorer, ScoresGroups) and scorer.by_group
        self.episodes = episodes
        self.texts = texts if isinstance(texts, Texts) else Texts(texts)
        self._requests: dict[Key, SampleRequest] = {}  # what the engine has
        self._thinking: dict[Key, SampleRequest] = {}  # of these, as asked for, those that the budget may interrupt
        self._earlier: dict[Key, int] = {}  # tokens of these since ``submit`` that the engine does not count as new
        self._under_way: defaultdict[Lane, int] = defaultdict(int)
        self._ended: defaultdict[Lane, list[Response]] = defaultdict(list)  # as the engine gave them
        self._played: defaultdict[Lane, list[Response]] = defaultdict(list)  # episodes that ended
        self._playing: set[Key] = set()  # episodes under way
        self._kept: dict[Key, int | None] = {}  # of these, those whose slot an engine keeps, and which of several does
        self._lost: defaultdict[Lane, list[Key]] = defaultdict(list)
        self._asked: defaultdict[Lane, int] = defaultdict(int)  # scores that did not arrive
        self._scores: defaultdict[Lane, list[tuple[Key, Score]]] = defaultdict(list)
        self._polled = 0.0  # seconds within the engine's ``poll``
        self.happened = 0

    # ------------------------------------------------------------------ responses

    def submit(self, requests: Sequence[SampleRequest], prompt_of: Callable[[Key], Prompt] | None = None) -> None:
        """Queue requests.

        Args:
            requests: what is asked for.
            prompt_of: the prompt of a request. None: no environment takes part, whatever the recipe says.

        Raises:
            EngineError: the engine is lost, or cannot take one of them; then it has none.
        """
        if self.episodes is None or prompt_of is None:
            self._hand_over(requests)
        else:
            self._playing |= {request.key for request in requests}
            begun = [self.episodes.begin(each, prompt_of(each.key), self.engine.clock) for each in requests]
            self._hand_over([request for request in begun if request is not None])
        for request in requests:
            self._under_way[request.key.lane] += 1

    def _hand_over(self, requests: Sequence[SampleRequest]) -> None:
        """Submit requests; with a thinking budget, first the part of each that is as long as the budget."""
        if not requests:
            return
        parts = [self._part(request) for request in requests]
        self.engine.submit(parts)
        for request, part in zip(requests, parts, strict=True):
            self._requests[part.key] = part
            if part.sampling is not request.sampling:
                self._thinking[part.key] = request

    def _part(self, request: SampleRequest) -> SampleRequest:
        """Return the request for the part up to the budget, or for the part after it, with a closing tag if missing.

        The budget is that of a turn of the model.
        """
        thinking, sampling, prefix = self.texts.thinking, request.sampling, request.prefix
        if thinking is None or thinking.budget is None or thinking.forced is None:
            return request
        start = 0 if prefix is None else prefix.turn_start
        if sampling.max_tokens <= start + thinking.budget + len(thinking.forced):
            return request  # a few tokens that are only compared
        if prefix is None or len(prefix) < start + thinking.budget:
            part = replace(sampling, max_tokens=start + thinking.budget)
            return replace(request, sampling=part, keep=self.episodes is not None)
        (text,) = self.texts.decode([prefix.token_ids[start:]])
        begun = thinking.begun(np.concatenate([request.prompt_ids, prefix.token_ids[:start]]))
        ended = thinking.ended(prefix, self.texts.response_prefix + text, begun)
        return request if ended is prefix else replace(request, prefix=ended)

    def _go_on(self, made: Response) -> SampleRequest | None:
        """Return the request for the second part of a response whose first part spent the budget, else None."""
        asked = self._thinking.pop(made.key, None)
        if asked is None or made.finish is not FinishReason.LENGTH:
            return None
        return replace(asked, prefix=self._so_far(made).unfinished())

    def _so_far(self, made: Response) -> Response:
        """Return all that the engine has of a response, a part of which it made and which may go on."""
        self._earlier[made.key] = self._earlier.get(made.key, 0) + len(made)
        return made.behind(self._requests.pop(made.key).prefix)

    def pump(self, timeout: float | None = None) -> bool:
        """Let the engine work, and environments answer. True when something happened that may matter to a lane.

        While a reply is waited for, the engine works step by step.

        Args:
            timeout: seconds after which False means "nothing yet"; None: until a response ends, and False means that
                all that is still under way is lost.

        Raises:
            EngineError: the engine is lost. ``recall`` still gives back everything unfinished.
            EpisodeError: an environment's replies cannot be used.
        """
        waited = self.episodes is not None and self.episodes.waiting > 0
        start = time.perf_counter()
        if self.look is not None:
            self.look()
        patience = self._a_step() if waited else timeout
        events = patiently(self.engine.poll, patience, self.look, lambda: self.engine.clock)
        self._polled += time.perf_counter() - start
        if self.watch is not None:
            self.watch()
        further = []
        for event in events:
            if event.finish is None:
                raise EngineError(
                    f"the engine's poll returned response {event.key} without a finish (stop, length or failed); what "
                    "goes on comes back by abort alone"
                )
            if self._requests[event.key].keep:
                self._kept[event.key] = event.engine
            if (request := self._go_on(event)) is not None:
                further.append(self._where_kept(request))
                continue
            if event.key in self._playing and event.finish is not FinishReason.FAILED:
                assert self.episodes is not None
                self.episodes.turn(self.episodes.whole(self._so_far(event)))
                continue
            self._ended[event.key.lane].append(event)
            self._under_way[event.key.lane] -= 1
            self._let_go([event.key])
        if further:
            self._hand_over(further)
        answered = self._take_answers(timeout)
        self.happened += len(events) + answered
        if not events and not waited and timeout is None:
            for key in self._requests.keys() - {e.key for ended in self._ended.values() for e in ended}:
                self._lost[key.lane].append(key)
                self._under_way[key.lane] -= 1
                self._forget(key)
        return bool(events) or answered > 0 or (waited and timeout is None)

    def _a_step(self) -> float:
        """Return the seconds of a look at the engine while a reply is waited for: one step of ours, some of others."""
        return PATIENCE if isinstance(self.engine, WorksAlone) else 0.0

    def _take_answers(self, patience: float | None) -> int:
        """Let the replies that are due take effect; return how many episodes go on or end by them."""
        if self.episodes is None:
            return 0
        waiting, held = self.episodes.waiting, len(self.episodes.held())
        if not waiting and not held:
            return 0
        idle = sum(self._under_way.values()) == waiting + held
        now = self.engine.clock, self.engine.version
        requests, over = self.episodes.due(*now, idle=idle, patience=patience, look=self.look)
        self._let_go(self.episodes.held())
        self._hand_over([self._where_kept(request) for request in requests])
        self._let_go(each.key for each in over)
        for each in over:
            self._under_way[each.key.lane] -= 1
            self._played[each.key.lane].append(self._played_on(each))
        return len(requests) + len(over)

    def _where_kept(self, request: SampleRequest) -> SampleRequest:
        """Ask the engine that keeps the slot of a request, where it is one of several."""
        engine = self._kept.pop(request.key, None)
        return request if engine is None else replace(request, engine=engine)

    def _let_go(self, keys: Iterable[Key]) -> None:
        """Let the kept slots of responses that do not go on go."""
        if kept := [key for key in keys if key in self._kept]:
            for key in kept:
                del self._kept[key]
            self.engine.abort(kept)

    def _played_on(self, episode: Response) -> Response:
        """Return an episode that ended, or that is taken back, as a lane gets it."""
        self._playing.discard(episode.key)
        return replace(episode, new_tokens=self._earlier.pop(episode.key, 0), tick=self.engine.clock)

    def busy_seconds(self) -> float:
        """Return the seconds in which the engine worked so far; of several engines, the mean.

        An engine that works between two calls counts its own seconds; any other works within ``poll``.
        """
        return self.engine.busy_seconds() if isinstance(self.engine, WorksAlone) else self._polled

    def has_ended(self, lane: Lane) -> bool:
        """Return whether ``ended`` has a response to give."""
        return bool(self._ended.get(lane) or self._played.get(lane))

    def ended(self, lane: Lane) -> list[Response]:
        """Return the responses of a lane that ended since the last call, ordered by (tick, key)."""
        played = self._played.pop(lane, [])
        whole = self._whole(self._ended.pop(lane, []))
        return sorted([*whole, *played], key=lambda each: (each.tick, each.key)) if played else whole

    def under_way(self, lane: Lane) -> int:
        """Count the responses of a lane that have not ended; episodes that wait for others of their group have."""
        return self._under_way[lane] - (0 if self.episodes is None else len(self.episodes.held(lane)))

    def awaited(self) -> Awaited:
        """Return what engine, environments and verifiers owe, of all lanes. Any thread may call it."""
        replies = held = 0
        if self.episodes is not None:
            replies, held = self.episodes.waiting, len(self.episodes.held())
        return Awaited(
            decoding=sum(self._under_way.copy().values()) - replies - held,
            replies=replies,
            scores=sum(self._asked.copy().values()),
            clock=self.engine.clock,
            happened=self.happened,
        )

    def lost(self, lane: Lane) -> list[Key]:
        """Return the responses of a lane that the engine had and that never came back, each once."""
        return sorted(self._lost.pop(lane, []))

    def recall(self, lane: Lane) -> list[Response]:
        """Take back all responses of a lane: those that ended and were not given out, and the rest as far as it got.

        The environments of the rest live on until ``drop``, or until their responses go on and end.
        """
        waiting = self._ended.pop(lane, [])
        ended = {event.key for event in waiting}
        keys = [key for key in self._requests if key.lane == lane and key not in ended]
        events = self.engine.abort(keys) if keys else []
        self._let_go([key for key in self._kept if key.lane == lane])
        self._under_way[lane] = 0
        responses = self._played.pop(lane, [])
        if self.episodes is not None:
            events = self._take_back(lane, events, responses)
        responses += self._whole([*waiting, *events])
        for key in keys:
            self._forget(key)
        return responses

    def _take_back(self, lane: Lane, made_R: Sequence[Response], responses: list[Response]) -> list[Response]:
        """Take back the episodes of a lane, into ``responses``; return those that the engine made outside of episodes.

        A turn that ended just now is asked about when its response goes on.
        """
        assert self.episodes is not None
        taken, others = self.episodes.recall(lane), []
        for made in map(self._unless_it_goes_on, made_R):
            if made.key not in self._playing or made.finish is FinishReason.FAILED:
                others.append(made)
            else:
                taken.append(self.episodes.take_back(self.episodes.whole(self._so_far(made))))
        responses += map(self._played_on, taken)
        return others

    def drop(self, keys: Iterable[Key]) -> None:
        """Close the environments of responses that were taken back and will not go on."""
        if self.episodes is not None:
            self.episodes.forget(keys)

    def _forget(self, key: Key) -> None:
        self._requests.pop(key, None)
        self._thinking.pop(key, None)
        self._earlier.pop(key, None)

    def _whole(self, made_R: Iterable[Response]) -> list[Response]:
        """Join responses to their prefixes and read their texts, which other processes decoded for their engines."""
        whole_R = []
        for made in map(self._unless_it_goes_on, made_R) if self._thinking else made_R:
            request = self._requests.pop(made.key)
            whole, new_tokens = made.behind(request.prefix), len(made) + self._earlier.pop(made.key, 0)
            if made.key in self._playing and self.episodes is not None:  # the engine could not go on
                whole = replace(self.episodes.whole(whole), turns=())
                self._playing.discard(made.key)
                self.drop([made.key])
            if whole.extra and len(whole):
                problem = extra_problem(whole.extra, prompt=len(request.prompt_ids), response=len(whole))
                if problem is not None:
                    raise EngineError(f"response {made.key}: {problem}")
            whole_R.append((whole, request, new_tokens))
        decoded = iter(
            self.texts.decode(
                [
                    request.text_ids(whole.token_ids, whole.finish)
                    for whole, request, _ in whole_R
                    if whole.finish is not None and not whole.text
                ]
            )
        )
        return [
            replace(whole, new_tokens=new_tokens)
            if whole.finish is None
            else self._read(whole, request, whole.text or next(decoded), new_tokens)
            for whole, request, new_tokens in whole_R
        ]

    def _unless_it_goes_on(self, made: Response) -> Response:
        """Mark a response as unfinished that was taken back just when its thinking budget was spent."""
        asked = self._thinking.pop(made.key, None)
        return made.unfinished() if asked is not None and made.finish is FinishReason.LENGTH else made

    def _read(self, whole: Response, request: SampleRequest, text: str, new_tokens: int) -> Response:
        """Read a response that ended, and cut it at its first stop string even if the engine ignores those."""
        stops = request.sampling.stop
        if stops and whole.finish is not FinishReason.FAILED and any(stop in text for stop in stops):
            text = cut_text(text, stops, keep=self.texts.keep_stop)
            end = None if self.texts.first_stop is None else self.texts.first_stop(whole.token_ids, stops)
            if end is not None:
                whole = replace(whole.cut(end), finish=FinishReason.STOP)
        whole = replace(whole, text=self.texts.response_prefix + text, new_tokens=new_tokens)
        thinking = self.texts.thinking
        if thinking is None:
            return whole
        answer, closed = thinking.answer(whole.text, thinking.begun(request.prompt_ids))
        closings = text.count(thinking.close)
        thought = thinking.tokens(whole.token_ids, closings) if closed else len(whole)
        return replace(whole, answer=answer, thinking=thought, closed=closed)

    # ------------------------------------------------------------------ a stop in the middle of a step

    def suspended(self) -> dict[str, Any] | None:
        """Return the state of the engine in the middle of training's responses; None: it has none to give.

        To be called before ``recall``. Requests that go on behind what that returns, and ``resume``, then make the same
        tokens at the same steps as if nothing had happened.
        """
        if self.episodes is not None or self._thinking or not isinstance(self.engine, Suspends):
            return None
        return self.engine.suspended()

    def resume(self, state: Mapping[str, Any], earlier: Mapping[Key, int]) -> bool:
        """Let the engine go on as ``suspended`` said, with what was submitted since; False: it is another engine.

        ``earlier``: tokens of responses that count as new when they end.
        """
        if not isinstance(self.engine, Suspends) or not self.engine.resume(state):
            return False
        self._earlier.update(earlier)
        return True

    # ------------------------------------------------------------------ scores

    def judge(self, prompt: Prompt, responses: Sequence[tuple[Key, Response]]) -> None:
        """Ask for the scores of responses to a prompt that ended; where ``by_group``, of all responses of its group.

        A response that its engine could not finish has no score, and no verifier sees it.
        """
        ended = []
        for key, response in responses:
            if response.finish is FinishReason.FAILED:  # unscored, not wrong
                failure = response.reason or "failed"
                reason = failure if failure.startswith(ENVIRONMENT) else f"{ENGINE}{failure}"
                self._scores[key.lane].append((key, Score(reason=reason)))
            else:
                self._asked[key.lane] += 1
                ended.append((key, response))
        if self.by_group and ended:
            assert isinstance(self.scorer, ScoresGroups)
            self.scorer.submit_group([key for key, _ in ended], prompt, [response for _, response in ended])
        else:
            for key, response in ended:
                self.scorer.submit(key, prompt, response)

    def scores(self, lane: Lane, timeout: float | None = None) -> list[tuple[Key, Score]]:
        """Return the scores of a lane that arrived since the last call.

        Args:
            lane: the lane that asks.
            timeout: seconds to wait for a score; 0: return those that are there; None: wait until there is one. With
                None an empty answer means that the scores asked for never came back.
        """
        while not self._scores[lane] and self._asked[lane]:
            arrived = patiently(self.scorer.poll, timeout, self.look)
            self.happened += len(arrived)
            for key, score in arrived:
                self._scores[key.lane].append((key, score))
                self._asked[key.lane] -= 1
            if timeout is not None or not arrived:
                break
        return self._scores.pop(lane, [])
