"""Read the model's turns as text and messages, and write replies and prompts as tokens of an episode."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dapo.errors import EpisodeError, RecipeError
from dapo.loop.sampling.episode import EpisodeState, Limits
from dapo.loop.sampling.texts import Texts, cut_text
from dapo.loop.sampling.turn_rows import RowOfTurns, before, plain_message
from dapo.types.batch import MODEL, IdArray, IntArray, Response, Turn
from dapo.types.enums import FinishReason
from dapo.types.environment import Abilities, Said, Speech, Spoken


class Dialogue:
    """Keep to the chat template, the texts' settings and the limits of a run.

    Args:
        speech: writes replies as tokens.
        texts: how the model's turns are read.
        limits: of an episode.
        abilities: of the environment.
    """

    def __init__(self, speech: Speech, texts: Texts, limits: Limits, abilities: Abilities) -> None:
        self.speech, self.texts, self.limits, self.abilities = speech, texts, limits, abilities

    # ------------------------------------------------------------------ the model's turns

    def spoken(self, episode: EpisodeState) -> list[Spoken]:
        """Return the model's turns as the environment gets them."""
        turns = [turn for turn in episode.response.turns if turn.who == MODEL]
        return [self.say(episode, turn, number) for number, turn in enumerate(turns)]

    def say(self, episode: EpisodeState, turn: Turn, number: int) -> Spoken:
        """Return a turn as the environment gets it."""
        ids, limits = episode.response.token_ids[turn.first : turn.stop], self.limits
        decode_all, stops = self.texts.decode_all or self.texts.decode, episode.request.sampling.stop
        (raw,) = decode_all([ids])
        raw = cut_text(raw, stops, keep=self.texts.keep_stop) if stops else raw
        text = turn.text
        if self.texts.thinking is not None:
            begun = self._begun(episode, turn)
            text, raw = (self.texts.thinking.answer(each, begun)[0] for each in (text, raw))
        left = episode.request.sampling.max_tokens - turn.stop
        return Spoken(number, text, raw, tuple(ids.tolist()), left, limits.max_turns - number - 1, turn.cut)

    def finish(self, episode: EpisodeState, ids: IdArray) -> FinishReason:
        """Return why a turn of these tokens ended: by a stop token or string, or at a limit."""
        sampling, first_stop = episode.request.sampling, self.texts.first_stop
        if len(ids) and int(ids[-1]) in sampling.stop_token_ids:
            return FinishReason.STOP
        if sampling.stop and first_stop is not None and first_stop(ids, sampling.stop) is not None:
            return FinishReason.STOP
        return FinishReason.LENGTH

    def text(self, episode: EpisodeState, ids: IdArray) -> str:
        """Return the text of a turn; a stop token is not part of it."""
        sampling = episode.request.sampling
        by_token = len(ids) and int(ids[-1]) in sampling.stop_token_ids
        (text,) = self.texts.decode([ids[:-1] if by_token else ids])
        return cut_text(text, sampling.stop, keep=self.texts.keep_stop) if sampling.stop else text

    def answer(self, episode: EpisodeState) -> tuple[str, int | None, bool]:
        """Return the answer of the last turn, the tokens of thinking in all, and whether the last thinking was closed.

        The tokens are None for a model that does not think.
        """
        own = [turn for turn in episode.response.turns if turn.who == MODEL]
        thinking, answer, closed = self.texts.thinking, own[-1].text if own else "", True
        if thinking is None:
            return answer, None, closed
        thought = 0
        for turn in own:
            answer, closed = thinking.answer(turn.text, self._begun(episode, turn))
            ids = episode.response.token_ids[turn.first : turn.stop]
            thought += thinking.tokens(ids, turn.text.count(thinking.close)) if closed else len(ids)
        return answer, thought, closed

    def _begun(self, episode: EpisodeState, turn: Turn) -> bool:
        thinking = self.texts.thinking
        seen = before(episode.prompt.token_ids, episode.response, turn)
        return thinking is not None and thinking.begun(seen)

    def _closed(self, response: Response) -> bool:
        """Return whether the model's last turn ended with the template's end-of-turn token."""
        if not response.turns or response.turns[-1].who != MODEL:
            return True
        return self._ends_turn(response.token_ids)

    def _ends_turn(self, ids: IdArray) -> bool:
        """Return whether tokens end with the template's end-of-turn token."""
        if not self.speech.end_of_turn:
            return True
        (raw,) = (self.texts.decode_all or self.texts.decode)([ids[-1:]])
        return raw == self.speech.end_of_turn

    # ------------------------------------------------------------------ replies

    def add(self, episode: EpisodeState, reply: Said, state: str | None, version: int, *, most: int, ask: bool) -> bool:
        """Append a reply's tokens; return False if they are too many for the rest of the episode.

        Args:
            episode: that the reply belongs to.
            reply: of the environment.
            state: of the environment after it.
            version: of the weights, for a reply before the model's first turn.
            most: tokens that the reply may have.
            ask: the model's turn follows.

        Raises:
            ValueError: they cannot be written, or are too many.
        """
        if reply.conversation is not None:
            return self._converse(episode, reply.conversation, version, most=most)
        messages, was_cut = self._bounded(reply)
        response, opens = episode.response, not episode.response.turns
        if not messages and not opens:
            return True
        ids = self.speech.opening(messages) if opens else self._reply(response, messages, ask=ask)
        if not len(ids):
            if messages and ask:
                raise ValueError("it has no tokens")
            return True
        count, start = len(ids), len(response)
        if count > most:
            return False
        text = "\n".join(message["content"] for message in messages)
        role = messages[0]["role"] if messages else self.abilities.role
        again = tuple(messages) if self.speech.afresh else ()
        turn = Turn(start, start + count, role, text, cut=was_cut, state=state, messages=again)
        episode.response = _with_reply(response, ids, turn, version)
        return True

    def _reply(self, response: Response, messages: Sequence[Mapping[str, str]], *, ask: bool) -> IntArray:
        return self.speech.reply(messages, closed=self._closed(response), ask=ask)

    def _bounded(self, reply: Said) -> tuple[list[dict[str, str]], bool]:
        """Return the messages of a reply, cut to the limit of its tokens.

        Raises:
            ValueError: a long one, where these are refused.
        """
        share = max(1, self.limits.max_reply_tokens // max(1, len(reply.messages)))
        messages, was_cut = [], reply.cut
        for message in reply.messages:
            content = self.speech.shorten(message["content"], share)
            was_cut = was_cut or content != message["content"]
            messages.append({**message, "content": content})
        if was_cut and self.limits.refuses_long_replies:
            raise ValueError(f"it has more than max_reply_tokens = {self.limits.max_reply_tokens} tokens")
        return messages, was_cut

    # ------------------------------------------------------------------ an agent's requests

    def _converse(self, episode: EpisodeState, asked: Mapping[str, Any], version: int, *, most: int) -> bool:
        """Let the model continue a conversation; return False if its new tokens are too many for the episode.

        A request that goes on where the newest row ends appends to it. Any other begins a row. Its prompt has the
        tokens of the longest row that the conversation continues; without one it is written afresh.

        Raises:
            ValueError: the conversation cannot be written.
        """
        response, messages, tools = episode.response, list(asked["messages"]), list(asked.get("tools") or ())
        if response.turns and response.turns[-1].who == MODEL and episode.lines:
            said = asked.get("answered") or {"role": MODEL, "content": response.turns[-1].text}
            episode.lines[-1].messages.append(plain_message(said))
        own = list(map(plain_message, messages))
        found, delta = self._continued(episode, own, tools)
        last, start = own[-1], len(response)
        if delta is not None and found is episode.lines[-1]:
            if len(delta) > most:
                return False
            found.messages = own
            turn = Turn(start, start + len(delta), last["role"], last["content"], asked=asked)
            episode.response = _with_reply(response, delta, turn, version)
            return True
        if found is not None and delta is not None:
            number = episode.lines.index(found) + 1
            stop = episode.lines[number].first if number < len(episode.lines) else start
            prompt_ids = np.concatenate([found.prompt_ids, response.token_ids[found.first : stop], delta])
        else:
            prompt_ids = self.speech.written(messages, tools)
        episode.lines.append(RowOfTurns(prompt_ids, start, own, tools))
        turn = Turn(start, start, last["role"], last["content"], prompt_ids=prompt_ids, asked=asked)
        episode.response = replace(response, turns=(*response.turns, turn))
        return True

    def _continued(
        self, episode: EpisodeState, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]
    ) -> tuple[RowOfTurns | None, IntArray | None]:
        """Return the longest row that a conversation continues, and the tokens that follow it; None: there is none."""
        best: RowOfTurns | None = None
        for line in episode.lines:
            count = len(line.messages)
            fits = line.tools == tools and count < len(messages) and list(messages[:count]) == line.messages
            if fits and (best is None or count >= len(best.messages)):
                best = line
        if best is None or self.speech.afresh:
            return None, None
        rest = messages[len(best.messages) :]
        if any(message["role"] == MODEL for message in rest):
            return None, None
        number = episode.lines.index(best) + 1
        stop = episode.lines[number].first if number < len(episode.lines) else len(episode.response)
        try:
            return best, self.speech.reply(rest, closed=self._ends_turn(episode.response.token_ids[:stop]), ask=True)
        except (RecipeError, ValueError):  # the template rewrites what came before
            return None, None

    # ------------------------------------------------------------------ prompts of turns

    def prompt_ids(self, episode: EpisodeState) -> IntArray:
        """Return the prompt of the model's present turn: the conversation so far, written afresh.

        Raises:
            ValueError: it cannot be written.
            EpisodeError: the prompt does not say of which messages it was made.
        """
        prompt, said = episode.prompt, list[Mapping[str, str]]()
        for turn in episode.response.turns:
            said += turn.messages if turn.who != MODEL else [{"role": MODEL, "content": self._written(episode, turn)}]
        if not said and not self.abilities.opens:
            return prompt.token_ids
        if prompt.chat is None:
            raise EpisodeError(
                "environment.rows: turns writes each turn's prompt with the chat template, and a prompt does not say "
                "of which messages it was made; a data stream of your own gives Prompt(chat={'messages': [...]}), or "
                "set environment.rows: append"
            )
        return self.speech.written([*prompt.chat["messages"], *said], prompt.chat.get("tools", ()))

    def _written(self, episode: EpisodeState, turn: Turn) -> str:
        """Return a turn of the model as a message's content: with special tokens, without the end of the turn."""
        ids, sampling = episode.response.token_ids[turn.first : turn.stop], episode.request.sampling
        if len(ids) and int(ids[-1]) in sampling.stop_token_ids:
            ids = ids[:-1]
        (text,) = (self.texts.decode_all or self.texts.decode)([ids])
        if sampling.stop:
            text = cut_text(text, sampling.stop, keep=self.texts.keep_stop)
        thinking = self.texts.thinking
        return f"{thinking.open}\n{text}" if thinking is not None and self._begun(episode, turn) else text

    # ------------------------------------------------------------------ replies that were played again

    def differs(self, episode: EpisodeState, replayed: Sequence[Said | None]) -> str | None:
        """Return how replies that were played again differ from the recorded tokens; None: they do not."""
        turns, ids = episode.response.turns, episode.response.token_ids
        if any(turn.asked is not None for turn in turns):
            return _asks_otherwise(turns, replayed)
        said = [reply or Said() for reply in replayed]
        opening = said.pop(0) if said else Said()
        places = [(number, turn) for number, turn in enumerate(turns) if turn.who != MODEL]
        if (turns and turns[0].who != MODEL) or opening.messages:
            said.insert(0, opening)
        for (number, turn), reply in zip(places, said, strict=False):
            again: IdArray
            so_far = replace(episode.response.cut(turn.first), turns=turns[:number])
            try:
                messages = self._bounded(reply)[0]
                again = self._reply(so_far, messages, ask=True) if number else self.speech.opening(messages)
            except ValueError:
                again = ids[:0]
            if reply.done or not np.array_equal(again, ids[turn.first : turn.stop]):
                return f"turn {number} was answered otherwise when it was played again"
        return None


def _with_reply(response: Response, ids: IntArray, turn: Turn, version: int) -> Response:
    """Return an episode with the tokens of a reply after its own."""
    earlier = tuple(replace(each, state=None) if each.state else each for each in response.turns)
    return replace(response.with_given(ids, version), turns=(*earlier, turn))


def _asks_otherwise(turns: Sequence[Turn], replayed: Sequence[Said | None]) -> str | None:
    """Return which request of an agent that was played again differs from the recorded one; None: none does."""
    recorded = [turn.asked for turn in turns if turn.asked is not None]
    again = [None if said is None else said.conversation for said in replayed]
    for number, (ours, theirs) in enumerate(zip(recorded, again, strict=False)):
        if ours != theirs:
            return f"the agent's request {number} was another one when it was played again"
    return None
