"""Read responses: their texts, where their thinking ends, and what stop strings leave of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dapo.errors import EngineError
from dapo.types.batch import IdArray, IntArray, Partial, SampleEvent
from dapo.types.extra import Extra, cut_extra, joined_extra, padded_extra

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

    def ended(self, partial: Partial, text: str, begun: bool) -> Partial:
        """Append the closing tag to a turn that spent its budget and still thinks; return any other as it is."""
        closed = partial.generated is not None and not partial.generated[partial.turn_start :].all()
        if closed or self.forced is None or self.answer(text, begun)[1]:
            return partial
        count, made = len(self.forced), np.ones(len(partial), dtype=np.bool_)
        return Partial(
            np.concatenate([partial.token_ids, self.forced]),
            np.concatenate([partial.logprobs, np.zeros(count, np.float32)]),
            np.concatenate([partial.versions, np.repeat(partial.versions[-1:], count)]),
            np.concatenate([made if partial.generated is None else partial.generated, np.zeros(count, np.bool_)]),
            padded_extra(partial.extra, count),
            partial.turns,
        )


def joined(prefix: Partial | None, event: SampleEvent) -> Partial:
    """Join the prefix of a response and the tokens that the engine made since.

    Raises:
        EngineError: extra arrays that do not fit together.
    """
    if prefix is None or not len(prefix):
        return Partial(event.token_ids, event.logprobs, event.versions, extra=event.extra)
    own = None
    if prefix.generated is not None:
        own = np.concatenate([prefix.generated, np.ones(len(event.token_ids), dtype=np.bool_)])
    return Partial(
        np.concatenate([prefix.token_ids, event.token_ids]),
        np.concatenate([prefix.logprobs, event.logprobs]),
        np.concatenate([prefix.versions, event.versions]),
        own,
        _extra(prefix, event),
        prefix.turns,
    )


def _extra(prefix: Partial, event: SampleEvent) -> Extra:
    if not len(event.token_ids):
        return prefix.extra
    earlier = prefix.extra
    if not prefix.model_tokens:  # an environment spoke first: no engine has said which arrays there are
        none = {name: values[:0] for name, values in event.extra.items()}
        earlier = padded_extra(none, len(prefix))
    try:
        return joined_extra(earlier, event.extra)
    except ValueError as error:
        raise EngineError(f"response {event.key}: {error}. An engine gives the same arrays for every token") from None


def cut(whole: Partial, count: int) -> Partial:
    """Return the first ``count`` tokens."""
    if count == len(whole):
        return whole
    own = None if whole.generated is None else whole.generated[:count]
    extra = cut_extra(whole.extra, len(whole) - count)
    return Partial(whole.token_ids[:count], whole.logprobs[:count], whole.versions[:count], own, extra, whole.turns)


def cut_text(text: str, stops: tuple[str, ...], *, keep: bool) -> str:
    """Cut a response's text at its first stop string: before it, or after it (``keep``).

    Text beyond the stop string, from the token that completed it, is left out either way.
    """
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if not found:
        return text
    start, stop = min(found, key=lambda pair: (pair[0], -len(pair[1])))
    return text[: start + len(stop)] if keep else text[:start]
