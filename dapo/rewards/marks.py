r"""Find the answer that a response commits to.

An answer counts only where it is *marked*: ``\boxed{...}``, ``Answer: ...``, or a GSM8K line ``#### 72``. The last mark
wins. A number that is merely mentioned is no answer.
"""

from __future__ import annotations

import re

from dapo.rewards.compared_text import MAX_ANSWER

# At the beginning of a line `answer:` in any spelling; after other text on the line only `Answer:` or `final answer:`.
_ANSWER = re.compile(
    r"(?:^[ \t>*_#]*(?i:the[ \t]+)?(?i:final[ \t]+)?(?i:answer)|(?<![A-Za-z])(?:Answer|ANSWER|(?i:final[ \t]+answer)))"
    r"[ \t*_]*[:\uff1a][ \t*_]*(?:\n\s*)?(?=\S)",
    re.MULTILINE,
)
_MINERVA = re.compile(r"(?i)(?:the )?(?:final )?answer is:?\s*+")
_HOPE = re.compile(r"(?:\.\s*+I hope it is correct)?\.?$", re.IGNORECASE)
_HASHES = re.compile(r"^[ \t*_>]*####[ \t]*(?P<answer>[^\s#][^\n]*)$", re.MULTILINE)
_COMMAND = re.compile(r"\\[A-Za-z]+")
_UNIT_OF_HASHES = re.compile(r"(?<=[\d}])\s*(?:dollars?|cents?|euros?|percent|hours?|minutes?|seconds?|days?|[ck]?m)$")
_WORD = re.compile(r"[A-Za-z]{2}")
_BOX = re.compile(r"\\f?box(?:ed)?\s*(?=\{)|\\boxed\s+(?P<bare>[^\s{}$\\]+)")
_BRACE = re.compile(r"(?<!\\)(?:\\\\)*([{}])")
_MAX_MARKED = 2 * MAX_ANSWER  # characters of an answer with what surrounds it; a longer one is not looked into


def extract_answer(text: str) -> str | None:
    """Return the last marked answer of a response, without its mark; None when there is none.

    Time grows in proportion to the text. An answer too long to be one comes back cut, and longer than ``MAX_ANSWER``.
    """
    found = [mark for mark in (_last_line(text), _last_hashes(text), _last_box(text)) if mark is not None]
    if not found:
        return None
    answer = max(found)[1].strip()
    if len(answer) > _MAX_MARKED:
        return answer[: MAX_ANSWER + 1]
    answer = unwrap(answer)
    sentence = _MINERVA.match(answer)
    hope = _HOPE.search(answer, sentence.end()) if sentence else None
    if sentence is None or hope is None:
        return answer
    said = answer[sentence.end() : hope.start()]
    return answer if "\n" in said else unwrap(said)


def _last_line(text: str) -> tuple[int, str] | None:
    """Return position and rest of the line of the last ``Answer:``."""
    last = None
    for last in _ANSWER.finditer(text):  # noqa: B007
        pass
    return None if last is None else (last.end(), text[last.end() :].partition("\n")[0])


def _last_hashes(text: str) -> tuple[int, str] | None:
    """Return position and content of the last line ``#### ...`` that holds a formula, and not a heading."""
    last = None
    for match in _HASHES.finditer(text):
        if len(match["answer"]) <= _MAX_MARKED and _is_formula(match["answer"]):
            last = match.start("answer"), match["answer"]
    return last


def _is_formula(line: str) -> bool:
    """Return whether a line is a number or a formula: no words but LaTeX commands and a common unit."""
    line = _UNIT_OF_HASHES.sub("", unwrap(line))
    bare = _COMMAND.sub("", line)
    return not _WORD.search(bare) and (bare != line or any(map(str.isdigit, bare)))


def _last_box(text: str) -> tuple[int, str] | None:
    r"""Position and content of the last finished ``\boxed{...}``, in one pass over the braces."""
    boxes = list(_BOX.finditer(text))
    braced = {match.end(): match.start() for match in boxes if match["bare"] is None}
    last = max(((match.start(), match["bare"]) for match in boxes if match["bare"] is not None), default=None)
    opened: list[int] = []
    for brace in _BRACE.finditer(text):
        if brace[1] == "{":
            opened.append(brace.start(1))
        elif opened:
            start, end = opened.pop(), brace.start(1)
            if start in braced and end - start < _MAX_MARKED and (last is None or braced[start] > last[0]):
                last = braced[start], text[start + 1 : end]
    return last


def unwrap(answer: str) -> str:
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
