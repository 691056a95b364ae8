r"""Read the surface of a mathematical answer: one spelling for many, brackets, lists, words.

``plain`` writes an answer in one spelling (``\dfrac``, ``\left(``, Unicode signs, ``\text{}``, spaces). The others take
texts in that spelling. All of them take time in proportion to the text.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from itertools import permutations

_SIGNS = str.maketrans(
    dict.fromkeys("\u2212\u2010\u2011\u2012\u2013\u2014\ufe63\uff0d", "-")
    | dict.fromkeys("\u00d7\u2a2f", r"\times ")
    | dict.fromkeys("\u00b7\u22c5\u2219\u2022", r"\cdot ")
    | {"\u00f7": "/", "\u2044": "/", "\u221a": r"\sqrt ", "\u221e": r"\infty ", "\u03c0": r"\pi ", "\u03b8": r"\theta "}
    | {"\u00b0": r"^\circ ", "\u2205": r"\emptyset ", "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne "}
    | {"\u2248": r"\approx ", "\u00b1": r"\pm ", "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in "}
    | {"\u27e8": r"\langle ", "\u27e9": r"\rangle "}
)
_RAISED = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b"
_EXPONENT = re.compile(f"[{_RAISED}]+")
_LOWERED = str.maketrans(_RAISED, "0123456789-")
_TEXT = re.compile(r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|sf)|mbox|operatorname)\s*\{([^{}]*)\}")
_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\,|\\!,?|,\\!)(?=\d{3}(?!\d))")
_SPELLINGS = [
    (re.compile(pattern), put)
    for pattern, put in (
        (
            r"\\(?:left|right|middle)(?![A-Za-z])\.?|\\[bB]igg?[lr]?(?![A-Za-z])|\\(?:display|text)style(?![A-Za-z])|(?<!\\)\\!",
            "",
        ),
        (r"\\q?quad(?![A-Za-z])", ","),  # a wide space separates
        (r"(?<!\\)\\[,;: ]|~", " "),
        (r"\\\\\s*$", ""),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\[dt]binom(?![A-Za-z])", r"\\binom"),
        (r"\\l(?:brace)(?![A-Za-z])", r"\\{"),
        (r"\\r(?:brace)(?![A-Za-z])", r"\\}"),
        (r"\*\*", "^"),
        (r"\\(?:cdot|times|ast)(?![A-Za-z])", "*"),
        (r"\\div(?![A-Za-z])", "/"),
        (r"\\leq?(?:slant)?(?![A-Za-z])|<=", r"\\le "),
        (r"\\geq?(?:slant)?(?![A-Za-z])|>=", r"\\ge "),
        (r"\\neq?(?![A-Za-z])|!=", r"\\ne "),
        (r"\\lt(?![A-Za-z])", "<"),
        (r"\\gt(?![A-Za-z])", ">"),
        (r"\\(?:varnothing|emptyset)(?![A-Za-z])|\\\{\s*\\\}", r"\\emptyset "),
        (r"\\degree(?![A-Za-z])|\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![A-Za-z])", r"^\\circ "),
        (r"\\%|(?<=[\d}])\s*per ?cent(?![a-z])", "%"),
        (r"\\\$", "$"),
        (r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", "*"),  # 6.022 x 10^23
        (r"(?<=\d),(?=\s*,)", ""),
        (r"\s+", " "),
        (r"^ ?(?i:the )?(?i:final )?(?i:answer is):? (?=\S)", ""),
        (r"^ ?(?:[A-Za-z] ?)?\\approx(?![A-Za-z])", ""),
        (r"^( ?-?\d+\.\d*)\((\d+)\)$", r"\1\\overline{\2}"),  # 0.(3)
    )
]
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"
_BARE = r"\s*(\d|[A-Za-z]|\\(?:pi|theta|alpha|beta|gamma|delta|lambda|mu|phi|omega|sigma)(?![A-Za-z]))"
_FIRST_ARGUMENT = re.compile(rf"\\(frac|binom|sqrt)(?![A-Za-z])\s*(\[[^\[\]]*\])?{_BARE}")
_SECOND_ARGUMENT = re.compile(rf"(\\(?:frac|binom)\s*{_GROUP}){_BARE}")
_BUILDER = re.compile(
    r"\\?\{ ?(?P<name>[A-Za-z]) ?(?:\\in ?(?:\\mathbb ?)?\{?R\}? ?)?(?:\||\\mid(?![A-Za-z])|:) ?"
    r"(?P<condition>(?=.*(?P=name)).+?) ?\\?\}"
)
"""A set of real numbers by its condition."""
_INTEGRAL = re.compile(r"\\(?:i+nt|oint)(?![A-Za-z])")
_BLANK_THOUSANDS = re.compile(r"[-+$ ]*\d{1,3}(?: \d{3}){1,6}(?![\d,/]| [\d\\])")
_OPENING = {"(": "(", "[": "[", r"\{": "{", r"\langle": "<"}
_CLOSING = {")": ")", "]": "]", r"\}": "}", r"\rangle": ">"}
_PIECE = re.compile(r"\\[A-Za-z]+|\\.|.", re.DOTALL)
_AND = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
_THOUSANDS_COMMA = re.compile(r"(?<!\d)\d{1,3}(?:,\d{3})+(?!\d)")


def plain(answer: str) -> str:
    """Return an answer in one spelling."""
    if not answer.isascii():
        answer = _EXPONENT.sub(lambda raised: f"^{{{raised[0].translate(_LOWERED)}}}", _vulgar(answer))
        answer = unicodedata.normalize("NFKC", answer.translate(_SIGNS))
    answer = _THOUSANDS.sub("", answer)
    answer = _TEXT.sub(r" \1 ", answer)
    for pattern, put in _SPELLINGS:
        answer = pattern.sub(put, answer)
    answer = _SECOND_ARGUMENT.sub(r"\1{\2}", _FIRST_ARGUMENT.sub(r"\\\1\2{\3}", answer))  # \frac ab
    answer = _DETERMINANT.sub(_expanded, answer)
    blanks = _BLANK_THOUSANDS.match(answer)
    if blanks:
        answer = blanks[0].replace(" ", "") + answer[blanks.end() :]
    answer = answer.rstrip(" .,;").lstrip(",; ")
    built = _BUILDER.fullmatch(answer)
    return answer if built is None else built["condition"]


def _vulgar(text: str) -> str:
    """Write characters such as a half as fractions."""
    made = []
    for sign in text:
        if unicodedata.decomposition(sign).startswith("<fraction>"):
            top, _, bottom = unicodedata.normalize("NFKC", sign).partition("\u2044")
            made.append(rf"\frac{{{top}}}{{{bottom or 1}}}")
        else:
            made.append(sign)
    return "".join(made)


def depth(text: str) -> int:
    """Return how deep brackets lie within each other. An integral, which takes a parser longer, counts as four."""
    deepest = level = 0
    for sign in text:
        level += (sign in "([{") - (sign in ")]}")
        deepest = max(deepest, level)
    return deepest + 4 * len(_INTEGRAL.findall(text))


def canonical(text: str) -> str:
    """Return a text in ``plain`` spelling without white space, except between two digits: "1 2" is not 12.

    The sign of a product of two letters goes too.
    """
    bare = re.sub(r"(?<!\d) | (?!\d)", "", re.sub(r"\{\s*(\w)\s*\}", r"{\1}", text)).replace("{,}", ",")
    return re.sub(r"(?<=[A-Za-z])\*(?=[A-Za-z])", "", bare)


# ---------------------------------------------------------------------- words

_WORDS = re.compile(
    r"[^\W\d_](?:[^\W_]|')*(?:_\{?[^\W_]+\}?[^\W_]*)*"
    r"(?:(?: |(?<=[^\W\d_]{2})-(?=[^\W\d_]{2}))(?:[^\W_]|')+)*"
)
_LETTERS = re.compile(r"(?<![\\A-Za-z])[^\W\d_]{4,}")
_NAMES = frozenset(("sqrt", "frac", "theta", "alpha", "beta", "gamma", "delta", "lambda", "infty", "arcsin", "arccos"))


def as_text(text: str) -> str | None:
    """Return an answer that is text, in one spelling; None for an expression.

    Letters and digits without an operator, a brace, a power or a leading coefficient are text: "xy" is, "2xy" and "x+y"
    are expressions. The case of single letters counts.
    """
    bare = text.strip(" .")
    if re.fullmatch(r"\([A-Za-z]\)|[A-Za-z]\)", bare):
        bare = bare.strip("()")
    if not _WORDS.fullmatch(bare):
        return None
    bare = re.sub(r"[_{}]", "", bare).replace("-", " ")
    return bare if len(bare) == 1 else bare.casefold()


def words_within(text: str) -> list[str]:
    """Return the words of four letters and more within a formula, sorted: they are no products of letters."""
    return sorted(word for word in map(str.lower, _LETTERS.findall(text)) if word not in _NAMES)


# ---------------------------------------------------------------------- brackets and lists


@dataclass(frozen=True, slots=True)
class Shape:
    """Brackets, or a bare list.

    Attributes:
        kind: the two brackets, such as "(]"; "" for a bare list.
        parts: what stands between them, split at commas.
        said: a bare list holds "and" or "or".
    """

    kind: str
    parts: tuple[str, ...]
    said: bool = False


def split_at(text: str, marks: str) -> list[str]:
    """Return the pieces of a text between marks (single characters, or one command) that are in no bracket."""
    pieces, depth, start = [], 0, 0
    for match in _PIECE.finditer(text):
        piece = match[0]
        if piece in _OPENING or piece == "{":
            depth += 1
        elif piece in _CLOSING or piece == "}":
            depth -= 1
        elif depth == 0 and (piece == marks if marks.startswith("\\") else piece in marks):
            pieces.append(text[start : match.start()].strip())
            start = match.end()
    return [*pieces, text[start:].strip()]


def read_shape(text: str) -> Shape | None:
    """Return the brackets around a text, or the bare list that it is; None for a single value."""
    whole = _bracketed(text)
    if whole is not None:
        return whole
    said = _AND.search(text) is not None
    listed = _AND.sub(",", text) if said else text
    if ", " in listed:  # commas between digits then are those of thousands
        listed = _THOUSANDS_COMMA.sub(lambda match: match[0].replace(",", ""), listed)
    parts = [part for part in split_at(listed, ",;") if part]
    return Shape("", tuple(parts), said) if len(parts) > 1 else None


def _bracketed(text: str) -> Shape | None:
    pieces = list(_PIECE.finditer(text))
    if len(pieces) < 2:
        return None
    first, last = pieces[0][0], pieces[-1][0]
    braces = first == "{" and last == "}"  # LaTeX without its backslashes
    if not braces and (first not in _OPENING or last not in _CLOSING):
        return None
    depth = 0
    for match in pieces[:-1]:
        depth += match[0] in _OPENING or match[0] == "{"
        depth -= match[0] in _CLOSING or match[0] == "}"
        if depth == 0:
            return None  # the first bracket closes before the end
    kind = "{}" if braces else _OPENING[first] + _CLOSING[last]
    return Shape(kind, tuple(split_at(text[pieces[0].end() : pieces[-1].start()], ",;")))


_RELATION = re.compile(r"\\le(?![A-Za-z])|\\ge(?![A-Za-z])|<|>")
_BOTH = re.compile(r"(?<![A-Za-z\\])and(?![A-Za-z])")
_VARIABLE = re.compile(r"\\?[A-Za-z]+(?:_\{?\w+\}?)?")


def read_interval(text: str) -> tuple[str, Shape] | None:
    r"""Return the variable and the interval of ``1 < x \le 2``, ``x > 3`` or ``x > 1 and x < 2``; None for others."""
    both = [read_inequality(part) for part in _BOTH.split(text, maxsplit=2)]
    if len(both) != 2:
        return both[0] if len(both) == 1 else None
    if both[0] is None or both[1] is None or both[0][0] != both[1][0]:
        return None
    (low, _), (_, high) = ends = both[0][1].parts, both[1][1].parts
    kinds = both[0][1].kind[0] + both[1][1].kind[1]
    if low == r"-\infty":
        (_, high), (low, _), kinds = *ends, both[1][1].kind[0] + both[0][1].kind[1]
    one_each = {part for pair in ends for part in pair} >= {r"-\infty", r"\infty"}
    return (both[0][0], Shape(kinds, (low, high))) if one_each else None


def read_inequality(text: str) -> tuple[str, Shape] | None:
    """Return the variable and the interval of one inequality, with one or two signs."""
    sides, signs = [side.strip() for side in _RELATION.split(text)], _RELATION.findall(text)
    if not 1 <= len(signs) <= 2 or not all(sides) or "=" in text:
        return None
    if len({sign in ("<", r"\le") for sign in signs}) != 1:  # 1 < x > 2
        return None
    if signs[0] in (">", r"\ge"):
        sides, signs = sides[::-1], [{">": "<"}.get(sign, r"\le") for sign in reversed(signs)]
    places = [number for number, side in enumerate(sides) if _VARIABLE.fullmatch(side) and side not in (r"\pi", "e")]
    if len(sides) == 3 and places == [1]:
        low, name, high, left, right = sides[0], sides[1], sides[2], signs[0], signs[1]
    elif len(sides) == 2 and places == [0]:
        low, name, high, left, right = r"-\infty", sides[0], sides[1], "<", signs[0]
    elif len(sides) == 2 and places == [1]:
        low, name, high, left, right = sides[0], sides[1], r"\infty", signs[0], "<"
    else:
        return None
    return name, Shape(("(" if left == "<" else "[") + (")" if right == "<" else "]"), (low, high))


_MATRIX = re.compile(r"\\begin\{([pbB]?matrix|array)\}(?:\{[^{}]*\})?(.*?)\\end\{\1\}", re.DOTALL)
_DETERMINANT = re.compile(
    r"(?P<before>\\det\s*\(?\s*|\|\s*)?\\begin\{(?P<kind>vmatrix|[pb]?matrix)\}(?P<rows>(?:(?!\\begin).)*?)"
    r"\\end\{(?P=kind)\}(?P<after>\s*[)|])?",
    re.DOTALL,
)
_DET = r"\det"
_LARGEST = 4  # rows of a determinant that is written out


def read_matrix(text: str) -> list[list[str]] | None:
    """Return the cells of a matrix, by row; None for anything else. A determinant (``vmatrix``) is none."""
    match = _MATRIX.fullmatch(text)
    return None if match is None or r"\begin" in match[2] else _cells(match[2])


def _cells(inside: str) -> list[list[str]]:
    return [[cell.strip() for cell in row.split("&")] for row in re.split(r"\\\\", inside) if row.strip()]


def _expanded(found: re.Match[str]) -> str:
    """Write a determinant as the sum of products that it is."""
    before, after = found["before"] or "", found["after"] or ""
    if before[-1:] + after[-1:] in ("()", "||"):
        before = after = ""
    elif found["kind"] != "vmatrix" and not before.startswith(r"\det"):
        return found[0]
    rows = _cells(found["rows"])
    size = len(rows)
    if not 0 < size <= _LARGEST or any(len(row) != size or not all(row) for row in rows):
        return found[0]
    terms = []
    for order in permutations(range(size)):
        odd = sum(order[i] > order[j] for i in range(size) for j in range(i + 1, size)) % 2
        terms.append("-+"[not odd] + "*".join(f"({row[column]})" for row, column in zip(rows, order, strict=True)))
    return f"{before.removeprefix(_DET)}({''.join(terms).removeprefix('+')}){after}"
