"""From a response's tokens to the text that rewards and people read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from dapo.contracts.types import IntArray

Decode = Callable[[Sequence[IntArray]], list[str]]


@dataclass(frozen=True, slots=True)
class Texts:
    """How responses are read."""

    decode: Decode  # token ids of many responses -> their texts
    response_prefix: str = ""  # what each begins with, though none of its tokens is the response's
    first_stop: Callable[[IntArray, tuple[str, ...]], int | None] | None = None  # tokens up to a stop string
    keep_stop: bool = False  # the stop string stays in the text


def cut_text(text: str, stops: tuple[str, ...], *, keep: bool) -> str:
    """A response's text up to its first stop string: without it, or with it (``keep``).

    What the token that completed it said beyond it is left out either way.
    """
    found = [(text.index(stop), stop) for stop in stops if stop in text]
    if not found:
        return text
    start, stop = min(found, key=lambda pair: (pair[0], -len(pair[1])))
    return text[: start + len(stop)] if keep else text[:start]
