"""Tools, their reader and a reward for ``soak.py``: they raise, hang and end their process, by what they are asked.

The same call always goes the same way, since an episode whose worker was lost is played again and has to repeat itself.
Imported by worker processes.
"""

from __future__ import annotations

import os
import time
from typing import Any

from dapo.models.tiny import SIGNED_SUM_WORDS

WORDS = (*SIGNED_SUM_WORDS, "error:", "ValueError:", "busy")
"""Of the model's tokenizer: those of the quickstart, and what the model reads of a tool that raises."""
BUSY = tuple(f"={total}" for total in range(40, 46))
HANGS, ENDS = ("=7", "=7"), ("=8", "=8")


def look_up(word: str, before: str) -> str:
    """Return a word for the last two words of a turn."""
    if (before, word) == HANGS:
        time.sleep(3600)
    if (before, word) == ENDS:
        os._exit(1)
    if word in BUSY:
        raise ValueError("busy")
    return f"={int(word[1:]) // 2}"


def read_calls(text: str) -> list[tuple[str, dict[str, str]]]:
    """Return a call for a turn whose last two words are totals, such as ``=4 =5``."""
    before, word = ("", "", *text.split())[-2:]
    return [("look_up", {"word": word, "before": before})] if word[:1] == "=" and word[1:] else []


def even(prompt: Any, completion: Any) -> float:
    """Return 1 for an even last token: about half of what random weights write, so nearly every group is mixed."""
    return float(int(completion.token_ids[-1]) % 2 == 0)
