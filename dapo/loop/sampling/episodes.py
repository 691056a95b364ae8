"""Play episodes: turns of an environment between the parts of a response. Sits inside the mailbox.

A turn of the model that ended becomes a question to the environment. Its answer takes effect ``lag`` engine steps
later and is waited for then, so that the speed of a tool decides nothing. The answer becomes the prefix of a further
request with the same key and seed, or ends the episode. The recorded tokens are all of an episode's state: after a
resume its turns are played again, and the replies must be the recorded ones. Where they are not, the episode starts
anew.

Where an environment compares the episodes of a group, one that ended is held until all of its group have ended. A
question about all of them then gives each its scores. Held, an episode is what it was before its last answer: taken
back, it is asked about its last turn again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dapo.errors import EpisodeError
from dapo.loop.sampling.dialogue import Dialogue
from dapo.loop.sampling.episode import EpisodeState, Limits
from dapo.loop.sampling.patience import patiently
from dapo.loop.sampling.texts import Texts
from dapo.loop.sampling.turn_rows import RowOfTurns, present, rows_of_requests
from dapo.metrics.phases import Phases
from dapo.types.batch import MODEL, Key, Lane, Metrics, Prompt, Response, SampleRequest, Turn
from dapo.types.enums import FinishReason
from dapo.types.environment import NOT_HELD, Answer, Ended, Players, Question, Said, Speech, Spoken
from dapo.types.evidence import ENVIRONMENT
from dapo.types.seeds import ENVIRONMENT as SEEDS
from dapo.types.seeds import TURNS, derive_seed

log = logging.getLogger(__name__)

MOST_LOSSES = 2
"""Times that a group's episodes are played again because their process was lost before they were scored."""
PATIENCE = 0.05
"""Seconds that a run whose order a clock decides waits for an answer when its engine has nothing to do."""


def _read_for(episode: EpisodeState, request: SampleRequest) -> int:
    """Count the tokens that the model reads for a further turn: the reply, or the prompt of a row that begins."""
    turns = episode.response.turns
    if not turns or turns[-1].who == MODEL:
        return 0
    if not episode.lines or episode.lines[-1].first != turns[-1].stop:
        return turns[-1].stop - turns[-1].first
    known = len(episode.lines) == 1 and np.array_equal(request.prompt_ids, episode.request.prompt_ids)  # the group's
    return 0 if known else len(request.prompt_ids)


def _last_of(episode: EpisodeState) -> tuple[Question, Answer]:
    """Return what ended an episode, which no longer waits for its group."""
    assert episode.last is not None, "it ended"
    last, episode.last, episode.held = episode.last, None, False
    return last


class Episodes:
    """Keep the episodes of the responses under way.

    Args:
        players: play the environments.
        speech: writes replies as tokens.
        texts: how the model's turns are read.
        limits: of an episode.
        lag: engine steps after which a reply takes effect, where a late one is waited for.
        read_scores: names that some reward reads; others are refused.
        waits: whether a late reply is waited for. False: a clock decides the order of events anyway, and a reply takes
            effect when it is there.

    Attributes:
        phases: waiting for a reply is the phase ``environment``.
        waited: seconds spent waiting for replies.
        not_repeatable: episodes whose environment answered otherwise when it was played again: they started anew.
        given: tokens of training that the model was given to read: a group's prompt once, and each reply.
    """

    def __init__(
        self,
        players: Players,
        speech: Speech,
        texts: Texts,
        limits: Limits,
        *,
        lag: int = 0,
        read_scores: Iterable[str] = (),
        waits: bool = True,
    ) -> None:
        self.players, self.limits, self.texts = players, limits, texts
        self.dialogue = Dialogue(speech, texts, limits, players.abilities)
        self.lag, self.waits = lag, waits
        self._read_scores = frozenset(read_scores)
        self._episodes: dict[Key, EpisodeState] = {}
        self._over: list[Response] = []  # that ended without a further word of their environment
        self._version = 0  # of the weights when answers take effect
        self.phases = Phases()
        self.waited = 0.0
        self.not_repeatable = self.given = 0

    @property
    def waiting(self) -> int:
        """Count the episodes whose next event is the environment's."""
        return sum(episode.due is not None for episode in list(self._episodes.values())) + len(self._over)

    def held(self, lane: Lane | None = None) -> list[Key]:
        """Return the episodes that wait for others of their group, of one lane or of all."""
        if not self.players.abilities.compares:
            return []
        return [key for key, episode in list(self._episodes.items()) if episode.held and lane in (None, key.lane)]

    # ------------------------------------------------------------------ turns

    def begin(self, request: SampleRequest, prompt: Prompt, tick: int) -> SampleRequest | None:
        """Begin an episode, or go on with one that was taken back; None: the environment comes first."""
        key, prefix = request.key, request.prefix
        known = self._episodes.get(key)
        if known is None or prefix is None or len(known.response.turns) != len(prefix.turns):
            self.forget([key])
            begun = Response.empty(key) if prefix is None else replace(prefix, key=key)
            known = self._episodes[key] = EpisodeState(request, prompt, begun)
            known.spoken = self.dialogue.spoken(known)
            known.lines = rows_of_requests(known.response)
        known.request = request
        if prefix is None and key.lane == "train" and key.sample == 0:
            self.given += len(request.prompt_ids)
        if known.question is not None:  # it was asked before the episode was taken back
            known.due = tick + self.lag
        elif known.last is not None:
            known.held = True
        elif known.response.turns and known.response.turns[-1].who == MODEL:
            last = known.response.turns[-1]
            known.finish = self.dialogue.finish(known, known.response.token_ids[last.first : last.stop])
            self._ask(known, tick)
        elif prefix is None and self.players.abilities.opens:
            self._put(known, Question(key, prompt, self._seed(known)), tick)
        else:
            return self._begun_turn(known, prefix, tick)
        return None

    def whole(self, own: Response) -> Response:
        """Return the whole episode, of which the engine has ``own``: all of it, or its present row alone."""
        episode = self._episodes[own.key]
        if not episode.lines:
            return own
        earlier = episode.response.cut(episode.lines[-1].first)
        generated = np.concatenate([earlier.sampled, own.sampled])
        return replace(own.behind(earlier), generated=generated, turns=episode.response.turns)

    def turn(self, whole: Response) -> None:
        """Take in a turn that the engine ended, and ask the environment about it."""
        episode = self._episodes[whole.key]
        self._record(episode, whole)
        self._ask(episode, whole.tick)

    def take_back(self, whole: Response) -> Response:
        """Return what an engine gave back of an episode, as it is saved: its turn ended, or goes on."""
        episode = self._episodes[whole.key]
        if whole.finish is None:
            return whole
        self._record(episode, whole)
        return episode.response

    def recall(self, lane: Lane) -> list[Response]:
        """Take back the episodes of a lane that wait for environment or group, and those that ended without a word.

        What the environment was asked stays asked: ``begin`` goes on with it.
        """
        taken = [each for each in self._over if each.key.lane == lane]
        self._over = [each for each in self._over if each.key.lane != lane]
        for key in sorted(self._episodes):
            episode = self._episodes[key]
            if key.lane == lane and (episode.due is not None or episode.held):
                episode.due, episode.held = None, False
                taken.append(episode.response)
        return taken

    def forget(self, keys: Iterable[Key]) -> None:
        """Close episodes that will not go on."""
        for key in keys:
            if self._episodes.pop(key, None) is not None:
                self.players.drop(key)

    # ------------------------------------------------------------------ answers

    def due(
        self, tick: int, version: int, *, idle: bool, patience: float | None, look: Callable[[], None] | None = None
    ) -> tuple[list[SampleRequest], list[Response]]:
        """Return what the answers that take effect now lead to: further requests, and episodes that ended.

        Args:
            tick: the engine's clock.
            version: of its weights.
            idle: the engine has nothing to do: the earliest answers take effect at once.
            patience: seconds to wait for an answer where a clock decides the order.
            look: called while a late answer is waited for; see ``Rollouts.look``.
        """
        self._version = version
        self._arrived(0.0)
        asked = [episode for episode in self._episodes.values() if episode.due is not None]
        if idle and asked and not self._over:
            if self.waits:
                tick = max(tick, min(episode.due for episode in asked if episode.due is not None))
            elif all(episode.answer is None for episode in asked):
                self._arrived(PATIENCE if patience is None else patience)
        requests: list[SampleRequest] = []
        ripe = [
            (each.due, key)
            for key, each in self._episodes.items()
            if each.due is not None and (each.due <= tick if self.waits else each.answer is not None)
        ]
        for _, key in sorted(ripe):  # before any takes effect: an exception in the wait changes nothing
            self._waited_for(self._episodes[key], look)
        over, self._over = self._over, []
        for _, key in sorted(ripe):
            episode = self._episodes[key]
            for found in self._take(episode, self._waited_for(episode), tick):
                if isinstance(found, Response):
                    over.append(found)
                    continue
                requests.append(found)
                if found.key.lane == "train":
                    self.given += _read_for(self._episodes[found.key], found)
        self._ask_groups(tick)
        return requests, over

    def counters(self) -> Metrics:
        """Return counts since construction: of the players, and those of the attributes."""
        own = {"not_repeatable": float(self.not_repeatable), "waited": self.waited, "given_tokens": float(self.given)}
        return {**self.players.counters(), **own}

    def _waited_for(self, episode: EpisodeState, look: Callable[[], None] | None = None) -> Answer:
        """Return the answer to an episode's question; see ``Rollouts.look``.

        Raises:
            EpisodeError: it never came back.
        """
        while episode.answer is None:
            if not self._arrived(None, look):
                key = episode.request.key
                raise EpisodeError(f"the environment of response {key.sample} of group {key.group} never answered")
        return episode.answer

    def _arrived(self, timeout: float | None, look: Callable[[], None] | None = None) -> bool:
        """Take in the answers that are there (None: wait for one); return whether there were any."""
        if timeout == 0.0:
            answers = self.players.poll(0.0)
        else:
            began = time.monotonic()
            with self.phases("environment"):
                answers = patiently(self.players.poll, timeout, look)
            self.waited += time.monotonic() - began
        for answer in answers:
            if (episode := self._episodes.get(answer.key)) is not None and episode.question is not None:
                episode.answer = answer
        return bool(answers)

    # ------------------------------------------------------------------ what becomes of a turn

    def _record(self, episode: EpisodeState, whole: Response) -> None:
        """Append the model's turn that ended; engines that ignore stop strings made more than belongs to it."""
        sampling, start = episode.request.sampling, whole.turn_start
        if sampling.stop and self.texts.first_stop is not None:
            end = self.texts.first_stop(whole.token_ids[start:], sampling.stop)
            if end is not None:
                whole = whole.cut(start + end)
        ids = whole.token_ids[start:]
        episode.finish = self.dialogue.finish(episode, ids)
        cut_short = episode.finish is FinishReason.LENGTH
        prompt_ids = episode.lines[-1].prompt_ids if self.dialogue.speech.afresh and episode.lines else None
        turn = Turn(start, len(whole), MODEL, self.dialogue.text(episode, ids), cut=cut_short, prompt_ids=prompt_ids)
        episode.response = replace(whole.unfinished(), turns=(*whole.turns, turn))
        episode.spoken.append(self.dialogue.say(episode, turn, len(episode.spoken)))

    def _ask(self, episode: EpisodeState, tick: int) -> None:
        """Ask the environment about the turn that ended."""
        spent = len(episode.response) >= episode.request.sampling.max_tokens
        if episode.finish is FinishReason.LENGTH and (spent or self.limits.truncates_tokens):
            self._limit(episode, "tokens", tick, tuple(episode.spoken[:-1]), self._state(episode))
            return
        past, turn = tuple(episode.spoken[:-1]), episode.spoken[-1]
        key, seed = episode.request.key, self._seed(episode)
        self._put(episode, Question(key, episode.prompt, seed, past, turn, state=self._state(episode)), tick)

    def _limit(self, episode: EpisodeState, ended: str, tick: int, past: tuple[Spoken, ...], state: str | None) -> None:
        """End an episode at a limit; its environment is asked for scores first, where it has some.

        ``past`` are the turns that the environment answered, and ``state`` is its state after them.
        """
        episode.ended = ended
        if self.players.abilities.ends:
            why: Ended = "turns" if ended == "turns" else "tokens"
            key, seed = episode.request.key, self._seed(episode)
            self._put(episode, Question(key, episode.prompt, seed, past, end=why, state=state), tick)
        else:
            self._over.append(self._close(episode, self._at_limit(ended), ended, {}))

    def _at_limit(self, ended: str) -> FinishReason:
        """Return whether a limit truncates."""
        return FinishReason.STOP if ended == "turns" and not self.limits.truncates_turns else FinishReason.LENGTH

    def _put(self, episode: EpisodeState, question: Question, tick: int) -> None:
        episode.question, episode.answer, episode.due = question, None, tick + self.lag
        self.players.ask(question)

    def _take(self, episode: EpisodeState, answer: Answer, tick: int) -> list[SampleRequest | Response]:
        """Let an answer take effect; []: there is a further question, or the episode waits for its group."""
        question = episode.question
        assert question is not None, "an answer has a question"
        episode.question = episode.answer = episode.due = None
        found: SampleRequest | Response | None
        if question.members:
            return self._scored(question, answer, tick)
        if answer.replayed is not None and (differs := self.dialogue.differs(episode, answer.replayed)):
            found = self._anew(episode, differs, tick)
        elif answer.failure is not None:
            found = self._failed(episode, answer.failure)
        elif self.players.abilities.compares and (question.end is not None or (answer.reply or Said()).done):
            episode.last, episode.held = (question, answer), True
            return []
        else:
            found = self._in_effect(episode, question, answer, tick)
        return [] if found is None else [found]

    def _in_effect(
        self, episode: EpisodeState, question: Question, answer: Answer, tick: int
    ) -> SampleRequest | Response | None:
        """End an episode at a limit, or go on with the reply."""
        if question.end is not None:
            last = answer.reply or Said()
            self._credit(episode, last)
            return self._close(episode, self._at_limit(episode.ended), episode.ended, last.scores)
        return self._answered(episode, answer.reply or Said(), answer, tick)  # no reply: nothing is said first

    def _answered(
        self, episode: EpisodeState, reply: Said, answer: Answer, tick: int
    ) -> SampleRequest | Response | None:
        """Append a reply, or end the episode."""
        limit, response = episode.request.sampling.max_tokens, episode.response
        if response.turns:
            own = replace(
                response.turns[-1],
                reward=reply.reward,
                seconds=answer.seconds,
                calls=reply.calls,
                tool_errors=reply.tool_errors,
                facts=dict(reply.facts),
            )
            response = episode.response = replace(response, turns=(*response.turns[:-1], own))
        answered = tuple(episode.spoken)
        try:
            if reply.done:
                self.dialogue.add(episode, reply, answer.state, self._version, most=limit - len(response), ask=False)
                return self._close(episode, FinishReason.STOP, "done", reply.scores)
            if len(answered) >= self.limits.max_turns:
                self._limit(episode, "turns", tick, answered, answer.state)
                return None
            if not self.dialogue.add(
                episode, reply, answer.state, self._version, most=limit - len(response) - 1, ask=True
            ):
                self._limit(episode, "reply", tick, answered, answer.state)
                return None
        except ValueError as error:
            return self._failed(episode, f"reply: {error}")
        return self._go_on(episode, answer.state, tick)

    def _credit(self, episode: EpisodeState, last: Said) -> None:
        """Add what the environment said at a limit to the model's last turn."""
        turns = list(episode.response.turns)
        place = max((number for number, turn in enumerate(turns) if turn.who == MODEL), default=None)
        if place is not None and (last.reward or last.facts):
            own = turns[place]
            turns[place] = replace(own, reward=own.reward + last.reward, facts={**own.facts, **last.facts})
            episode.response = replace(episode.response, turns=tuple(turns))

    def _begun_turn(self, episode: EpisodeState, prefix: Response | None, tick: int) -> SampleRequest | None:
        """Return the request for a turn of the model that is to begin, or to go on; None: the episode ended."""
        try:
            request = self._further(episode, prefix)
        except ValueError as error:
            self._over.append(self._failed(episode, f"prompt: {error}"))
            return None
        if request is None:
            self._limit(episode, "reply", tick, tuple(episode.spoken), self._state(episode))
        return request

    def _go_on(self, episode: EpisodeState, state: str | None, tick: int) -> SampleRequest | Response | None:
        """Return the request for the turn after a reply; None: the episode ends, and is asked for scores."""
        try:
            request = self._further(episode, episode.response if len(episode.response) else None)
        except ValueError as error:
            return self._failed(episode, f"prompt: {error}")
        if request is None:
            self._limit(episode, "reply", tick, tuple(episode.spoken), state)
        return request

    def _further(self, episode: EpisodeState, prefix: Response | None) -> SampleRequest | None:
        """Return the request for the next turn of the model; None: its own prompt leaves it no token.

        Raises:
            ValueError: the chat template cannot write its prompt.
        """
        request, most = episode.request, self._turn_limit(episode)
        sampling, start = request.sampling, 0 if prefix is None else prefix.turn_start
        limit = sampling.max_tokens if most is None else min(sampling.max_tokens, start + most)
        if self.dialogue.speech.afresh and not (episode.lines and episode.lines[-1].messages):  # no agent's
            episode.lines = [RowOfTurns(self.dialogue.prompt_ids(episode), start)]
        # an engine keeps what a further turn may go on behind
        keep = len(episode.spoken) + 1 < self.limits.max_turns
        if not episode.lines:
            return replace(request, prefix=prefix, sampling=replace(sampling, max_tokens=limit), keep=keep)
        line = episode.lines[-1]
        # a turn and all before it are never longer than the prompt and the response of a single turn may be
        longest = self.limits.most_tokens or len(episode.prompt.token_ids) + sampling.max_tokens
        count = min(limit - line.first, longest - len(line.prompt_ids))
        if count <= start - line.first:
            return None
        number = sum(turn.who == MODEL for turn in episode.response.turns if turn.stop <= line.first)
        return replace(
            request,
            prompt_ids=line.prompt_ids,
            prefix=None if prefix is None else present(prefix, line.first),
            sampling=replace(sampling, max_tokens=count),
            seed=derive_seed(request.seed, TURNS, number) if number else request.seed,
            keep=keep,
        )

    def _turn_limit(self, episode: EpisodeState) -> int | None:
        """Return the most tokens of the model's next turn: the recipe's limit, or less where an agent asks for less."""
        turns = episode.response.turns
        asked = (turns[-1].asked or {}).get("max_tokens") if turns else None
        return min((each for each in (self.limits.max_turn_tokens, asked) if each is not None), default=None)

    # ------------------------------------------------------------------ groups that are scored together

    def _ask_groups(self, tick: int) -> None:
        """Ask for the scores of the groups all of whose episodes ended; those that failed are in none.

        In an evaluation the sampled responses of a problem are a group, and the greedy one is a group of its own.
        """
        groups: dict[tuple[Lane, int, bool], list[EpisodeState]] = {}
        for key in sorted(self._episodes) if self.held() else ():
            episode = self._episodes[key]
            greedy = episode.request.sampling.temperature == 0.0
            groups.setdefault((key.lane, key.group, greedy), []).append(episode)
        for members in groups.values():
            if all(member.held for member in members):
                self._ask_group(members, tick)

    def _ask_group(self, members: Sequence[EpisodeState], tick: int) -> None:
        first, keys = members[0], tuple(member.request.key for member in members)
        first.held = False
        self._put(first, Question(keys[0], first.prompt, self._seed(first), members=keys), tick)

    def _scored(self, question: Question, answer: Answer, tick: int) -> list[SampleRequest | Response]:
        """End the episodes of a group with their scores; where a process was lost, play and score them again."""
        members = [self._episodes[key] for key in question.members]
        if answer.failure == NOT_HELD and members[0].losses < MOST_LOSSES:
            return self._scored_again(members, tick)
        failure, over = answer.failure, list[SampleRequest | Response]()
        if failure is None and len(answer.members) != len(members):
            failure = f"reply: scores of {len(answer.members)} episodes, expected {len(members)}"
        for number, member in enumerate(members):
            asked, last = _last_of(member)
            if failure is not None:
                over.append(self._failed(member, failure))
                continue
            own = answer.members[number]
            reply = replace(last.reply or Said(), reward=own.reward, scores=own.scores, facts=own.facts)
            ended = self._in_effect(member, asked, replace(last, reply=reply), tick)
            assert isinstance(ended, Response), "an answer that ended it"
            over.append(ended)
        return over

    def _scored_again(self, members: Sequence[EpisodeState], tick: int) -> list[SampleRequest | Response]:
        """Ask about the last turns of a group's episodes again, and wait for their scores: the loss delays nothing.

        An episode that starts anew leaves the others waiting for it.
        """
        for member in members:
            asked, _ = _last_of(member)
            member.losses += 1
            self._put(member, asked, tick)
        found = [each for member in members for each in self._take(member, self._waited_for(member), tick)]
        left = [self._episodes[key] for key in (member.request.key for member in members) if key in self._episodes]
        if left and all(member.held for member in left):
            self._ask_group(left, tick)
            found += self._take(left[0], self._waited_for(left[0]), tick)
        return found

    # ------------------------------------------------------------------ the end

    def _failed(self, episode: EpisodeState, failure: str) -> Response:
        if self.limits.ends_on_error:
            return self._close(episode, FinishReason.STOP, "error", {})
        closed = self._close(episode, FinishReason.FAILED, "error", {})
        return replace(closed, reason=f"{ENVIRONMENT}{failure}")

    def _close(self, episode: EpisodeState, finish: FinishReason, ended: str, scores: Mapping[str, float]) -> Response:
        """Make the response of an episode that ended.

        Numbers beside the scores that rewards read become facts of its last turn.

        Raises:
            EpisodeError: it has scores that no reward reads, and not all that rewards read.
        """
        unread = sorted(scores.keys() - self._read_scores)
        if unread and not (self._read_scores and self._read_scores <= scores.keys()):
            missing = ", ".join(sorted(self._read_scores - scores.keys()))
            raise EpisodeError(
                f"the environment returned the scores {', '.join(unread)}, and no reward reads them; "
                + (f"further numbers come with all that rewards read ({missing} is missing). " if missing else "")
                + f"Add {{name: {unread[0]}, kind: environment}} to `rewards`, or return it as a fact: Reply(facts=...)"
            )
        self._credit(episode, Said(facts={name: scores[name] for name in unread}))
        scores = {name: score for name, score in scores.items() if name in self._read_scores}
        response = episode.response
        self.forget([episode.request.key])
        texts = [turn.text for turn in response.turns if turn.who == MODEL]
        answer, thought, closed = self.dialogue.answer(episode)
        turns = tuple(replace(turn, state=None, asked=None) for turn in response.turns)
        return replace(
            response,
            finish=finish,
            text="\n".join(texts),
            answer=answer,
            thinking=thought,
            closed=closed,
            turns=turns,
            ended=ended,
            scores=dict(scores),
        )

    def _anew(self, episode: EpisodeState, differs: str, tick: int) -> SampleRequest | None:
        """Begin an episode again whose recorded turns cannot be had back; None: the environment comes first."""
        key, tokens = episode.request.key, episode.response.model_tokens
        self.not_repeatable += 1
        if self.not_repeatable == 1:
            log.warning(
                "Response %d of group %d starts anew, and %d tokens are lost: %s. The environment or agent depends on "
                "something beside the prompt, its seed and the turns. A class with state() and restore() is not played "
                "again. Further ones are only counted (environment/not_repeatable in metrics.jsonl).",
                *(key.sample, key.group, tokens, differs),
            )
        self.forget([key])
        return self.begin(replace(episode.request, prefix=None), episode.prompt, tick)

    def _state(self, episode: EpisodeState) -> str | None:
        """Return the environment's state after its last reply, where it was recorded."""
        replies = [turn for turn in episode.response.turns if turn.who != MODEL]
        return replies[-1].state if replies else None

    def _seed(self, episode: EpisodeState) -> int:
        return derive_seed(episode.request.seed, SEEDS)
