r"""Read answers of several numbers that words, colons or prime marks join.

``5 ft 3 in``, ``1:20``, ``5^\circ 30'``, ``7 R 2``, ``3 out of 4``. They are no products of numbers and letters, so
their numbers and words are compared in order.
"""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import pairwise

from dapo.rewards.units import NO_WORDS, spelt_alike

_NUMBER = (
    r"(?:\d+ ?)?\\frac\{(?P<top>\d+)\}\{(?P<below>\d+)\}"
    r"|\d+ \d+/\d+|\d+/\d+|\d{1,3}(?:,\d{3}){1,20}(?![\d,])|\d+(?:\.\d+)?|\.\d+"
)
_PIECE = re.compile(
    rf"\s*(?:(?P<number>(?<![\d.])-?(?:{_NUMBER}))|(?P<word>[A-Za-z]\.[A-Za-z](?![A-Za-z])\.?|[A-Za-z]+\.?)"
    r"|(?P<mark>''|[:'\"]|\^\\circ|\^ ?\{? ?(?:\\prime ?){1,2}\}?)|(?P<comma>,))\s*"
)
_MARKS = {'"': "''"}
_JOINING = frozenset(("and", "or", ","))
_LETTERS = frozenset("smhgdlRNSEW")  # words of one letter: other letters are variables
_MOST_PIECES = 40

Piece = Fraction | str


def read_amounts(text: str) -> list[Piece] | None:
    """Return the numbers and words of an answer in ``plain`` spelling, in order; None for anything else.

    Needed are two numbers, and a word, a colon or a prime mark between two of them. Lists (``3, 5 and 7``) have none.
    """
    pieces: list[Piece] = []
    at = 0
    while at < len(text):
        piece = _PIECE.match(text, at)
        if piece is None or len(pieces) == _MOST_PIECES:
            return None
        read = _read_piece(piece)
        if read is None:
            return None
        pieces.append(read)
        at = piece.end()
    kinds = ["n" if isinstance(piece, Fraction) else "," if piece in _JOINING else "w" for piece in pieces]
    if kinds.count("n") < 2 or ("n", "n") in pairwise(kinds):
        return None
    first, last = kinds.index("n"), len(kinds) - kinds[::-1].index("n")
    return pieces if "w" in kinds[first:last] else None


def _read_piece(piece: re.Match[str]) -> Piece | None:
    if piece["number"]:
        return _read_number(piece)
    if piece["word"]:
        word = piece["word"].replace(".", "")
        if word.lower() in NO_WORDS or (len(word) == 1 and word not in _LETTERS):
            return None
        return spelt_alike(word)
    mark = (piece["mark"] or ",").replace(" ", "").strip("^{}")
    primes = mark.count(r"\prime")
    return "'" * primes if primes else _MARKS.get(mark, mark)


def _read_number(piece: re.Match[str]) -> Fraction | None:
    text = piece["number"].removeprefix("-")
    if piece["top"]:
        whole, part = text.partition("\\")[0].strip(), (piece["top"], piece["below"])
    else:
        whole, _, rest = text.replace(",", "").rpartition(" ")
        part = (rest.partition("/")[0], rest.partition("/")[2] or "1")
    if not int(part[1]):
        return None
    value = Fraction(whole or 0) + Fraction(part[0]) / int(part[1])
    return -value if piece["number"].startswith("-") else value


def same_amounts(ours: list[Piece], golden: list[Piece]) -> bool:
    """Whether both name the same numbers and words in order. What follows the last number may be left out."""
    left, right = ([piece for piece in side if piece not in _JOINING] for side in (ours, golden))
    if left == right:
        return True
    bare = [_without_tail(side) for side in (left, right)]
    return bare[0] == bare[1] and (bare[0] == left or bare[1] == right)


def is_list(pieces: list[Piece]) -> bool:
    """Whether commas, "and" or "or" separate amounts, which then may come in any order."""
    return any(piece in _JOINING for piece in pieces)


def is_ratio(pieces: list[Piece]) -> bool:
    """Whether colons alone join the numbers."""
    return all(isinstance(piece, Fraction) or piece == ":" for piece in pieces)


def _without_tail(pieces: list[Piece]) -> list[Piece]:
    end = len(pieces)
    while not isinstance(pieces[end - 1], Fraction):
        end -= 1
    return pieces[:end]
