r"""The reward ``last_number``: the last number of a response is the gold answer. It needs no mark (``\boxed{}``)."""

from __future__ import annotations

import re
from fractions import Fraction

from dapo.rewards.text import MAX_ANSWER, read_golds, vote_text

_DIGITS = r"(?:\d{1,3}(?:,\d{3}){1,20}+(?!,?\d)|\d+)(?:\.\d+)?|\.\d+"
_SIGN = r"(?<![\w)}\]])[-+\u2212\u2013](?=\S)|(?<![\w)}\]])(?<![\w)}\]]\s)[-\u2212\u2013]\s"
_NUMBER = re.compile(
    rf"(?P<sign>{_SIGN})?(?:\\?[$\u20ac\u00a3\u00a5])?(?:"
    r"\\[dtc]?frac\{\s*(?P<top>-?\d+)\s*\}\{\s*(?P<below>\d+)\s*\}"
    rf"|(?P<number>{_DIGITS})(?P<ten>[eE][-+]?\d{{1,3}}(?!\w)|/\d+(?![\d/]))?)"
)


def read_last_number(text: str) -> Fraction | None:
    r"""Return the last number of a text, exactly; None when there is none. Time grows in proportion to the text.

    Commas between thousands, a currency sign, a sign, ``3e8``, ``1/2`` and ``\frac{1}{2}`` belong to a number. A minus
    right after a digit or a letter, or with blanks on both sides, is an operator.
    """
    last = None
    for last in _NUMBER.finditer(text):  # noqa: B007
        pass
    if last is None or len(last[0]) > MAX_ANSWER:
        return None
    sign = -1 if last["sign"] and last["sign"][0] != "+" else 1
    if last["top"] is not None:
        return sign * Fraction(int(last["top"]), int(last["below"])) if int(last["below"]) else None
    value, after = Fraction(last["number"].replace(",", "")), last["ten"] or ""
    if after.startswith("/"):
        return sign * value / int(after[1:]) if int(after[1:]) else None
    return sign * value * Fraction(10) ** int(after[1:] or 0)


def judge(found: Fraction | None, gold: str, tolerance: float) -> float:
    """1.0 when a number is the gold answer, or one of its list; else 0.0.

    Args:
        found: of the response; None: it has none.
        gold: the gold answer, of which the last number counts.
        tolerance: largest difference, relative to the gold answer.

    Raises:
        ValueError: the gold answer has no number.
    """
    golds = [read_last_number(one) for one in read_golds(gold)]
    if None in golds or not golds:
        raise ValueError(f"the gold answer {gold[:80]!r} has no number, which reward kind `last_number` needs")
    if found is None:
        return 0.0
    return float(any(abs(found - one) <= Fraction(tolerance) * abs(one) for one in golds if one is not None))


def vote(found: Fraction | None) -> str | None:
    """How a number votes."""
    return None if found is None else vote_text(str(found))
