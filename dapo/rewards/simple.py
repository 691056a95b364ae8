"""Text rewards: ``exact`` and ``regex``. A pattern may backtrack without end, so the caller sets a time limit."""

from __future__ import annotations

from collections import deque

import regex  # as re, and its matching takes a time limit

from dapo.errors import RewardError
from dapo.rewards.compared_text import MAX_ANSWER, normalise, read_golds, vote_text

# The most characters that NFKC makes one of (Greek letters with three accents): a text this many times as long as the
# gold answer cannot equal it.
_COMPOSED = 4


class TookLong(Exception):
    """A pattern was not done with a text in the time that it had."""


def compile_pattern(pattern: str, kind: str) -> regex.Pattern[str]:
    """Compile a recipe's pattern.

    Raises:
        RewardError: it is not a regular expression.
    """
    try:
        return regex.compile(pattern, regex.VERSION0)
    except (regex.error, OverflowError, RecursionError) as error:  # the last two: a{10**12}, and brackets without end
        raise RewardError(
            f"reward kind `{kind}`: the pattern {pattern[:200]!r} is not a regular expression: {error}"
        ) from error


def found_in(text: str, pattern: regex.Pattern[str], seconds: float | None = None) -> bool:
    """Whether the pattern matches somewhere.

    Raises:
        TookLong: that is not known after ``seconds``; None: it may take for ever.
    """
    try:
        return pattern.search(text, timeout=seconds) is not None
    except TimeoutError:
        raise TookLong from None


def find_answer(text: str, pattern: regex.Pattern[str] | None, seconds: float | None = None) -> str | None:
    r"""Return the answer that ``exact`` reads, unchanged; None when there is none.

    The last match of ``pattern`` (its group 1 where it has one), e.g. ``=(-?\d+)\s*$``; without a pattern, the last
    line that is not empty.

    Raises:
        TookLong: it is not known after ``seconds``; None: it may take for ever.
    """
    if pattern is None:
        return text.rstrip().rpartition("\n")[2] if text.strip() else None
    try:
        # Not concurrent: a search of microseconds would hand the interpreter to another thread, and wait for it.
        last = deque(pattern.finditer(text, timeout=seconds, concurrent=False), maxlen=1)
    except TimeoutError:
        raise TookLong from None
    return None if not last else (last[0][1] if pattern.groups else last[0][0]) or ""


def equals(answer: str | None, gold: str) -> float:
    """1.0 when both are the same text after ``normalise``, else 0.0. The gold answer's length bounds the work.

    Of a list of gold answers (``read_golds``) any one counts.
    """
    if answer is None:
        return 0.0
    flat = " ".join(answer.split())
    golds = map(normalise, read_golds(gold))
    return float(any(len(flat) <= _COMPOSED * len(golden) and normalise(flat) == golden for golden in golds))


def vote(answer: str | None) -> str | None:
    """How the answer votes: normalised, unless it is too long to be one."""
    if answer is None:
        return None
    flat = " ".join(answer.split())
    return vote_text(normalise(flat) if len(flat) <= MAX_ANSWER else flat)
