"""Read responses: their texts, where their thinking ends, and what stop strings leave of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dapo.types.batch import IdArray, IntArray, Response

Decode = Callable[[Sequence[IdArray]], list[str]]


@dataclass(frozen=True, slots=True)
class Texts:
    """Say how responses are read."""

    decode: Decode  # token ids of many responses -> their texts
    response_prefix: str = ""  # what each begins with, though none of its tokens is the response's
    first_stop: Callable[[IdArray, tuple[str, ...]], int | None] | None = None  # tokens up to a stop string
    keep_stop: bool = False  # the stop string stays in the text
    thinking: Thinking | None = None  # None: the answer may stand anywhere
    decode_all: Decode | None = None  # as ``decode``, with special tokens written out; None: there are none


@dataclass(frozen=True, slots=True)
class Thinking:
    """Find where the thinking of a response ends."""

    open: str
    close: str
    begun: Callable[[IntArray], bool]  # whether a prompt's tokens end with the opening tag
    first: Callable[[IdArray, tuple[str, ...]], int | None]  # tokens up to the first of some texts
    budget: int | None = None  # tokens of the response, or of a turn of it, after which it is closed
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

    def tokens(self, token_ids: IdArray, closings: int) -> int:
        """Count the tokens of a response up to its last closing tag, the ``closings``-th; all of them without one."""
        done = 0
        for _ in range(closings):
            count = self.first(token_ids[done:], (self.close,))
            if count is None:
                break
            done += count
        return done

    def ended(self, response: Response, text: str, begun: bool) -> Response:
        """Append the closing tag to a turn that spent its budget and still thinks; return any other as it is."""
        closed = not response.sampled[response.turn_start :].all()
        if closed or self.forced is None or self.answer(text, begun)[1]:
            return response
        return response.with_given(self.forced)


def cut_text(text: str, stops: tuple[str, ...], *, keep: bool) -> str:
    """Cut a response's text at its first stop string: before it, or after it (``keep``).

    Text beyond the stop string, from the token that completed it, is left out either way.
    """
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if not found:
        return text
    start, stop = min(found, key=lambda pair: (pair[0], -len(pair[1])))
    return text[: start + len(stop)] if keep else text[:start]
