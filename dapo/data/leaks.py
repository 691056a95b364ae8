"""Find training problems that are in a validation set: what two texts share that are one problem."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import regex  # as re, and it looks behind a text of any length

from dapo.config.faults import visible
from dapo.data.formats import RawProblem
from dapo.types.batch import content_id

_LETTERS_FOR_NORMALISED = 20
_LETTER = regex.compile(r"\p{L}")
_ALIKE = str.maketrans(
    dict.fromkeys("‐‑‒–—−", "-")
    | dict.fromkeys("‘’ʼ′", "'")
    | dict.fromkeys("“”", '"')
    | {"×": r"\times ", "·": r"\cdot ", "⋅": r"\cdot ", "÷": r"\div ", "√": r"\sqrt ", "±": r"\pm ", "π": r"\pi "}
    | {"≤": r"\le ", "≥": r"\ge ", "≠": r"\ne ", "∈": r"\in ", "∉": r"\notin ", "∪": r"\cup ", "∩": r"\cap "}
    | {"∞": r"\infty ", "°": r"^\circ ", "→": r"\to ", "∠": r"\angle ", "θ": r"\theta ", "α": r"\alpha "}
)
_RAISED = {"<super>": "^", "<sub>": "_"}
_KEPT = ("<circle>", "<font>", "<square>")  # a letter of another font is another letter

_FUNCTION = r"(?!(?:a?(?:rc)?(?:sin|cos|tan|cot|sec|csc)|log|exp|sqrt|gcd|lcm|max|min|det|mod)h?\b)"
_WORD = rf"{_FUNCTION}\p{{L}}{{3}}"  # the beginning of a word, which is no product and no function
_STEPS = [
    (regex.compile(pattern), put)
    for pattern, put in (
        (r"\p{Cf}", ""),
        (r"(?<![\d({\[.,])\d{1,3}(?:\{?,\}?\d{3})+(?![\d)}\]]|,\d)", lambda found: regex.sub("[{,}]", "", found[0])),
        (r"(?<![\w*])\*\*(?=[^\s*])([^*]+)(?<=\S)\*\*(?![\w*])", r"\1"),  # bold
        (rf"(?<=\p{{L}}{{2}})-(?=\p{{L}})|(?<=[\p{{L}}\d]\$?)-(?={_WORD})", " "),
        (r"\\(?:left|right|middle|[bB]igg?[lr]?|(?:display|text)style)(?![A-Za-z])\.?", ""),
        (r"(?<!\\)(?:\\[()\[\]]|\$)|\\[,;:! ]|\\q?quad(?![A-Za-z])|~", " "),
        (r"\\text(?:bf|it|rm)?\s*\{([^{}]*)\}", r" \1 "),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\(le|ge|ne)q(?:slant)?(?![A-Za-z])", r"\\\1"),
        (r"(\\[A-Za-z]+)\s*", r"\1 "),
        (r"(?<=[\^_}]|\\[A-Za-z]+ )\{\s*([\p{L}\d])\s*\}", r"\1"),
        (r"(?<=\p{L})'(?=(?:[stdm]|re|ve|ll)\b)|(?<=\p{L}{2}\p{Ll})['\"]|(?<!\S)['\"](?=\p{L}{3})", ""),
        (rf"(?<=\p{{L}}{{2}}\p{{Ll}}\)?)[.,;:?!]+|[.,;:?][.,;:?!]*(?=\s+{_WORD}|\s*$|\p{{Lu}}\p{{Ll}}{{2}})", " "),
        (r"(?<=\s)!(?=\s|$)", ""),
        # Letters alone are variables, whose case counts, and so is that of commands: \Delta.
        (r"\\?\p{L}{2,}|\b[AI](?=\s+\p{L}{2})", lambda found: found[0] if found[0][0] == "\\" else found[0].lower()),
        (r"\s+", " "),
        (r"(?<![\p{L}\p{N}]) | (?![\p{L}\p{N}])", ""),
    )
]
"""Take away layout and one of two spellings. What no step names belongs to a problem."""
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
            f"overlap     {self.problems:,} problems of {name} were in the training data, in {self.records:,} of its "
            "records, which were taken out"
        )
        pairs = list(dict.fromkeys(pair for pair in self.pairs if pair[0] != pair[1]))[:_SHOWN]
        return [first, *(f"  {_quoted(mine)} of training is {_quoted(theirs)} of {name}" for mine, theirs in pairs)]


def overlap_key(problem: str) -> str:
    r"""Return what two texts must share to be one problem.

    Not kept are blanks, dollar signs, ``\left``, bold, punctuation of sentences, hyphens within words, commas of
    thousands and the case of words. All else is, so that two problems that ask different things differ. A text with few
    letters ("4 +7 -8 =") is compared as it is.
    """
    text = problem if problem.isascii() else _normalised(problem)
    for pattern, put in _STEPS:
        text = pattern.sub(put, text)
    return text if len(_LETTER.findall(text)) >= _LETTERS_FOR_NORMALISED else content_id(problem)


def _normalised(text: str) -> str:
    """Return a text in Unicode NFKC. Powers, indices and fractions stay what they are: x² is no x2."""
    made, before = [], ""
    for sign in unicodedata.normalize("NFC", text):
        tag = unicodedata.decomposition(sign).partition(" ")[0]
        raised = _RAISED.get(tag, "")
        if raised != before:
            made.append(("}" if before else "") + (raised and raised + "{"))
            before = raised
        if tag == "<fraction>":
            made.append(" ")
        italic = tag == "<font>" and "MATHEMATICAL ITALIC" in unicodedata.name(sign, "")
        made.append(unicodedata.normalize("NFKC", sign) if italic or tag not in _KEPT else sign)
    return "".join([*made, "}" if before else ""]).translate(_ALIKE).replace("\u2044", "/")


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
