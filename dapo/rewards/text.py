"""Texts of any length, as they are compared and as they are passed on."""

from __future__ import annotations

import hashlib
import unicodedata
from functools import lru_cache

MAX_ANSWER = 2000  # characters; the longest gold answer of the public sets has 231


def normalise(text: str) -> str:
    """Text as ``exact`` compares it: Unicode NFKC, white-space runs as one space, none at the ends. Case counts."""
    return _normalised_once(text) if len(text) <= _SHORT else _normalised(text)


def _normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split())


_SHORT = 64  # characters of an answer that is likely to come again
_normalised_once = lru_cache(4096)(_normalised)


def vote_text(answer: str) -> str:
    """Return an answer as majorities and rollouts hold it: a long one as its beginning and a checksum."""
    if len(answer) <= MAX_ANSWER:
        return answer
    checksum = hashlib.sha256(answer.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    return f"{answer[: MAX_ANSWER // 2]}… ({len(answer)} characters, {checksum})"
