r"""Compare formulas: math-verify reads them, and two formulas are equal that have the same values.

Numbers that ``dapo.rewards.numbers`` reads never come here. What has no value at a point (relations, sets, matrices,
sums with a symbolic bound) is compared by math-verify.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

from dapo.rewards.numbers import TooLarge

_EXPONENT = re.compile(r"\^\s*(-?\d\d+|-\d|\([^(){}]*\))")
_PLAIN_ROOT = re.compile(r"(?<![\\A-Za-z])sqrt\s*\(([^()]*)\)")
_SLOPPY_ROOT = re.compile(r"\\sqrt\s*\(([^()]*)\)")
_PLAIN_NAME = re.compile(r"(?<![\\A-Za-z])(sin|cos|tan|cot|sec|csc|ln|log|exp|pi|theta|alpha|beta|infty)(?![A-Za-z])")
_LETTER = re.compile(
    r"(?:(?P<greek>\\(?:Gamma|Delta|Theta|Lambda|Xi|Pi|Sigma|Phi|Psi|Omega)(?![A-Za-z]))"
    r"|\\(?:mathbb|mathcal) ?\{?[A-Z]|\\[A-Za-z]+|(?P<capital>[A-Z])|(?P<small>[a-z]))"
    r"(?:(?<=[A-Za-z])_(?:\{(?P<index>\w+)\}|(?P<sign>\w)))?"
)
_LOGARITHM = re.compile(r"\\log(?![A-Za-z])(?! *_) ?(?P<power>\^ ?(?:\{[^{}]*\}|\S))?")
"""One without a base, which is neither the natural nor any other."""
_POINTS = (  # of the symbols, in the order of their names; as fractions
    ("13/11", "29/17", "7/19", "41/23", "3/7", "17/13", "5/29", "31/37"),
    ("5/3", "11/31", "43/13", "2/23", "47/29", "8/11", "23/7", "19/41"),
    ("-17/13", "-3/31", "-37/11", "-19/7", "-2/29", "-43/17", "-11/23", "-5/13"),
    ("-7/23", "31/19", "-29/41", "13/3", "-47/37", "2/17", "-53/31", "59/43"),
)
_WHOLE_POINTS = (("3", "5", "2", "7", "4", "9", "6", "8"), ("4", "7", "3", "2", "6", "5", "9", "11"))
_DIGITS = 60
_MOST_BITS = 20_000  # of a value
_MOST_PARTS = 200  # of a relation, a set or a matrix that is compared; a fifth with an integral or a sum


def same_form(answer: str, gold: str) -> bool:
    """Whether two formulas in ``plain`` spelling are the same. math-verify may take long over a relation or a set."""
    from mpmath import workdps

    try:
        both = any(_has_both_cases(text) for text in (answer, gold))
        golden, ours = (_parse(_with_case(text, both)) for text in (gold, answer))
        if not golden or not ours:
            return False
        with workdps(_DIGITS):  # values would be rounded to 15 digits
            found = _same_values(ours[0], golden[0])
        if found is None:
            return _is_small(ours[0]) and _is_small(golden[0]) and _verified(ours, golden)
        return found
    except (RecursionError, TooLarge):
        return False


def _has_both_cases(text: str) -> bool:
    """Return whether a formula names two variables by one letter, such as R and r."""
    found = list(_LETTER.finditer(text))
    capital, small = ({letter[name] for letter in found} - {None} for name in ("capital", "small"))
    return any(letter.lower() in small for letter in capital)


def _with_case(text: str, latin: bool) -> str:
    r"""Write ``\Delta``, and R where ``latin``, as other variables than the small letters that math-verify reads."""

    def small(found: re.Match[str]) -> str:
        letter = found["greek"] or (found["capital"] if latin else None)
        return found[0] if letter is None else f"{letter.lower()}_{{91{found['index'] or found['sign'] or ''}}}"

    return _LETTER.sub(small, text)


def _is_small(one: Any) -> bool:
    """Return whether math-verify may simplify an expression, which takes time by its depth, and by its integrals."""
    from sympy import Basic, preorder_traversal

    parts = list(preorder_traversal(one)) if isinstance(one, Basic) else []
    return len(parts) <= (_MOST_PARTS if all(map(_has_values, parts[:1])) else _MOST_PARTS // 5)


@lru_cache(maxsize=4096)
def _parse(text: str) -> Any:
    from math_verify import LatexExtractionConfig, parse

    text = _PLAIN_ROOT.sub(r"\\sqrt{\1}", _SLOPPY_ROOT.sub(r"\\sqrt{\1}", text))
    text = _PLAIN_NAME.sub(r"\\\1 ", _EXPONENT.sub(r"^{\1}", text))
    text = _LOGARITHM.sub(lambda found: rf"\xi{found['power'] or ''} \ln{found['power'] or ''} ", text)
    text = text.replace("*", r"\cdot ").replace("%", r"\%")
    # A box makes math-verify read the whole answer: "41 or 42" becomes a set, never the 42 in it. Without its alarm,
    # which works in a main thread only; the worker's own time limit takes its place.
    return parse(
        f"\\boxed{{{text}}}",
        [LatexExtractionConfig(boxed_match_priority=0)],
        fallback_mode="no_fallback",
        parsing_timeout=None,
    )


def _verified(ours: Any, golden: Any) -> bool:
    from math_verify import verify

    return bool(verify(golden, ours, float_rounding=12, numeric_precision=_DIGITS, timeout_seconds=None))


def _same_values(ours: Any, golden: Any) -> bool | None:
    """Whether two expressions have the same real values at a few points, or complex ones if they name the imaginary
    unit; None where that is not known."""
    from sympy import Expr, Float, I

    if not all(isinstance(one, Expr) and _has_values(one) for one in (ours, golden)):
        return None
    names = sorted({symbol.name for one in (ours, golden) for symbol in one.free_symbols})
    if len(names) > len(_POINTS[0]):
        return None
    imaginary = ours.has(I) or golden.has(I)
    tolerance = 1e-9 if ours.has(Float) or golden.has(Float) else 10 ** -(_DIGITS - 15)
    zero = any(one.is_Number and one.is_zero for one in (ours, golden))  # a sum is asked for too long
    for points in (_POINTS, _WHOLE_POINTS):
        seen = 0
        for point in points if names else points[:1]:
            values = [_value(one, dict(zip(names, point, strict=False))) for one in (ours, golden)]
            if any(value is None for value in values):
                continue
            left, right = values
            real = [abs(value.imag) <= 1e-20 * abs(value) for value in values]
            if not imaginary and not any(real):
                continue
            seen += 1
            near = tolerance * max(abs(left), abs(right)) + (10.0 ** (10 - _DIGITS) if zero else 0)
            if (not imaginary and not all(real)) or abs(left - right) > near:
                return False
        if seen >= (2 if names else 1):
            return True
    return None


def _has_values(one: Any) -> bool:
    from sympy import Derivative, Integral, Limit, Product, Sum
    from sympy.core.function import AppliedUndef

    return not one.has(AppliedUndef, Sum, Product, Integral, Limit, Derivative)


def _value(one: Any, point: dict[str, str]) -> Any:
    """Return an expression's value at a point; None where it has none.

    Raises:
        TooLarge: a part of it has more digits than are computed.
    """
    from sympy import Rational

    try:
        found = _computed(one, {symbol: Rational(point[symbol.name]) for symbol in one.free_symbols})
        value = found._to_mpmath(4 * _DIGITS)
    except TooLarge:
        raise
    except Exception:  # sympy raises whatever it meets
        return None
    import mpmath

    return mpmath.mpc(value) if mpmath.isfinite(value) else None


def _computed(one: Any, point: dict[Any, Any]) -> Any:
    """Return an expression's value, of each part once: the time of sympy's ``evalf`` doubles with each level."""
    parts = [_computed(part, point) for part in one.args]
    value = (one.func(*parts) if parts else point.get(one, one)).evalf(2 * _DIGITS)
    for number in value.as_real_imag():
        if number.is_Float and abs(number._mpf_[2] + number._mpf_[3]) > _MOST_BITS:
            raise TooLarge
    return value


def warm_up() -> None:
    """Import math-verify and its parser, so that the first response is not charged for it."""
    for name in ("math_verify", "latex2sympy2_extended"):
        logging.getLogger(name).setLevel(logging.ERROR)  # it warns once that its timeouts are off
    same_form(r"\frac{x}{3}", r"\frac{2x}{6}")
    _verified(_parse("x<3"), _parse("x<3"))
