"""Extraction and comparison of mathematical answers.

``math_pairs.txt`` and ``math_marks.txt`` beside this file hold the pairs, conventions marked as such.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from each import each
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo.rewards.latex import plain
from dapo.rewards.marks import extract_answer
from dapo.rewards.math import accuracy, judge_answer, same_answer, vote, warm_up
from dapo.rewards.numbers import read_number

HERE = Path(__file__).parent


def read_table(name: str) -> Iterator[tuple[str, str, str, bool]]:
    """Sign, gold answer, answer or response, and whether it is right."""
    for line in (HERE / name).read_text(encoding="utf-8").splitlines():
        if line and line[0] not in "#[":
            sign, _, rest = line.partition(" ")
            gold, answer, *ours = rest.split(" | ")
            yield sign, gold, answer.replace("\u23ce", "\n"), (ours[0] if ours else sign[0]) == "="


def pairs() -> Iterator[tuple[str, str, bool]]:
    """Answer, gold answer, right: both directions where the sign is single."""
    for sign, gold, answer, right in read_table("math_pairs.txt"):
        yield answer, gold, right
        if len(sign) == 1:
            yield gold, answer, right


PAIRS = list(pairs())
MARKS = [(text, gold, right) for _, gold, text, right in read_table("math_marks.txt")]


@pytest.fixture(scope="module", autouse=True)
def _imports() -> None:
    warm_up()


def test_the_table_has_its_size() -> None:
    assert len(PAIRS) > 400
    assert len(MARKS) > 40


@each(("answer", "gold", "right"), PAIRS)
def test_pairs(answer: str, gold: str, right: bool) -> None:
    assert accuracy(f"So we get \\boxed{{{answer}}}.", gold) == float(right)


@each(("text", "gold", "right"), MARKS)
def test_marks(text: str, gold: str, right: bool) -> None:
    assert accuracy(text, gold) == float(right)


@each(
    ("text", "answer"),
    [
        (r"\boxed{\frac{1}{\sqrt{2}}} is it", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\left\{ 1, 2 \right\}}", r"\left\{ 1, 2 \right\}"),
        (r"\boxed 7", "7"),
        ("### The final answer:\n\n42", "42"),
        (r"Answer: \(42\)", "42"),
        ("Answer: 41\n" + r"Wait: \boxed{42}", "42"),
        ("#### Step 3: the sum\n" + r"\boxed{5}" + "\n#### 2. Check", "5"),
        ("", None),
        (r"\boxed{41} then \boxed{42", "41"),
    ],
)
def test_the_last_marked_answer_counts(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


DECIMALS = st.decimals(min_value=-1000, max_value=1000, places=6, allow_nan=False).map(str)


@settings(deadline=None)
@given(DECIMALS, DECIMALS)
def test_decimals_are_equal_when_their_values_are(one: str, other: str) -> None:
    assert same_answer(one, other) == (Fraction(one) == Fraction(other))
    assert same_answer(f"({one}, 1)", f"({other}, 1)") == (Fraction(one) == Fraction(other))


@settings(deadline=None)
@given(st.integers(-999, 999), st.integers(1, 999), st.integers(1, 12))
def test_a_decimal_equals_a_fraction_that_it_is_and_not_one_that_it_rounds(top: int, below: int, digits: int) -> None:
    fraction = Fraction(top, below)
    rounded = Fraction(round(fraction * 10**digits), 10**digits)
    text = f"{'-' * (rounded < 0)}{abs(rounded.numerator) * 10**digits // rounded.denominator:0{digits + 1}d}"
    decimal = f"{text[:-digits]}.{text[-digits:]}"
    assert Fraction(decimal) == rounded
    close = abs(rounded - fraction) <= Fraction(1, 10**9) * max(abs(rounded), abs(fraction))
    if fraction == rounded or not close:
        assert same_answer(decimal, rf"\frac{{{top}}}{{{below}}}") == (fraction == rounded)


def test_a_value_has_one_number_however_it_is_written() -> None:
    number = read_number(plain(r"3\,000\,000"))
    assert number is not None
    assert number.value == 3_000_000
    assert number == read_number(plain("3,000,000"))


def test_long_lists_are_equal_in_any_order() -> None:
    gold = [str(place) for place in range(350)]
    answer = [f"+{place}" for place in gold]
    random.Random(0).shuffle(answer)
    assert same_answer(", ".join(answer), ",".join(gold))
    assert not same_answer(", ".join([*answer[:-1], "351"]), ",".join(gold))


def test_several_gold_answers_mean_any_of_them() -> None:
    golds = '["1/2", "x = 3", "\\\\frac{2}{7}"]'
    assert [judge_answer(answer, golds) for answer in ("0.5", "3", "2/7", "1/3", None)] == [1, 1, 1, 0, 0]
    assert judge_answer("[1, 2]", "[1,2]") == 1.0  # an interval, and no list of answers
    assert judge_answer("1", "[1,2]") == 0.0
    with pytest.raises(ValueError, match="no gold answer"):
        judge_answer("1", '[""]')


def test_accuracy_is_one_or_zero() -> None:
    assert accuracy(r"I get $\boxed{0.5}$.", r"\frac12") == 1.0
    assert accuracy("I get 0.5.", r"\frac12") == 0.0
    assert accuracy("#### 72", "Natalia sold 48 + 24 = 72.\n#### 72") == 1.0


def test_equal_numbers_vote_alike() -> None:
    assert {vote(one) for one in ("0.5", "1/2", r"\frac{1}{2}", ".50")} == {"1/2"}
    assert vote("1,234") == vote("1234") == "1234"
    assert vote("x + 1") == vote("x+1") != vote("x+2")


def test_a_missing_gold_answer_is_an_error_and_no_zero() -> None:
    with pytest.raises(ValueError, match="no gold answer"):
        accuracy(r"\boxed{1}", " ")


@pytest.mark.parametrize(
    "answer", ["(" * 999 + "1" + ")" * 999, "-" * 1990 + "1", "^".join(["2"] * 900), "5!" * 900, "m^2 ^2" * 330]
)
def test_deep_and_large_answers_are_wrong_and_no_error(answer: str) -> None:
    assert judge_answer(answer, "42") == 0.0


DEEP = {
    "fractions": lambda name, levels: r"\frac{1}{1+" * levels + name + "}" * levels,
    "sums": lambda name, levels: "(1+" * levels + name + ")" * levels,
    "powers": lambda name, levels: "2^{" * levels + name + "}" * levels,
    "roots": lambda name, levels: r"\sqrt{1+" * levels + name + "}" * levels,
}


@pytest.mark.parametrize("kind", DEEP)
def test_the_work_for_a_nested_formula_grows_with_its_depth_and_does_not_double_with_each_level(kind: str) -> None:
    """Counted are calls of functions. sympy's own evaluation doubles them: 2^8 times as many for the second."""
    calls = [0, 0]
    for n, (name, levels) in enumerate((("a", 8), ("b", 16))):

        def count(frame: object, event: str, argument: object, n: int = n) -> None:
            calls[n] += event == "call"
            assert calls[n] < 30_000_000

        sys.setprofile(count)
        try:
            assert not same_answer(DEEP[kind](name, levels), f"{name}+17")
        finally:
            sys.setprofile(None)
    assert calls[1] < 10 * calls[0]


@pytest.mark.parametrize(
    "answer", ["(" * 30 + "x" + ")" * 30 + "+y", r"\int_0^x " * 20 + "x dx", "2^{" * 25 + "x" + "}" * 25]
)
def test_what_is_too_deep_is_never_read_as_a_formula(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("math_verify.parse", lambda *_, **__: pytest.fail("it was parsed"))
    assert not same_answer(answer, "y+17")
    assert same_answer(answer, answer.replace("x", " x "))


def test_works_outside_the_main_thread() -> None:
    """math-verify's own timeouts use signals, which raise in any other thread; a swallowed error there scored 0."""
    scores: list[float] = []
    thread = threading.Thread(target=lambda: scores.append(accuracy(r"\boxed{\frac{17x}{34}}", r"\frac{x}{2}")))
    thread.start()
    thread.join()
    assert scores == [1.0]
