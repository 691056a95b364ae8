"""From a response's tokens to the text that rewards and people read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dapo.types.batch import IntArray, Partial

Decode = Callable[[Sequence[IntArray]], list[str]]


@dataclass(frozen=True, slots=True)
class Texts:
    """How responses are read."""

    decode: Decode  # token ids of many responses -> their texts
    response_prefix: str = ""  # what each begins with, though none of its tokens is the response's
    first_stop: Callable[[IntArray, tuple[str, ...]], int | None] | None = None  # tokens up to a stop string
    keep_stop: bool = False  # the stop string stays in the text
    thinking: Thinking | None = None  # None: the answer may stand anywhere


@dataclass(frozen=True, slots=True)
class Thinking:
    """Where the thinking of a response ends."""

    open: str
    close: str
    begun: Callable[[IntArray], bool]  # whether a prompt's tokens end with the opening tag
    first: Callable[[IntArray, tuple[str, ...]], int | None]  # tokens up to the first of some texts
    budget: int | None = None  # tokens of the response after which it is closed
    forced: IntArray | None = None  # the tokens that close it

    def answer(self, text: str, begun: bool) -> tuple[str, bool]:
        """What follows the thinking, and whether it was closed: "" and False where it was not.

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
        """Tokens of a response up to its last closing tag, which is the ``closings``-th; all of them without one."""
        done = 0
        for _ in range(closings):
            count = self.first(token_ids[done:], (self.close,))
            if count is None:
                break
            done += count
        return done

    def ended(self, partial: Partial, text: str, begun: bool) -> Partial:
        """What a response has when its budget is spent, with the closing tag behind it if it still thinks."""
        told = partial.generated is not None and not partial.generated.all()
        if told or self.forced is None or self.answer(text, begun)[1]:
            return partial
        count, made = len(self.forced), np.ones(len(partial), dtype=np.bool_)
        return Partial(
            np.concatenate([partial.token_ids, self.forced]),
            np.concatenate([partial.logprobs, np.zeros(count, np.float32)]),
            np.concatenate([partial.versions, np.repeat(partial.versions[-1:], count)]),
            np.concatenate([made if partial.generated is None else partial.generated, np.zeros(count, np.bool_)]),
        )


def cut_text(text: str, stops: tuple[str, ...], *, keep: bool) -> str:
    """A response's text up to its first stop string: without it, or with it (``keep``).

    What the token that completed it said beyond it is left out either way.
    """
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if not found:
        return text
    start, stop = min(found, key=lambda pair: (pair[0], -len(pair[1])))
    return text[: start + len(stop)] if keep else text[:start]
