"""Environments played in this process, with answers that come late at will."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np

from dapo.environments.forms import form_of
from dapo.environments.messages import SaidMessage
from dapo.environments.worker import Ask, Load, Stage
from dapo.types.environment import Answer


class HerePlayers:
    """Keeps ``dapo.types.environment.Players``; an answer is there after ``delay`` polls that do not wait."""

    def __init__(self, found, *, tools=(), reader=None, delay=0, tell=False, timeout=30.0, compare=None, **args):
        self.form = form_of(found, args, tools, reader)
        if compare is not None:
            self.form.compare = compare
            self.form.abilities = replace(self.form.abilities, compares=True)
        self.abilities = self.form.abilities
        self.stage = Stage(self.form, Load("", {}, (), "none", timeout, 8, tell))
        self.delay, self.waiting, self.asked, self.replayed = delay, [], [], 0
        self.answered = {}

    def ask(self, question):
        self.asked.append(question)
        self.waiting.append([self.delay, question])

    def poll(self, timeout=None):
        ready = []
        for entry in list(self.waiting):
            entry[0] -= 1
            if entry[0] < 0 or timeout is None:
                self.waiting.remove(entry)
                ready.append(self._answer(entry[1]))
        return ready

    def _answer(self, question):
        key = question.key
        fresh = self.answered.get(key) != len(question.past) and not question.members
        if fresh:
            self.replayed += len(question.past)
        out = asyncio.run(self.stage.answer(Ask(0, question, fresh)))
        ended = question.end or (out["reply"] or {}).get("done")
        if out["failure"] or (ended and not self.abilities.compares):
            asyncio.run(self.stage.drop(key))
        if not question.members:
            self.answered[key] = len(question.past) + (question.turn is not None)
        replayed = out["replayed"]
        return Answer(
            key,
            _said(out["reply"]),
            None if replayed is None else tuple(map(_said, replayed)),
            out["state"],
            out["seconds"],
            out["failure"],
            tuple(map(_said, out["members"])),
        )

    def lose(self):
        """Forget all episodes, as if their process had ended."""
        self.stage.episodes.clear()
        self.answered.clear()

    def drop(self, key):
        self.waiting = [entry for entry in self.waiting if entry[1].key != key]
        self.answered.pop(key, None)
        asyncio.run(self.stage.drop(key))

    def counters(self):
        return {"replayed": float(self.replayed), "timeouts": 0.0}

    def close(self):
        self.waiting.clear()


def _said(plain):
    return None if plain is None else SaidMessage.model_validate(plain).said()


class WordSpeech:
    """Writes the words ``w5 w6`` as the tokens 5 and 6."""

    end_of_turn, afresh = "", False

    def opening(self, messages):
        return self.reply(messages, closed=True)

    def reply(self, messages, *, closed, ask=True):
        words = " ".join(message["content"] for message in messages).split()
        return np.array([int(word[1:]) for word in words], dtype=np.int64)

    def written(self, messages, tools=()):
        return self.reply(messages, closed=True)

    def shorten(self, text, limit):
        words = text.split()
        return text if len(words) <= limit else " ".join(words[:limit])


class FreshWordSpeech(WordSpeech):
    """Writes a conversation afresh, with the last word alone of each earlier turn of the model: it rewrites turns."""

    afresh = True

    def written(self, messages, tools=()):
        words = []
        for message in messages:
            said = message["content"].split()
            words += said[-1:] if message["role"] == "assistant" else said
        return np.array([int(word[1:]) for word in words], dtype=np.int64)
