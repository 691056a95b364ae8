"""Reward functions of ``combinations_clock.py``; the workers of its runs import them."""

from __future__ import annotations

import time
import zlib
from typing import Any


def quick(prompt: Any, completion: Any) -> float:
    """Return 1 for the right total."""
    return float(completion.text.strip().endswith(str(prompt.answer)))


def slow(prompt: Any, completion: Any) -> float:
    """Take up to 60 ms, by what was written: the scores of a group arrive in any order, some after its step."""
    time.sleep(_part(completion) / 16)
    return quick(prompt, completion)


def raising(prompt: Any, completion: Any) -> float:
    """Raise for a fifth of what is written."""
    if _part(completion) < 0.2:
        raise ValueError("one of the responses that this function does not like")
    return quick(prompt, completion)


def late(prompt: Any, completion: Any) -> float:
    """Take longer than its time limit for a twentieth of what is written."""
    if _part(completion) < 0.05:
        time.sleep(60.0)
    return quick(prompt, completion)


def _part(completion: Any) -> float:
    """Return a number in [0, 1) that the text decides."""
    return zlib.crc32(completion.text.encode()) / 2**32
