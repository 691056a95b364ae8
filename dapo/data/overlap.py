"""Find training problems that are in a validation set: what two texts share that are one problem."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import regex  # as re, and it looks behind a text of any length

from dapo.config.problems import visible
from dapo.data.formats import RawProblem
from dapo.types.batch import content_id

_LETTERS_FOR_NORMALISED = 20
_NO_LETTER = regex.compile(r"[^\p{L}]+")
_DASHES = str.maketrans("‐‑‒–—−", "------")
_THOUSANDS = regex.compile(r"(?<=\d)\{?,\}?(?=\d{3}(?!\d))")
_BOLD = regex.compile(r"(?<!\w)\*{2,}|\*{2,}(?!\w)")
_LAYOUT = r"\s$(){}\[\]\\"  # blanks, and what a formula is written with
_OPERAND = r"(?:\d|(?<!\p{L})\p{L}(?!\p{L}))"  # a digit, or a letter alone
_HYPHEN = r"(?<=\p{L}{2})[-/](?=\w)|(?<=\w)[-/](?=\p{L}{2})"
_OPERATOR = r"[-+*/^=<>×÷·±≤≥≠%!]"
_KEPT = regex.compile(
    rf"(?P<words>[^\W_]+)|(?<=\d)(?P<gap>[\W_]+)(?=\d)"
    rf"|(?!{_HYPHEN})(?P<sign>{_OPERATOR})(?:(?<={_OPERAND}[{_LAYOUT}]*{_OPERATOR})|(?=[{_LAYOUT}]*{_OPERAND}))"
)
_NO_SIGN = regex.compile(rf"[{_LAYOUT}]+")
_SHOWN = 3  # removals that the console shows for each set
_WIDTH = 160  # characters of each text


@dataclass(slots=True)
class SharedProblems:
    """Problems that a validation set shared with the training data, taken out of training."""

    problems: int = 0  # of the validation set
    records: int = 0  # of the training data: another wording, or another answer, of one of these problems counts again
    pairs: list[tuple[str, str]] = field(default_factory=list, compare=False)  # training text, validation text

    def lines(self, name: str) -> list[str]:
        """Return lines for the console, with removals whose two texts differ: a mistake would be among them."""
        if not self.problems:
            return []
        first = (
            f"overlap     {self.problems:,} problems of {name} stood in the training data, in {self.records:,} of its "
            "records, which were taken out"
        )
        pairs = list(dict.fromkeys(pair for pair in self.pairs if pair[0] != pair[1]))[:_SHOWN]
        return [first, *(f"  {_quoted(mine)} of training is {_quoted(theirs)} of {name}" for mine, theirs in pairs)]


def overlap_key(problem: str) -> str:
    """Return what two texts must share to be one problem: letters, digits and signs of arithmetic, lower case.

    Kept are whatever stands between two digits, and an operator beside a digit or beside a letter that stands alone.
    Blanks, punctuation, hyphens within words and the commas of thousands are not. A text with few letters
    ("4 +7 -8 =") is compared as it is.
    """
    text = _BOLD.sub("", _THOUSANDS.sub("", problem.lower().translate(_DASHES)))
    found = _KEPT.finditer(text)
    kept = "".join(match["words"] or match["sign"] or _NO_SIGN.sub("", match["gap"]) or " " for match in found)
    return kept if len(_NO_LETTER.sub("", kept)) >= _LETTERS_FOR_NORMALISED else content_id(problem)


def not_held_out(
    problems: Iterable[RawProblem],
    held_out: Mapping[str, tuple[str, str]],
    overlap: Mapping[str, SharedProblems],
    met: set[str],
) -> list[RawProblem]:
    """Return the problems that may train; count the rest.

    Args:
        problems: of a training source.
        held_out: overlap key -> name and text of a problem of a validation set.
        overlap: by that name.
        met: keys that were counted as a problem before.
    """
    kept = []
    for problem in problems:
        key = overlap_key(problem.words)
        if key not in held_out:
            kept.append(problem)
            continue
        name, text = held_out[key]
        shared = overlap[name]
        shared.records += 1
        shared.problems += key not in met
        shared.pairs.append((problem.words, text))
        met.add(key)
    return kept


def _quoted(text: str) -> str:
    return repr(visible(" ".join(text.split()), _WIDTH))
