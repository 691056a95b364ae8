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


def exact(pattern: str | None = None) -> Callable[[Prompt, Completion], float]:
    r"""1.0 when the response's answer equals the gold answer after ``normalise``, else 0.0.

    The answer is the last match of ``pattern`` (its group 1 where it has one), e.g. ``=(-?\d+)\s*$``; without a
    pattern, the last line that is not empty.
    """
    compiled = None if pattern is None else compile_pattern(pattern, "exact")

    def score(prompt: Prompt, completion: Completion) -> float:
        if compiled is None:
            lines = completion.text.split("\n")
            answer = next((line for line in reversed(lines) if line.strip()), "")
        else:
            matches = list(compiled.finditer(completion.text))
            if not matches:
                return 0.0
            match = matches[-1]
            answer = (match[1] if compiled.groups else match[0]) or ""
        return float(normalise(answer) == normalise(prompt.answer))

    return score


def regex(pattern: str | None) -> Callable[[Prompt, Completion], float]:
    """1.0 when ``pattern`` is found anywhere in the response, else 0.0."""
    if pattern is None:
        raise RewardError("reward kind `regex` needs a `pattern`")
    compiled = compile_pattern(pattern, "regex")

    def score(prompt: Prompt, completion: Completion) -> float:
        return float(compiled.search(completion.text) is not None)

    return score
