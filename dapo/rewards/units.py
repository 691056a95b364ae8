"""Units that follow a number in an answer, and amounts of money."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

_SPELLED = {
    "mm": "millimeter millimetre",
    "cm": "centimeter centimetre",
    "m": "meter metre",
    "km": "kilometer kilometre",
    "in": "inch inche",
    "ft": "foot feet",
    "yd": "yard",
    "mi": "mile",
    "s": "sec second",
    "min": "minute",
    "h": "hr hour",
    "day": "",
    "week": "wk",
    "month": "",
    "year": "yr",
    "mg": "milligram",
    "g": "gram",
    "kg": "kilogram kilo",
    "lb": "",
    "oz": "ounce",
    "ml": "milliliter millilitre",
    "l": "liter litre",
    "dollar": "$ us$ usd buck",
    "cent": "\u00a2",
    "euro": "\u20ac eur \\euro",
    "pound": "\u00a3 \\pounds gbp",
    "yen": "\u00a5",
    "rupee": "\u20b9 rs inr",
    "degree": "deg",
    "radian": "rad",
}
_SIDES = {  # what a number of years, hours, miles or degrees is counted from
    "am": "",
    "pm": "",
    "bc": "bce",
    "ad": "ce",
    "celsius": "centigrade",
    "fahrenheit": "",
    "kelvin": "",
    "north": "",
    "south": "",
    "east": "",
    "west": "",
}
_SIDE = {word: name for name, words in _SIDES.items() for word in (name, *words.split())}
_KNOWN = {word: name for name, words in _SPELLED.items() for word in (name, *words.split())}
_FACTORS = {"hundred": 100, "thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12}
_SINGLE = frozenset("msghLlNJWVAKCF")  # units of one letter
_CONDITIONS = (
    "and",
    "or",
    "not",
    "if",
    "is",
    "are",
    "of",
    "to",
    "than",
    "more",
    "less",
    "most",
    "least",
    "where",
    "when",
)
_OPERATIONS = (
    "over",
    "under",
    "about",
    "times",
    "plus",
    "minus",
    "for",
    "mod",
    "choose",
    "factorial",
    "remainder",
    "pi",
)
_NO_UNITS = frozenset((*_CONDITIONS, *_OPERATIONS))
_FUNCTIONS = ("sqrt", "sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp")
NO_WORDS = frozenset(("times", "plus", "minus", "over", "mod", "choose", "pi", *_FUNCTIONS))  # parts of a formula
_RAISE_NEXT = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISE_LAST = {"squared": 2, "cubed": 3}
_GENERAL = frozenset(("unit", *_RAISE_NEXT, *_RAISE_LAST))  # of any length, area or volume
_DIMENSIONS = frozenset((*_RAISE_NEXT, *_RAISE_LAST, "per"))

_PIECE = re.compile(
    r"(?P<word>[A-Za-z]+|[^\sA-Za-z\d.^{}*/\\-])|\^\s*\{?\s*(?P<power>-?\d)\s*\}?|(?P<over>/)",
)
_DOTTED = re.compile(r"(?i)(?<![A-Z])([abp])\. ?([cdm])(?![A-Z])\.?")  # p.m.
_SHORT_FOR = ((re.compile(r"\bmph\b"), "mi/h"), (re.compile(r"\b(?:kph|kmh)\b"), "km/h"))
_PLURALS = tuple(
    (re.compile(pattern), singular)
    for pattern, singular in (
        (r"^(?:people|persons)$", "person"),
        (r"^children$", "child"),
        (r"men$", "man"),
        (r"(?<=..)ies$", "y"),
        (r"(?<=ss|ch|sh)es$|(?<=x)es$", ""),
        (r"(?<=..[^s])s$", ""),
    )
)
_TAIL = re.compile(
    r"(?:(?<=[\s\d)}!])|(?<=\\circ))(?P<unit>(?:[A-Za-z$\u20ac\u00a3\u00a5\u20b9\u00a2]|\\euro|\\pounds)"
    r"[A-Za-z.$\u20ac\u00a3\u00a5\u20b9\u00a2 /*]*(?:\^\s*\{?\s*-?\d\s*\}?[A-Za-z. /*]*){0,3})$"
)


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit.

    Attributes:
        name: the one spelling of a unit that is known, with its powers; "" for others.
        factor: that the number before it is multiplied by: "3 million".
        words: all of its words, in one spelling.
        side: PM, BC, north, Celsius and the like; "" for none.
    """

    name: str = ""
    factor: int = 1
    words: str = ""
    side: str = ""

    def differs(self, other: Unit) -> bool:
        """Whether two units count different things: 2 wins and 2 losses. One may say more: 2 balls and 2 red balls."""
        if self.side and other.side and self.side != other.side:
            return True
        if self.name and other.name:
            return self.name != other.name
        ours, theirs = (set(unit.words.split()) - _GENERAL for unit in (self, other))
        return not (ours <= theirs or theirs <= ours)


def split_unit(text: str) -> tuple[str, Unit] | None:
    """Return what stands before a unit at the end of an answer, and the unit; None where there is none."""
    tail = _TAIL.search(text)
    unit = None if tail is None else read_unit(tail["unit"])
    if tail is None or unit is None:
        return None
    before = text[: tail.start()]
    glued = before[-1:].isdigit() or before[-1:] in ("}", ")", "!")
    if glued and ((not unit.name and unit.side not in ("am", "pm")) or tail["unit"] in _SINGLE):
        return None  # 5x and 5m are products
    return before.rstrip(), unit


@lru_cache(maxsize=1024)
def read_unit(text: str) -> Unit | None:
    """Return the unit that a text names; None if it may be something else, such as a variable or a condition."""
    text = _DOTTED.sub(r"\1\2", text)
    for short, long in _SHORT_FOR:
        text = short.sub(long, text)
    pieces = list(_PIECE.finditer(text))
    words = [piece["word"] for piece in pieces if piece["word"]]
    if not words or len(words) > 5 or _NO_UNITS & {word.lower() for word in words} - _DIMENSIONS:
        return None
    factor = _FACTORS.get(words[0].lower(), 1)
    words, pieces = words[factor != 1 :], pieces[factor != 1 :]
    if any(len(word) == 1 and word.isascii() and word.isalpha() and word not in _SINGLE for word in words):
        return None
    sides = [_SIDE[word.lower()] for word in words if word.lower() in _SIDE]
    spelt = [_SIDE.get(word.lower()) or spelt_alike(word) for word in words]
    return Unit(_name(pieces), factor, " ".join(spelt), "".join(sides))


def _name(pieces: list[re.Match[str]]) -> str:
    """Return the one spelling of a unit's words and powers; "" if a word is not known."""
    powers: dict[str, int] = {}
    last, sign, raised = "", 1, 1
    for piece in pieces:
        word = (piece["word"] or "").lower()
        power = int(piece["power"] or _RAISE_LAST.get(word, 0))
        if piece["over"] or word == "per":
            sign = -1
        elif power:
            powers[last] = powers.get(last, 0) * power
        elif word in _RAISE_NEXT:
            raised = _RAISE_NEXT[word]
        elif word not in _SIDE:
            last = _known(piece["word"] or "")
            powers[last] = powers.get(last, 0) + sign * raised
            sign = raised = 1
    return "" if "" in powers else " ".join(f"{name}^{power}" for name, power in sorted(powers.items()))


def _known(word: str) -> str:
    lower = word.lower()
    found = _KNOWN.get(lower) or _KNOWN.get(lower.removesuffix("s"))
    return found or ("" if len(lower) > 1 or lower in "cfk" else lower)


def spelt_alike(word: str) -> str:
    """Return a word in lower case and in the singular, a unit in its one spelling."""
    lower = word.lower()
    for pattern, singular in _PLURALS:
        lower = pattern.sub(singular, lower)
    return _known(word) or lower
