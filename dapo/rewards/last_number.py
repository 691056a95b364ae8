r"""The reward ``last_number``: the last number of a response is the gold answer. It needs no mark (``\boxed{}``)."""

from __future__ import annotations

import re
from fractions import Fraction

from dapo.rewards.compared_text import MAX_ANSWER, read_golds, vote_text
from dapo.rewards.marks import unwrap
from dapo.rewards.units import read_unit

_BETWEEN = r"(?:,|\{,\}|\\,|\\!,?|_|[\u00a0\u2009\u202f])"  # thousands
_DIGITS = rf"(?:\d{{1,3}}(?:{_BETWEEN}\d{{3}}){{1,20}}+(?!{_BETWEEN}?\d)|\d+)(?:\.\d+)?|\.\d+"
_BEFORE = r"(?<![^\W_])(?<![)}\]])"
_SIGN = rf"{_BEFORE}[-+\u2212\u2013](?=\S)|{_BEFORE}(?<![^\W_]\s)(?<![)}}\]]\s)[-\u2212\u2013]\s"
_PART = r"(?:\{{\s*(?P<{0}>-?(?:\d+(?:\.\d+)?|\.\d+))\s*\}}|\s*(?P<{0}_digit>\d))"
_TIMES_TEN = (
    r"\s*(?:\\times|\\cdot|[\u00d7\u00b7*xX])\s*10\s*\^\s*"
    r"(?:\{\s*(?P<power>[-\u2212]?\d{1,3})\s*\}|(?P<bare_power>[-\u2212]?\d{1,3})(?!\d))"
)
_NUMBER = re.compile(
    rf"(?P<sign>{_SIGN})?(?:\\?[$\u20ac\u00a3\u00a5])?(?:"
    r"\d+(?:/\d+){1,20}/(?P<date>\d+)"
    r"|(?:(?P<whole>\d++)(?:[ ]?(?=\\[dtc]?frac)|[ ](?=\d+/\d)))?"
    rf"(?:\\[dtc]?frac{_PART.format('top')}{_PART.format('below')}"
    rf"|(?P<number>{_DIGITS})(?:[eE](?P<ten>[-+]?\d{{1,3}})(?!\w)|/(?P<over>\d+)(?![\d/])|{_TIMES_TEN})?))"
)
_NAME = r"(?:sqrt|pi|log|ln|lg|exp|(?:arc)?(?:sin|cos|tan|cot|sec|csc))"
_COMMAND = rf"(?:(?:\\|(?<![A-Za-z\\])){_NAME}(?![A-Za-z])|[\u221a\u03c0])"
_PART_OF = re.compile(  # what stands right before a number that is a part of a formula
    rf"{_COMMAND}\s*(?:\[[^\[\]]*\]|_\{{?\w+\}}?)?\s*[/(]?\s*$|(?<=[\w)}}\]])[\^_]$|(?:(?<![A-Za-z])[a-z]|[)}}])/$"
)
_GOES_ON = re.compile(
    rf"\s?(?:\\?\*|\\cdot)?\s?{_COMMAND}|[xyz](?![A-Za-z])|\^(?!\s*\{{?\s*(?:\\circ|st|nd|rd|th|\\text))"
)
_AROUND = re.compile(r"(?:\\(?:f?box(?:ed)?|text\w*|math\w*|mbox)|(?<![\w}}^\]\\]))\s*$")
_SHOWN = 200  # characters of a formula before a number
_BOXED = re.compile(r"\\boxed\{(.*)\}")
_TEXT = re.compile(r"\\(?:text|mathrm|mbox)\{([^{}]*)\}")
_UNIT = re.compile(r"(?:\^\s*\{?\\circ\}?|\u00b0|\\?%)?[^\d+=<>*\\-]*(?:\^\{?\d\}?)?")


def read_last_number(text: str) -> Fraction | None:
    r"""Return the last number of a text, exactly; None when there is none. Time grows in proportion to the text.

    What separates thousands, a currency sign, a sign, ``3e8``, ``6.02×10^23``, ``1/2``, ``3 1/2`` and ``\frac{1}{2}``
    belong to a number. A minus right after a digit or a letter, or with blanks on both sides, is an operator. A date
    (``2024/05/17``) is no fraction.

    The power of a unit (5 cm^2) is passed over. None, too, where the last number is a part of a formula:
    ``\frac{\pi}{2}``, ``\sqrt{2}``, ``2\pi``, ``2^{10}``.
    """
    before = last = None
    for found in _NUMBER.finditer(text):
        before, last = last, found
    if before is not None and last is not None and _is_unit(text[before.end() : last.end()]):
        last = before
    return None if last is None or _is_part(text, last) else _value(last)


def _is_part(text: str, found: re.Match[str]) -> bool:
    """Return whether a number is a part of a formula."""
    left = text[max(0, found.start() - _SHOWN) : found.start()]
    if _PART_OF.search(left) or _GOES_ON.match(text, found.end()):
        return True
    depth = 0
    for at in range(len(left) - 1, -1, -1):
        depth += (left[at] == "}") - (left[at] == "{")
        if depth < 0:
            return _AROUND.search(left[:at]) is None
    return False


def _value(found: re.Match[str]) -> Fraction | None:
    if len(found[0]) > MAX_ANSWER:
        return None
    if found["date"]:
        return Fraction(found["date"])
    sign = -1 if found["sign"] and found["sign"][0] != "+" else 1
    part = _part(found)
    if part is None or found["whole"] is None:
        return None if part is None else sign * part
    return sign * (int(found["whole"]) + part) if 0 < part < 1 else part


def _part(found: re.Match[str]) -> Fraction | None:
    """Return a number's value without its sign and the whole of a mixed number; None for a division by zero."""
    if found["number"] is None:
        top, below = (Fraction(found[name] or found[f"{name}_digit"]) for name in ("top", "below"))
        return top / below if below else None
    value = Fraction(re.sub(_BETWEEN, "", found["number"]))
    if found["over"]:
        return value / int(found["over"]) if int(found["over"]) else None
    ten = found["ten"] or found["power"] or found["bare_power"] or "0"
    return value * Fraction(10) ** int(ten.replace("\u2212", "-"))


def read_gold(gold: str) -> Fraction | None:
    """Return the one number that a gold answer is, perhaps after ``####`` and with one unit; None for anything else."""
    text = unwrap(gold.rpartition("####")[2])
    boxed = _BOXED.fullmatch(text)
    text = text if boxed is None else unwrap(boxed[1])
    found = _NUMBER.match(text)
    if found is None or found["date"]:
        return None
    after = text[found.end() :]
    return _value(found) if not after or _is_unit(after) else None


def _is_unit(text: str) -> bool:
    text = _TEXT.sub(r" \1 ", text)
    if not _UNIT.fullmatch(text):
        return False
    words = re.sub(r"\\circ|[%\\]", "", text)
    unit = read_unit(words)
    return not words.strip("^{} \u00b0") or (unit is not None and unit.factor == 1)


def judge(found: Fraction | None, gold: str, tolerance: float) -> float:
    """1.0 when a number is the gold answer, or one of its list; else 0.0.

    Args:
        found: of the response; None: it has none.
        gold: the gold answer (``read_gold``), or a list of them.
        tolerance: largest difference, relative to the gold answer.

    Raises:
        ValueError: the gold answer is not one number.
    """
    golds = [read_gold(one) for one in read_golds(gold)]
    if None in golds or not golds:
        raise ValueError(
            f"the gold answer {gold[:80]!r} has no number, or not one number alone (a whole number, a decimal, a "
            "fraction, a mixed number), which reward kind `last_number` needs; kind `math` compares formulas"
        )
    if found is None:
        return 0.0
    return float(any(abs(found - one) <= Fraction(tolerance) * abs(one) for one in golds if one is not None))


def vote(found: Fraction | None) -> str | None:
    """How a number votes."""
    return None if found is None else vote_text(str(found))
