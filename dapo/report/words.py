"""Numbers in prose."""

from __future__ import annotations

import re

from dapo.observe.text import shorten

_WORD = 60
"""Characters of a word, or a path, that is not cut."""


def seconds_said(seconds: float) -> str:
    """9 s, 3 min 5 s, 2 h 3 min: in a sentence, 3:05 could be either."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s" if whole else "less than a second"
    hours, rest = divmod(whole, 3600)
    minutes, left = divmod(rest, 60)
    if hours:
        return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"
    return f"{minutes} min {left} s" if left else f"{minutes} min"


def big(count: float) -> str:
    """451,489 as it is; from ten million on in words."""
    if count >= 1e9:
        return f"{count / 1e9:.2f} billion"
    return f"{count / 1e6:.1f} million" if count >= 1e7 else f"{count:,.0f}"


def brief(text: str, limit: int) -> str:
    """At most ``limit`` characters; what is left out is whole words in the middle, unless one is very long."""
    short = shorten(text, limit)
    if short == text:
        return text
    head, _, tail = short.partition(" … ")
    if " " in head[-_WORD:]:
        head = head.rpartition(" ")[0]
    if " " in tail[:_WORD]:
        tail = tail.partition(" ")[2]
    return f"{head} … {tail}"


def first_sentence(text: str) -> str:
    """Return the first of several sentences; a full stop in a number or a name ends none."""
    return sentence(re.split(r"(?<=[.!?])\s+(?=[A-Z])", text.strip(), maxsplit=1)[0])


def sentence(text: str) -> str:
    """With a capital and a full stop; "" stays."""
    text = text.strip()
    return text and text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
