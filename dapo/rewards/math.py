r"""Mathematical answers: find the one a response commits to, and compare it with the gold answer.

An answer counts only where it is *marked*: ``\boxed{...}``, a line ``Answer: ...``, or a GSM8K line ``#### 72``. The
last mark wins. A number that is merely mentioned is no answer. Comparison is exact for whole numbers of any size;
everything else goes through math-verify.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from dapo.rewards.text import MAX_ANSWER, vote_text

_ANSWER_LINE = re.compile(
    r"^[ \t>*_#]*(?:the[ \t]+)?(?:final[ \t]+)?answer[ \t*_]*:[ \t*_]*(?:\n\s*)?(?P<answer>\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_MINERVA = re.compile(r"(?i)(?:the )?(?:final )?answer is:?\s*+")
_HOPE = re.compile(r"(?:\.\s*+I hope it is correct)?\.?$", re.IGNORECASE)
_HASHES = re.compile(r"^[ \t]*####[ \t]*(?P<answer>[-+$\d][\d,.]*%?)[ \t]*$", re.MULTILINE)
_BOX = re.compile(r"\\f?box(?:ed)?\s*(?=\{)|\\boxed\s+(?P<bare>[^\s{}$\\]+)")
_BRACE = re.compile(r"(?<!\\)[{}]")
_MAX_MARKED = 2 * MAX_ANSWER  # characters of an answer with what surrounds it; a longer one is not looked into


def extract_answer(text: str) -> str | None:
    """Return the last marked answer of a response, without its mark; None when there is none.

    Time grows in proportion to the text. An answer too long to be one comes back cut, and longer than ``MAX_ANSWER``.
    """
    last: tuple[int, str] | None = None
    for pattern in (_ANSWER_LINE, _HASHES):
        for match in pattern.finditer(text):
            last = max(last or (-1, ""), (match.start("answer"), match["answer"]))
    box = _last_box(text)
    if box is not None:
        last = max(last or (-1, ""), box)
    if last is None:
        return None
    answer = last[1].strip()
    if len(answer) > _MAX_MARKED:
        return answer[: MAX_ANSWER + 1]
    answer = _unwrap(answer)
    sentence = _MINERVA.match(answer)
    hope = _HOPE.search(answer, sentence.end()) if sentence else None
    if sentence is None or hope is None:
        return answer
    said = answer[sentence.end() : hope.start()]
    return answer if "\n" in said else _unwrap(said)


def _last_box(text: str) -> tuple[int, str] | None:
    r"""Position and content of the last finished ``\boxed{...}``, in one pass over the braces."""
    boxes = list(_BOX.finditer(text))
    braced = {match.end(): match.start() for match in boxes if match["bare"] is None}
    last = max(((match.start(), match["bare"]) for match in boxes if match["bare"] is not None), default=None)
    opened: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[0] == "{":
            opened.append(brace.start())
        elif opened:
            start, end = opened.pop(), brace.start()
            if start in braced and end - start < _MAX_MARKED and (last is None or braced[start] > last[0]):
                last = braced[start], text[start + 1 : end]
    return last


def _unwrap(answer: str) -> str:
    """Take off what surrounds an answer: emphasis, dollar signs, a full stop."""
    before = None
    answer = answer.strip()
    while before != answer:
        before = answer
        answer = answer.strip().strip("*`").rstrip(" .,").removesuffix("\\")
        for left, right in (("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")):
            inner = answer[len(left) : len(answer) - len(right)]
            if (
                len(answer) > len(left) + len(right)
                and answer.startswith(left)
                and answer.endswith(right)
                and "$" not in inner
            ):
                answer = inner
    return answer


_SPACES = re.compile(r"\\[,!;: ]|\\q?quad\b|~|\s+")
_UNIT_TAIL = re.compile(r"(?:\^\{?\\circ\}?|°|\\(?:text|mathrm|mbox)\{[^{}]*\}(?:\^\{?\d\}?)?)+$")
_INTEGER = re.compile(r"^[+-]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.0*)?$")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\,|\\!,?|,\\!)(?=\d{3}(?!\d))")
_WORDS = re.compile(r"^[A-Za-z][A-Za-z']{3,}$|^[A-Za-z][A-Za-z']*(?:[ -]+[A-Za-z']+)+$")
_TEXT = re.compile(r"\\(?:text|textbf|textit|mathrm|mathbf|mbox|operatorname)\s*\{([^{}]*)\}")
_BRACKETED = re.compile(r"^(?:\\left)?[(\[]([^()\[\]]*?)(?:\\right)?[)\]]$")
_NORMAL_FORM = re.compile(r"^(?=[^=]*[-+^])(?=[^=]*(?<![\\A-Za-z])[A-Za-z])[^=]*=\s*0\s*$")
_BASE = re.compile(r"_\{?(\d+)\}?$")


def _without_spaces(text: str) -> str:
    """Without white space and LaTeX spaces, except between two digits: "1 2" is not 12."""
    return re.sub(r"(?<!\d) | (?!\d)", "", _SPACES.sub(" ", text))


def as_integer(answer: str) -> int | None:
    """Return the whole number an answer is (without a dollar sign, thousands marks, degree sign or unit); else None."""
    if len(answer) > MAX_ANSWER:  # also because Python converts no more than 4300 digits
        return None
    text = _UNIT_TAIL.sub("", _THOUSANDS.sub("", answer.strip()))
    text = _without_spaces(text).replace("\\$", "").strip("$").replace("\u2212", "-")
    if not _INTEGER.match(text):
        return None
    return int(text.replace(",", "").partition(".")[0])


def as_words(answer: str) -> str | None:
    r"""Return an answer that is words ("Evelyn", ``\text{east}``), in lower case; None for anything mathematical."""
    text = " ".join(_TEXT.sub(r"\1", answer).split()).strip(" .()")
    return text.lower() if _WORDS.match(text) else None


def same_answer(answer: str, gold: str) -> bool:
    """Whether two answers (without their marks) are the same mathematical object.

    May run without end on hostile input: call it where a time limit is enforced.
    """
    if len(answer) > MAX_ANSWER:
        return False
    ours, golden = as_integer(answer), as_integer(gold)
    if ours is not None and golden is not None:
        return ours == golden
    if _canonical(answer) == _canonical(gold):
        return True
    words = as_words(gold)
    if words is not None:  # math-verify reads words as products of letters, so "seat" would be "east"
        return as_words(answer) == words
    base, gold_base = _BASE.search(answer.strip()), _BASE.search(gold.strip())
    if gold_base and base and base[1] != gold_base[1]:
        return False  # math-verify drops the base of 2516_8
    for bare, bracketed in ((answer, gold), (gold, answer)):
        content = _BRACKETED.match(bracketed.strip())
        if content and "," in bare and not re.search(r"[()\[\]{}]", bare):
            # math-verify takes the solutions "1, -2" and the point or interval (-2, 1) for one set
            return _canonical(bare) == _canonical(content[1])
    if _NORMAL_FORM.match(answer) and "=" not in gold:
        return False  # math-verify takes the right side of "x + y - 17 = 0" for its value
    return _math_verify(answer, gold)


def _canonical(answer: str) -> str:
    text = _TEXT.sub(r"\1", answer.replace("\\left", "").replace("\\right", ""))
    text = re.sub(r"\\[dt]frac", r"\\frac", text)
    return _without_spaces(text).rstrip(".")


@lru_cache(maxsize=4096)
def _parse(answer: str) -> Any:
    from math_verify import LatexExtractionConfig, parse

    # A box makes math-verify read the whole answer: "41 or 42" becomes a set, never the 42 in it. A wide space
    # separates.
    boxed = "\\boxed{" + re.sub(r"\\q?quad\b", ",", _THOUSANDS.sub("", answer)) + "}"
    # Without its alarm, which works in a main thread only; the worker's own time limit takes its place.
    return parse(
        boxed, [LatexExtractionConfig(boxed_match_priority=0)], fallback_mode="no_fallback", parsing_timeout=None
    )


def _math_verify(answer: str, gold: str) -> bool:
    from math_verify import verify

    parsed_gold = _parse(gold)
    parsed = _parse(answer)
    if not parsed_gold or not parsed:
        return False
    # As a percentage 50% may be written 50 or 0.5; math-verify decides. The gold answer comes first.
    return bool(verify(parsed_gold, parsed, timeout_seconds=None))


def accuracy(text: str, gold: str) -> float:
    r"""1.0 when the last marked answer of ``text`` is the gold answer, else 0.0.

    Args:
        text: the response.
        gold: the gold answer; a mark around it (``\boxed{}``, ``####``) is allowed.

    Raises:
        ValueError: there is no gold answer.
    """
    return judge_answer(extract_answer(text), gold)


def judge_answer(answer: str | None, gold: str) -> float:
    """``accuracy`` of an answer that ``extract_answer`` found."""
    if not gold.strip():
        raise ValueError("the problem has no gold answer, which reward kind `math` needs")
    if answer is None:
        return 0.0
    marked = extract_answer(gold)
    return float(same_answer(answer, _unwrap(gold) if marked is None else marked))


def vote(answer: str | None) -> str | None:
    """Return an answer in a form in which most equal answers are equal texts, for majority votes; or None."""
    if not answer:
        return None
    number = as_integer(answer)
    return vote_text(_canonical(answer)) if number is None else str(number)


def warm_up() -> None:
    """Import math-verify and its parser, so that the first response is not charged for it."""
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.ERROR)  # it warns once that its timeouts are off
    _math_verify(r"\frac{1}{3}", r"\frac{2}{6}")
