r"""Read answers that are numbers, and compare them: exactly where both are exact, else to 1e-9 of their size.

Whole numbers, fractions, mixed numbers, decimals, powers of ten, percentages, amounts with a unit, and what arithmetic,
roots, factorials, ``\pi``, ``e``, logarithms and trigonometry make of them. Rational values are fractions; others are
intervals of 60 digits that hold the true value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, lru_cache
from math import comb, factorial, isqrt
from typing import Any

from dapo.rewards.compared_text import MAX_ANSWER
from dapo.rewards.units import Unit, read_unit, split_unit

TOLERANCE = Fraction(1, 10**9)  # of a decimal, relative to a value that no short decimal can be
_SHORT = 15  # significant digits of a fraction that a decimal is expected to hit exactly
_MOST_BITS = 200_000  # of a whole number that is computed
_MOST_BITS_SHOWN = 2_000  # of a whole number that is written out
_MOST_EXPONENT = 5_000  # of ten, in 1e-7
_MOST_COUNT = 5_000  # of a factorial
_BITS = 256  # of an interval's ends
_WIDEST = Fraction(1, 10**40)  # interval that still is a number

Value = Any  # Fraction, an interval of mpmath, or a float for an infinity


class NotNumber(Exception):
    """A text is no number, or none that is computed here."""


class TooLarge(Exception):
    """A number has too many digits to be computed."""


@dataclass(frozen=True, slots=True)
class Number:
    """A number that an answer is.

    Attributes:
        value: the exact fraction, an interval, or a float for an infinity.
        decimal: it was written with a decimal point.
        literal: it was written as digits alone, perhaps times a power of ten.
        percent: a percent sign followed.
        unit: what followed otherwise.
    """

    value: Value
    decimal: bool = False
    literal: bool = False
    percent: bool = False
    unit: Unit | None = None

    def equals(self, other: Number) -> bool:
        """Whether two numbers are the same. 50 % is 50 as well as 1/2; a unit may be left out, but not be another."""
        if self.unit is not None and other.unit is not None and self.unit.differs(other.unit):
            return False
        if self.percent != other.percent:
            part, whole = (self, other) if self.percent else (other, self)
            if whole.unit is not None:
                return False
            return whole.same_value(part) or whole.same_value(part.divided(100))
        return self.same_value(other)

    def divided(self, by: int) -> Number:
        """Return the number over ``by``."""
        return Number(self.value / by, self.decimal, self.literal)

    def same_value(self, other: Number) -> bool:
        """Whether the values are equal, whatever sign or unit follows them."""
        ours, theirs = self.value, other.value
        if isinstance(ours, float) or isinstance(theirs, float):
            return isinstance(ours, float) and isinstance(theirs, float) and ours == theirs
        if not isinstance(ours, Fraction) or not isinstance(theirs, Fraction):
            if self.decimal or other.decimal:
                return _close(_middle(ours), _middle(theirs))
            return 0 in _wide(ours) - _wide(theirs)
        if ours == theirs:
            return True
        if not (self.decimal or other.decimal) or (self.literal and other.literal):
            return False
        return not (_is_short(ours) and _is_short(theirs)) and _close(ours, theirs)

    @property
    def place(self) -> float | Fraction:
        """Return the value as a point on the line of numbers."""
        return self.value if isinstance(self.value, float) else _middle(self.value)

    @property
    def counted(self) -> str:
        """Return the words of the unit: what the number counts; "" for none."""
        return "" if self.unit is None else self.unit.words

    @property
    def vote(self) -> str | None:
        """The value as text, equal for equal fractions; None for others."""
        if not isinstance(self.value, Fraction) or self.percent:
            return None
        size = max(self.value.numerator.bit_length(), self.value.denominator.bit_length())
        return str(self.value) if size <= _MOST_BITS_SHOWN else None


def _close(ours: Fraction, theirs: Fraction) -> bool:
    return abs(ours - theirs) <= TOLERANCE * max(abs(ours), abs(theirs))


def _is_short(value: Fraction) -> bool:
    """Return whether a decimal of few digits writes the value exactly."""
    top, below = abs(value.numerator), value.denominator
    twos = fives = 0
    while below % 2 == 0:
        below, twos = below // 2, twos + 1
    while below % 5 == 0:
        below, fives = below // 5, fives + 1
    if below != 1 or max(twos, fives, top.bit_length()) > _MOST_BITS_SHOWN:
        return False
    return len(str(top * 10 ** max(twos, fives) // value.denominator).rstrip("0")) <= _SHORT


# ---------------------------------------------------------------------- intervals


@cache
def _intervals() -> Any:
    """Return mpmath's intervals, in a context of their own: sympy changes the precision of the shared one."""
    from mpmath.ctx_iv import MPIntervalContext

    made = MPIntervalContext()
    made.prec = _BITS
    return made


def _wide(value: Value) -> Any:
    """Return a value as an interval."""
    if isinstance(value, Fraction):
        return _intervals().mpf(value.numerator) / _intervals().mpf(value.denominator)
    return value


def _middle(value: Value) -> Fraction:
    return value if isinstance(value, Fraction) else _size(value.mid)


def _size(point: Any) -> Fraction:
    """Return an interval's middle or width as a fraction.

    Raises:
        ValueError: it is infinite.
    """
    sign, digits, exponent, _ = point._mpi_[0]
    if not digits and exponent:
        raise ValueError("infinite")
    size = Fraction(int(digits)) * Fraction(2) ** int(exponent)
    return -size if sign else size


# ---------------------------------------------------------------------- reading

_DIGITS = r"(?:\d+(?:\.\d*)?|\.\d+)"
_REPEATING = r"(?:\\(?:overline|bar|dot)\s*\{?(?P<again>\d+)\}?)"
_NUMBER = rf"(?P<number>{_DIGITS}){_REPEATING}?(?P<ten>[eE][-+]?\d+(?![\w.]))?"
_TOKEN = re.compile(rf"\s*(?:{_NUMBER}|(?P<command>\\[A-Za-z]+)|(?P<word>[A-Za-z]+)|(?P<sign>\\.|.))")
_COMMAS = re.compile(r"(?<![\d.])(\d{1,3}(?:,\d{3})+)(?![\d,])")
_LITERAL = re.compile(rf"[-+ ]*{_DIGITS}(?:[eE][-+]?\d+|\s*\*\s*10\s*\^\s*(?:\{{\s*-?\s*\d+\s*\}}|-?\d+))?")
_INFINITY = re.compile(r"([-+]?)\s*(?:\\infty|\\infin|infinity|inf|oo)")
_CURRENCY = re.compile(
    r"([-+]?)\s*(\$|US\$|\u20ac|\u00a3|\u00a5|\u20b9|\\euro|\\pounds|USD|EUR|INR|Rs\.?)\s*(?=[-+.\d\\])"
)
_TEMPERATURE = re.compile(r"(\^\\circ|(?<=[\d ])deg(?:ree)?s?) ?([CFK])$")
_SCALES = {"C": "celsius", "F": "fahrenheit", "K": "kelvin"}
_FUNCTIONS = frozenset(("sin", "cos", "tan", "cot", "sec", "csc", "ln", "log", "exp"))
_ANGLES = re.compile(r"sin|cos|tan|cot|sec|csc")
_PLAIN_WORDS = _FUNCTIONS | {"pi", "e", "sqrt"}


@lru_cache(maxsize=4096)
def read_number(text: str) -> Number | None:
    """Return the number that an answer in ``plain`` spelling is; None for anything else.

    Raises:
        TooLarge: it is one, with more digits than are computed.
    """
    if not text or len(text) > MAX_ANSWER:
        return None
    infinite = _INFINITY.fullmatch(text)
    if infinite:
        return Number(float(infinite[1] + "inf"))
    text = _TEMPERATURE.sub(lambda match: f"{match[1]} {_SCALES[match[2]]}", text)
    unit = None
    currency = _CURRENCY.match(text)
    if currency:
        unit, text = read_unit(currency[2]), currency[1] + text[currency.end() :]
    found = _without_unit(text)
    if found is None:
        split = split_unit(text)
        found = None if split is None else _without_unit(split[0])
        if split is None or found is None or found.percent:
            return None
        unit_after = split[1]
        if unit_after.factor != 1:
            found = Number(found.value * unit_after.factor, found.decimal, found.literal)
        unit = unit_after if unit_after.name or unit is None else unit
    return found if unit is None else Number(found.value, found.decimal, found.literal, found.percent, unit)


def _without_unit(text: str) -> Number | None:
    percent = text.endswith("%")
    text = text[:-1].rstrip() if percent else text
    degrees = text.endswith(r"^\circ") and not _ANGLES.search(text)
    text = text.removesuffix(r"^\circ").rstrip() if degrees else text
    if "(" not in text and "[" not in text and "{" not in text.replace(r"\overline{", ""):
        text = _COMMAS.sub(lambda match: match[1].replace(",", ""), text)
    reader = _Reader(text)
    try:
        value = reader.whole()
        if not isinstance(value, Fraction) and _size(value.delta) > _WIDEST * max(Fraction(1), abs(_middle(value))):
            return None
    except (NotNumber, ZeroDivisionError, ValueError, RecursionError):
        return None
    unit = read_unit("degrees") if degrees else None
    return Number(value, reader.decimal, _LITERAL.fullmatch(text) is not None, percent, unit)


class _Reader:
    """Computes a text of arithmetic from left to right, by recursive descent.

    Raises:
        NotNumber: it is none.
        TooLarge: a whole number would have too many digits.
    """

    def __init__(self, text: str) -> None:
        self.decimal = False
        self._tokens = [match for match in _TOKEN.finditer(text) if match[0].strip()]
        self._kinds = [
            match.lastgroup if match.lastgroup not in ("ten", "again") else "number" for match in self._tokens
        ]
        self._at = 0
        self._angle = False  # within the argument of a function of angles

    def whole(self) -> Value:
        value = self._sum()
        if self._at < len(self._tokens):
            raise NotNumber
        return value

    # ------------------------------------------------------------------ tokens

    def _peek(self, ahead: int = 0) -> str:
        """Return the next token's text; "" at the end."""
        at = self._at + ahead
        return self._tokens[at][0].strip() if at < len(self._tokens) else ""

    def _take(self, *expected: str) -> bool:
        found = self._peek() in expected
        self._at += found
        return found

    def _need(self, expected: str) -> None:
        if not self._take(expected):
            raise NotNumber

    def _is_number(self, ahead: int = 0) -> bool:
        at = self._at + ahead
        return at < len(self._tokens) and self._kinds[at] == "number"

    # ------------------------------------------------------------------ grammar

    def _sum(self) -> Value:
        value = self._product()
        while True:
            if self._take("+"):
                value = _sized(_add(value, self._product()))
            elif self._take("-"):
                value = _sized(_add(value, -self._product()))
            else:
                return value

    def _product(self) -> Value:
        if self._take("-"):
            return -self._product()
        if self._take("+"):
            return self._product()
        value = self._power()
        while True:
            if self._take("*"):
                value = _sized(_multiply(value, self._signed_power()))
            elif self._take("/"):
                value = _sized(_divide(value, self._signed_power()))
            elif self._begins_factor():
                value = _sized(_multiply(value, self._power()))
            else:
                return value

    def _begins_factor(self) -> bool:
        """Return whether the next token may follow a factor without a sign; a number may not: "1 2" is no product."""
        next_one = self._peek()
        return (
            next_one in ("(", r"\frac", r"\sqrt", r"\pi", r"\binom", "{")
            or next_one in _PLAIN_WORDS
            or (next_one[:1] == "\\" and next_one[1:] in _FUNCTIONS)
        )

    def _signed_power(self) -> Value:
        return -self._signed_power() if self._take("-") else self._power()

    def _power(self) -> Value:
        value = self._after(self._primary())
        if not self._take("^"):
            return value
        return _sized(_raise(value, self._exponent()))

    def _after(self, value: Value) -> Value:
        """Apply signs that follow a value: a factorial, and degrees within a function of angles."""
        while True:
            if self._take("!"):
                if self._peek() == "!":  # a double factorial
                    raise NotNumber
                value = Fraction(factorial(_count(value)))
            elif self._angle and self._peek() == "^" and self._peek(1) == r"\circ":
                self._at += 2
                value = _wide(value) * _intervals().pi / 180
            else:
                return value

    def _exponent(self) -> Value:
        if self._take("{"):
            return self._closed("}")
        if self._take("("):
            return self._closed(")")
        return self._signed_power()

    def _closed(self, bracket: str) -> Value:
        value = self._sum()
        self._need(bracket)
        return value

    def _primary(self) -> Value:
        if self._is_number():
            return self._mixed(self._number())
        if self._take("("):
            return self._closed(")")
        if self._take("{"):
            return self._closed("}")
        if self._take(r"\frac"):
            return _sized(_divide(self._argument(), self._argument()))
        if self._take(r"\sqrt", "sqrt"):
            index = Fraction(2)
            if self._take("["):
                index = self._closed("]")
            return _root(self._argument(), _count(index))
        if self._take(r"\binom"):
            top, below = _count(self._argument()), _count(self._argument())
            return Fraction(comb(top, below))
        if self._take(r"\pi", "pi"):
            return +_intervals().pi
        if self._take("e"):
            return +_intervals().e
        name = self._peek().removeprefix("\\")
        if name in _FUNCTIONS:
            self._at += 1
            return self._function(name)
        raise NotNumber

    def _number(self) -> Fraction:
        match = self._tokens[self._at]
        self._at += 1
        digits, again, ten = match["number"], match["again"], match["ten"]
        if again is None and "." in digits.rstrip("."):
            self.decimal = True
        value = Fraction(digits.rstrip("."))
        if again is not None:
            places = len(digits.partition(".")[2])
            if "." not in digits:
                raise NotNumber
            value += Fraction(int(again), (10 ** len(again) - 1) * 10**places)
        if ten is not None:
            exponent = int(ten[1:])
            if abs(exponent) > _MOST_EXPONENT:
                raise TooLarge
            value *= Fraction(10) ** exponent
        return value

    def _mixed(self, whole: Fraction) -> Value:
        r"""Return the mixed number that begins here, such as ``1 1/4`` or ``1\frac14``, or the number itself."""
        if whole.denominator != 1:
            return whole
        if self._is_number() and self._peek(1) == "/" and self._is_number(2):
            part = self._number()
            self._need("/")
            part /= self._number()
        elif self._peek() == r"\frac":
            before = self._at
            self._take(r"\frac")
            part = _divide(self._argument(), self._argument())
            if not isinstance(part, Fraction) or not 0 < part < 1:  # a product
                self._at = before
                return whole
        else:
            return whole
        if not 0 < part < 1:
            raise NotNumber
        return whole + part

    def _argument(self) -> Value:
        """Return the argument of a command: what is in brackets, or one number or command."""
        if self._take("{"):
            return self._closed("}")
        if self._take("("):
            return self._closed(")")
        return self._number() if self._is_number() else self._primary()

    def _function(self, name: str) -> Value:
        base: Value = None
        power = Fraction(1)
        if name == "log":
            self._need("_")
            base = self._argument()
        if self._take("^"):
            power = self._exponent()
            if power == -1:  # an inverse function
                raise NotNumber
        outside, self._angle = self._angle, name not in ("ln", "log", "exp")
        bracketed = self._peek() in ("(", "{")
        value = self._after(self._primary()) if bracketed else self._unbracketed()
        self._angle = outside
        return _sized(_raise(_apply(name, value, base), power))

    def _unbracketed(self) -> Value:
        r"""Return the argument of ``\sin 2\pi``: factors without a sign between them. ``\sin \pi/6`` is not decided."""
        if self._take("-"):
            return -self._unbracketed()
        value = self._power()
        while self._begins_factor() and self._peek().removeprefix("\\") not in _FUNCTIONS:
            value = _multiply(value, self._power())
        if self._peek() == "/":
            raise NotNumber
        return value


# ---------------------------------------------------------------------- arithmetic


def _sized(value: Value) -> Value:
    if isinstance(value, Fraction):
        bits = value.numerator.bit_length() + value.denominator.bit_length()
    else:
        bits = max(abs(exponent + length) for _, _, exponent, length in value._mpi_)
    if bits > _MOST_BITS:
        raise TooLarge
    return value


def _exponential(value: Value) -> Any:
    """Return ``e`` to a power. What has too many digits is not computed: mpmath takes time by their number."""
    wide = _wide(value)
    if not wide.a > -_MOST_BITS or not wide.b < _MOST_BITS:
        raise TooLarge
    return _intervals().exp(wide)


def _add(one: Value, other: Value) -> Value:
    both = isinstance(one, Fraction) and isinstance(other, Fraction)
    return one + other if both else _wide(one) + _wide(other)


def _multiply(one: Value, other: Value) -> Value:
    both = isinstance(one, Fraction) and isinstance(other, Fraction)
    return one * other if both else _wide(one) * _wide(other)


def _divide(one: Value, other: Value) -> Value:
    both = isinstance(one, Fraction) and isinstance(other, Fraction)
    return one / other if both else _wide(one) / _wide(other)


def _count(value: Value) -> int:
    if not isinstance(value, Fraction) or value.denominator != 1 or value < 0:
        raise NotNumber
    if value > _MOST_COUNT:
        raise TooLarge
    return int(value)


def _raise(base: Value, exponent: Value) -> Value:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction):
        size = base.numerator.bit_length() + base.denominator.bit_length()
        if exponent.denominator == 1:
            if base in (0, 1, -1):
                return base ** abs(int(exponent) % 2 if base == -1 else int(exponent))
            if size * abs(exponent.numerator) > _MOST_BITS:
                raise TooLarge
            return base ** int(exponent)
        if exponent.denominator <= _MOST_COUNT and size * abs(exponent.numerator) <= _MOST_BITS:
            return _raise(_root(base, exponent.denominator), Fraction(exponent.numerator))
        raise NotNumber
    if isinstance(exponent, Fraction) and exponent.denominator == 1 and abs(exponent) <= _MOST_COUNT:
        return _wide(base) ** int(exponent)
    return _exponential(_logarithm(base) * _wide(exponent))


def _root(value: Value, index: int) -> Value:
    if index < 1:
        raise NotNumber
    if isinstance(value, Fraction):
        if value < 0:
            if index % 2 == 0:
                raise NotNumber
            return -_root(-value, index)
        top, below = _whole_root(value.numerator, index), _whole_root(value.denominator, index)
        if top is not None and below is not None:
            return Fraction(top, below)
    if index == 2:
        if not isinstance(value, Fraction) and not value.a >= 0:
            raise NotNumber
        return _intervals().sqrt(_wide(value))
    return _intervals().exp(_logarithm(value) / index)


def _whole_root(value: int, index: int) -> int | None:
    """Return the exact root of a whole number; None where there is none."""
    if index == 2:
        found = isqrt(value)
    elif value < 2:
        return value
    else:
        found = 1 << -(-value.bit_length() // index)
        while (better := ((index - 1) * found + value // found ** (index - 1)) // index) < found:
            found = better
    return found if found**index == value else None


def _logarithm(value: Value) -> Any:
    wide = _wide(value)
    if not wide.a > 0:
        raise NotNumber
    return _intervals().log(wide)


def _apply(name: str, value: Value, base: Value) -> Value:
    if name == "ln":
        return Fraction(0) if value == 1 else _logarithm(value)
    if name == "log":
        return _divide(_logarithm(value), _logarithm(base))
    made, wide = _intervals(), _wide(value)
    if name == "exp":
        return _exponential(wide)
    sine, cosine = made.sin(wide), made.cos(wide)
    top, below = {
        "sin": (sine, None),
        "cos": (cosine, None),
        "tan": (sine, cosine),
        "cot": (cosine, sine),
        "sec": (made.mpf(1), cosine),
        "csc": (made.mpf(1), sine),
    }[name]
    if below is not None and 0 in below:
        raise NotNumber
    return top if below is None else top / below
