r"""Compare mathematical answers.

Numbers are decided by ``dapo.rewards.numbers``. Text equals text. Brackets of one kind never equal another kind; a bare
list equals the set of its elements, in any order. Formulas are compared by ``dapo.rewards.symbolic``.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from dapo.rewards import symbolic
from dapo.rewards.amounts import is_list, is_ratio, read_amounts, same_amounts
from dapo.rewards.compared_text import MAX_ANSWER, read_golds, vote_text
from dapo.rewards.latex import (
    Shape,
    as_text,
    canonical,
    depth,
    plain,
    read_interval,
    read_matrix,
    read_shape,
    split_at,
    words_within,
)
from dapo.rewards.marks import extract_answer, unwrap
from dapo.rewards.numbers import Number, TooLarge, read_number
from dapo.rewards.units import split_unit

_BASE = re.compile(r"\(?(\w+)\)?_\{?(\d+)\}?")
_NAMED = re.compile(
    r"(\\?[A-Za-z]+(?:_\{?\w+\}?|')?(?:\^\{?-1\}?)?(?:\([a-z](?:, ?[a-z])*\))?|\([A-Za-z](?:, ?[A-Za-z])+\)"
    r"|[a-wA-W]'?\(-?\d+(?:, ?-?\d+)*\)|(?:P|Pr|E|Var)(?:\([^()=]{1,40}\)|\[[^\[\]=]{1,40}\])"
    r"|m?\s?\\angle ?\{?[A-Z]{1,3}\}?|\\(?:overline|vec|overrightarrow|widehat) ?\{[A-Z]{1,3}\}"
    r"|\\frac\{d\w?\}\{d\w\})\s*"
    r"(?:=|\\in(?![A-Za-z]))\s*"
)
_NORMAL_FORM = re.compile(r"(?=[^=]*[-+^])(?=[^=]*(?<![\\A-Za-z])[A-Za-z])[^=]*=\s*0\s*")
_CHOICE = re.compile(r"(?:\((?P<letter>[A-J])\)|(?P<bare>[A-J])[).:]) +(?P<value>\S.*)")
_AND = re.compile(r"(?<![A-Za-z\\])and(?![A-Za-z])")
_RELATION = re.compile(r"[<>]|\\[lg]e(?![A-Za-z])")
_POINT = re.compile(r"(\([A-Za-z](?:, ?[A-Za-z])+\)) ?= ?\(")
_OR = re.compile(r"(?<![A-Za-z\\])or(?![A-Za-z])")
_SEVERAL_SETS = re.compile(r"\\(?:cup|cap|setminus|backslash)(?![A-Za-z])")
_DEEPEST = 20  # brackets within each other, above which only equal texts are equal
_MOST_PAIRS = 12  # formulas of a list that are compared with each of another list


def same_answer(answer: str, gold: str) -> bool:
    """Whether two answers (without their marks) are the same mathematical object.

    Nested brackets and integrals are bounded before a formula is read, and a formula is evaluated once at each point.
    Relations and sets that math-verify simplifies have no other limit than their size and that of a reward's worker.
    """
    if len(answer) > MAX_ANSWER:
        return False
    ours, golden = plain(answer), plain(gold)
    if max(depth(ours), depth(golden)) > _DEEPEST:
        return canonical(ours) == canonical(golden)
    return _same(ours, golden)


def _same(answer: str, gold: str) -> bool:
    """``same_answer`` of two texts in ``plain`` spelling, or of parts of them."""
    if not answer or not gold:
        return answer == gold
    if canonical(answer) == canonical(gold):
        return True
    for decide in (
        _as_numbers,
        _as_amounts,
        _as_choices,
        _as_texts,
        _as_numerals,
        _as_unions,
        _as_brackets,
        _as_equations,
        _as_matrices,
    ):
        verdict = decide(answer, gold)
        if verdict is not None:
            return verdict
    if any(number is not None and isinstance(number.value, float) for number in map(read_number, (answer, gold))):
        return False  # infinity; sympy takes infinity - 1 for it
    if words_within(answer) != words_within(gold):  # math-verify reads words as products of letters
        return False
    return symbolic.same_form(answer, gold)


def _as_numbers(answer: str, gold: str) -> bool | None:
    try:
        ours, golden = read_number(answer), read_number(gold)
    except TooLarge:
        return False
    if ours is not None and golden is not None:
        return ours.equals(golden)
    if ours is None and golden is None:
        return None
    other = gold if golden is None else answer
    return False if len(other) > 1 and as_text(other) is not None else None  # a word is no number


def _as_amounts(answer: str, gold: str) -> bool | None:
    """Compare several numbers that words join. A ratio may be a fraction: a formula decides."""
    ours, golden = read_amounts(answer), read_amounts(gold)
    if ours is None or golden is None:
        found = golden if ours is None else ours
        return None if found is None or is_list(found) or is_ratio(found) else None if "=" in answer + gold else False
    if same_amounts(ours, golden):
        return True
    return None if is_list(ours) or is_list(golden) else False


def _as_texts(answer: str, gold: str) -> bool | None:
    """Compare with a gold answer that is text. A single letter may be a variable."""
    golden, ours = as_text(gold), as_text(answer)
    if _is_listing(gold) and _is_listing(answer):
        return None
    if golden is None:
        return None
    if ours is None and len(golden) == 1:
        return None
    return ours == golden


def _is_listing(text: str) -> bool:
    """Return whether a text names several things that may come in any order."""
    return (_AND.search(text) is not None or ", " in text) and _OR.search(text) is None


def _as_choices(answer: str, gold: str) -> bool | None:
    """Compare the letters of choices, of which one may name its value too: "(A) 5" is A."""
    ours, golden = _CHOICE.fullmatch(answer), _CHOICE.fullmatch(gold)
    if ours is None and golden is None:
        return None
    letters = [
        text.strip("() .") if match is None else match["letter"] or match["bare"]
        for text, match in ((answer, ours), (gold, golden))
    ]
    if max(map(len, letters)) > 1:
        return None
    same_value = ours is None or golden is None or _same(ours["value"], golden["value"])
    return letters[0] == letters[1] and same_value


def _as_numerals(answer: str, gold: str) -> bool | None:
    """Compare numerals with a base, such as 2516_8. The base may be left out."""
    golden, ours = _BASE.fullmatch(gold), _BASE.fullmatch(answer)
    if golden is None or not golden[1][0].isdigit():
        return None
    if ours is None:
        return answer == golden[1]
    return ours.groups() == golden.groups()


# ---------------------------------------------------------------------- brackets


def _as_unions(answer: str, gold: str) -> bool | None:
    """Compare unions part by part, in any order. Other spellings of a set are left to math-verify."""
    answer, gold = (_NAMED.sub("", text, count=1) if _NAMED.match(text) else text for text in (answer, gold))
    if not _SEVERAL_SETS.search(answer) and not _SEVERAL_SETS.search(gold):
        return None
    ours, golden = _joined(answer), _joined(gold)
    return (len(ours) == len(golden) > 1 and _same_in_any_order(ours, golden)) or symbolic.same_form(answer, gold)


def _joined(text: str) -> list[str]:
    r"""Return the parts of a union, or of inequalities joined by "or"."""
    return split_at(_OR.sub(r"\\cup ", text), r"\cup")


def _as_brackets(answer: str, gold: str) -> bool | None:
    if not _same_variable(answer, gold):
        return False
    ours, golden = _shape_of(answer), _shape_of(gold)
    if ours is None or golden is None:
        return None if ours is golden else _single_in_brackets(answer, gold, ours, golden)
    kinds = {ours.kind, golden.kind}
    if kinds == {""} or "{}" in kinds:
        return _as_sets(answer, gold, ours, golden)
    if kinds == {"", "()"} and max(len(_names(ours)), len(_names(golden))) > 1:
        ours, golden = _by_name(answer, ours), _by_name(gold, golden)
        if ours.kind == golden.kind:
            return _as_sets(answer, gold, ours, golden)
    if kinds == {"", "()"}:  # the solutions 1, 2 for the point (1, 2), in its order
        return not (ours.said or golden.said) and _same_in_order(ours.parts, golden.parts)
    return len(kinds) == 1 and _same_in_order(ours.parts, golden.parts)


def _same_variable(answer: str, gold: str) -> bool:
    """Return whether two conditions can be one: of one variable, and not "or" for "and"."""
    intervals = read_interval(answer), read_interval(gold)
    if intervals[0] is not None and intervals[1] is not None:
        return intervals[0][0] == intervals[1][0]
    joined = [(_AND.search(text) is None, _OR.search(text) is None) for text in (answer, gold)]
    both = _RELATION.search(answer) is not None and _RELATION.search(gold) is not None
    return not (both and joined[0] != joined[1] and all(map(any, joined)) and not any(map(all, joined)))


def _as_sets(answer: str, gold: str, ours: Shape, golden: Shape) -> bool:
    """Compare sets and bare lists. A set of one element equals the element, whatever its brackets."""
    if ours.kind == "{}" and len(ours.parts) == 1 and golden.kind not in ("", "{}"):
        return _same(ours.parts[0], gold)
    if golden.kind == "{}" and len(golden.parts) == 1 and ours.kind not in ("", "{}"):
        return _same(answer, golden.parts[0])
    if not {ours.kind, golden.kind} <= {"", "{}"}:
        return False
    if "{}" in (ours.kind, golden.kind):
        ours, golden = _distinct(ours), _distinct(golden)
    names = [_names(shape) for shape in (ours, golden)]
    if max(map(len, names)) > 1 and names[0] != names[1]:  # x = 1, y = 2 for 1, 2
        return _same_in_order(ours.parts, golden.parts)
    return _same_in_any_order(ours.parts, golden.parts)


def _shape_of(text: str) -> Shape | None:
    """Return the brackets of a text, of the interval that an inequality describes, or of two values by one sign."""
    named = _NAMED.match(text)
    listed = read_shape(text) if named else None
    if listed is not None and sum(_NAMED.match(part) is not None for part in listed.parts) > 1:
        return listed  # x = 1, y = 2 and not x = (1, y = 2)
    bare = text[named.end() :] if named else text
    interval = read_interval(bare)
    if interval is not None:
        return interval[1]
    shape = read_shape(bare)
    if shape is not None:
        if shape.kind in ("()", "[]") and len(shape.parts) == 1:
            return _shape_of(shape.parts[0]) if shape.kind == "()" else None
        if shape.kind == "{}" and len(shape.parts) == 1 and not bare.startswith("\\"):  # braces that only group
            return _shape_of(shape.parts[0])
        return shape
    if bare.count(r"\pm") == 1:
        plus, minus = bare.replace(r"\pm", "+").lstrip("+ "), bare.replace(r"\pm", "-")
        return Shape("", (plus, minus))
    return None


def _by_name(text: str, shape: Shape) -> Shape:
    """Return the point of ``(x, y) = (1, 2)`` as the list ``x = 1, y = 2``; other shapes as they are."""
    point = _POINT.match(text)
    names = [] if point is None else re.findall("[A-Za-z]", point[1])
    if len(names) != len(shape.parts):
        return shape
    return Shape("", tuple(map("{}={}".format, names, shape.parts)))


def _names(shape: Shape) -> set[str]:
    """Return the variables whose values a list gives."""
    return {named[1] for part in shape.parts if (named := _NAMED.match(part))}


def _single_in_brackets(answer: str, gold: str, ours: Shape | None, golden: Shape | None) -> bool | None:
    """Compare a value with brackets: a set of one element equals the element. None: a formula decides."""
    shape, single = (golden, answer) if ours is None else (ours, gold)
    assert shape is not None
    if shape.kind == "{}" and len(shape.parts) == 1 and shape.parts[0] != r"\emptyset":
        pair = (single, shape.parts[0]) if ours is None else (shape.parts[0], single)
        return _same(*pair)
    if read_number(single) is not None or as_text(single) is not None or shape.kind == "":
        return False
    return None


def _distinct(shape: Shape) -> Shape:
    """Return a set without repeated elements, as far as their spelling or value shows it."""
    parts: dict[object, str] = {}
    for part in shape.parts:
        number = read_number(part)
        parts.setdefault(canonical(part) if number is None or number.vote is None else number.vote, part)
    return Shape(shape.kind, tuple(parts.values()), shape.said)


def _same_in_order(ours: Sequence[str], golden: Sequence[str]) -> bool:
    return len(ours) == len(golden) and all(map(_same, ours, golden))


def _same_in_any_order(ours: Sequence[str], golden: Sequence[str]) -> bool:
    """Compare lists in any order: equal spellings first, then numbers by their size, then each formula with each."""
    if len(ours) != len(golden):
        return False
    left, right = _without_common(ours, golden)
    numbers = [[number for part in side if (number := read_number(part)) is not None] for side in (left, right)]
    if len(numbers[0]) == len(left) and len(numbers[1]) == len(right):
        return _same_numbers(*numbers)
    if len(left) > _MOST_PAIRS:
        return _same_in_order(left, right)
    for part in left:
        found = next((other for other in right if _same(part, other)), None)
        if found is None:
            return False
        right.remove(found)
    return True


def _same_numbers(ours: list[Number], golden: list[Number]) -> bool:
    """Compare as many numbers in any order; 3 cats and 2 dogs are not 2 cats and 3 dogs."""
    if any(len({number.counted for number in side} - {""}) > 1 for side in (ours, golden)):
        if not all(any(number.counted for number in side) for side in (ours, golden)):
            return all(map(Number.equals, ours, golden))  # one leaves the words out: the order tells
        left, right = (sorted(side, key=lambda number: (number.counted, number.place)) for side in (ours, golden))
        return all(one.counted == other.counted and one.equals(other) for one, other in zip(left, right, strict=True))
    left, right = (sorted(side, key=lambda number: number.place) for side in (ours, golden))
    return all(map(Number.equals, left, right))


def _without_common(ours: Sequence[str], golden: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return both lists without the parts that are written alike in both."""
    common = Counter(map(canonical, ours)) & Counter(map(canonical, golden))
    kept = []
    for side in (ours, golden):
        left = Counter(common)
        rest = []
        for part in side:
            spelt = canonical(part)
            if left[spelt]:
                left[spelt] -= 1
            else:
                rest.append(part)
        kept.append(rest)
    return kept[0], kept[1]


# ---------------------------------------------------------------------- equations and matrices


def _as_equations(answer: str, gold: str) -> bool | None:
    """Compare values that stand after an equals sign: "x = 5" is 5, and "6 * 7 = 42" is 42."""
    ours, golden = split_at(answer, "="), split_at(gold, "=")
    if len(ours) == len(golden) == 1:
        return _without_units(answer, gold)
    if len(golden) == 1:
        return False if _NORMAL_FORM.fullmatch(answer) else _same(ours[-1], gold)
    if len(ours) == 1:
        named = _NAMED.match(gold) is not None or read_number(golden[0]) is not None
        return _same(answer, golden[-1]) if named else False
    if len(ours) == len(golden) == 2 and canonical(ours[0]) == canonical(golden[0]) and _NAMED.match(gold):
        return _same(ours[1], golden[1])
    return None


def _without_units(answer: str, gold: str) -> bool | None:
    """Compare formulas of which one ends with a unit that the other leaves out."""
    ours, golden = split_unit(answer), split_unit(gold)
    split = golden if ours is None else ours
    if split is None or (ours is not None and golden is not None) or split_unit(split[0]) is not None:
        return None  # m^2 m^2 m^2 is a product
    return _same(answer if ours is None else ours[0], gold if golden is None else golden[0])


def _as_matrices(answer: str, gold: str) -> bool | None:
    ours, golden = read_matrix(answer), read_matrix(gold)
    if ours is None or golden is None:
        return None
    return len(ours) == len(golden) and all(map(_same_in_order, ours, golden))


# ---------------------------------------------------------------------- responses


def accuracy(text: str, gold: str) -> float:
    r"""1.0 when the last marked answer of ``text`` is the gold answer, else 0.0.

    Args:
        text: the response.
        gold: the gold answer, or a list of them (``read_golds``); a mark around one (``\boxed{}``) is allowed.

    Raises:
        ValueError: there is no gold answer.
    """
    return judge_answer(extract_answer(text), gold)


def judge_answer(answer: str | None, gold: str) -> float:
    """``accuracy`` of an answer that ``extract_answer`` found."""
    golds = [one for one in read_golds(gold) if one.strip()]
    if not golds:
        raise ValueError("the problem has no gold answer, which reward kind `math` needs")
    if answer is None:
        return 0.0
    return float(any(same_answer(answer, _bare(one)) for one in golds))


def _bare(gold: str) -> str:
    marked = extract_answer(gold)
    return unwrap(gold) if marked is None else marked


def vote(answer: str | None) -> str | None:
    """Return an answer in a form in which most equal answers are equal texts, for majority votes; or None."""
    if not answer:
        return None
    if len(answer) > MAX_ANSWER:
        return vote_text(answer)
    text = plain(answer)
    try:
        number = read_number(text)
    except TooLarge:
        number = None
    known = None if number is None else number.vote
    return vote_text(canonical(text)) if known is None else known


warm_up = symbolic.warm_up
