"""Text rewards: ``exact`` and ``regex``. Cheap and trusted, so they run in the driver."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

from dapo.contracts.types import Completion, Prompt
from dapo.errors import RewardError


def normalise(text: str) -> str:
    """Text as ``exact`` compares it: Unicode NFKC, white-space runs as one space, none at the ends. Case counts."""
    return " ".join(unicodedata.normalize("NFKC", text).split())


def compile_pattern(pattern: str, kind: str) -> re.Pattern[str]:
    """Compile a recipe's pattern.

    Raises:
        RewardError: it is not a regular expression.
    """
    try:
        return re.compile(pattern)
    except re.error as error:
        raise RewardError(
            f"reward kind `{kind}`: the pattern {pattern!r} is not a regular expression: {error}"
        ) from error


def read_answer(text: str, pattern: re.Pattern[str] | None) -> str | None:
    r"""The answer that ``exact`` reads, normalised; None when there is none.

    The last match of ``pattern`` (its group 1 where it has one), e.g. ``=(-?\d+)\s*$``; without a pattern, the last
    line that is not empty.
    """
    if pattern is None:
        lines = [line for line in text.split("\n") if line.strip()]
        return normalise(lines[-1]) if lines else None
    matches = list(pattern.finditer(text))
    if not matches:
        return None
    return normalise((matches[-1][1] if pattern.groups else matches[-1][0]) or "")


def exact(pattern: str | None = None) -> Callable[[Prompt, Completion], float]:
    """1.0 when the answer that ``read_answer`` finds equals the gold answer after ``normalise``, else 0.0."""
    compiled = None if pattern is None else compile_pattern(pattern, "exact")

    def score(prompt: Prompt, completion: Completion) -> float:
        return float(read_answer(completion.text, compiled) == normalise(prompt.answer))

    return score


def regex(pattern: str | None) -> Callable[[Prompt, Completion], float]:
    """1.0 when ``pattern`` is found anywhere in the response, else 0.0."""
    if pattern is None:
        raise RewardError("reward kind `regex` needs a `pattern`")
    compiled = compile_pattern(pattern, "regex")

    def score(prompt: Prompt, completion: Completion) -> float:
        return float(compiled.search(completion.text) is not None)

    return score
