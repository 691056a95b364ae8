"""The reward ``last_number``."""

from __future__ import annotations

from fractions import Fraction

import pytest
from each import each
from scoring import prompt, score_all

from dapo.config.schema import Reward
from dapo.errors import RewardError
from dapo.rewards.compose import build_scorer
from dapo.rewards.last_number import judge, read_last_number, vote


@each(
    ("text", "number"),
    [
        ("48 + 24 = 72", "72"),
        ("The answer is 72.", "72"),
        ("The answer is -3", "-3"),
        ("x = - 3", "-3"),
        ("so \u22123", "-3"),
        ("7-3", "3"),
        ("7 - 3", "3"),
        ("(7)-3", "3"),
        ("1,234 apples", "1234"),
        ("1,234,567.50", "2469135/2"),
        ("1,2", "2"),
        ("12,34", "34"),
        ("1,2345", "2345"),
        ("$18", "18"),
        ("-$18", "-18"),
        (r"\$1,200", "1200"),
        ("$29.00", "29"),
        (".5", "1/2"),
        ("1/2", "1/2"),
        ("-1/2.", "-1/2"),
        (r"\frac{1}{2}", "1/2"),
        (r"-\frac{3}{4} of it", "-3/4"),
        ("3e8", "300000000"),
        ("6.5e-2", "13/200"),
        ("50%", "50"),
        (r"\boxed{42}", "42"),
        ("**42**", "42"),
        ("2019-2020", "2020"),
        ("0042", "42"),
        (r"\frac34", "3/4"),
        (r"\dfrac{3.5}{2}", "7/4"),
        (r"3\frac12", "7/2"),
        ("-3 1/2", "-7/2"),
        ("3 7/2", "7/2"),
        ("1{,}234", "1234"),
        (r"1\,234", "1234"),
        ("1\u202f234\u202f567", "1234567"),
        ("1_000", "1000"),
        ("6.02×10^23", "602000000000000000000000"),
        (r"6.02 \times 10^{23}", "602000000000000000000000"),
        ("5 x 10^-3", "1/200"),
        ("_-5_", "-5"),
        ("2024/05/17", "17"),
        ("2024-05-17", "17"),
        ("5 cm^2", "5"),
        (r"12\text{ m}^{2}", "12"),
        (r"so \sqrt{16} is 4", "4"),
        (r"30^\circ", "30"),
        (r"\boxed{\text{7 apples}}", "7"),
        ("the 5th, 6!", "6"),
        *(
            (formula, None)
            for formula in (r"\frac{\pi}{2}", r"\boxed{\frac{\pi}{2}}", r"3 halves: \frac{x}{2}", "\u03c0/2")
        ),
        *(
            (formula, None)
            for formula in (r"2\pi", "2\u03c0", r"\sqrt{2}", r"2\sqrt 3", "\u221a5", r"\frac{1}{\sqrt{2}}", "sqrt(2)")
        ),
        *(
            (formula, None)
            for formula in ("2^{10}", "2^10", "x/2", "(a+b)/2", "2x", r"\log_2 8", r"\sin 30", r"3\cdot\pi", r"\ln 2")
        ),
        (r"\frac{1}{0}", None),
        ("no number", None),
        ("", None),
        ("1/0", None),
        ("9" * 3000, None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: str | None) -> None:
    assert read_last_number(text) == (None if number is None else Fraction(number))


def test_equal_unless_a_tolerance_is_given() -> None:
    assert judge(Fraction("29.00"), "29", 0.0) == 1.0
    assert judge(Fraction(100_000_001), "100000002", 0.0) == 0.0
    assert judge(Fraction("33.3"), "100/3", 0.0) == 0.0
    assert judge(Fraction("33.3"), "100/3", 0.01) == 1.0
    assert judge(Fraction("33.3"), "-33.3", 0.5) == 0.0
    assert judge(Fraction(0), "0", 0.0) == 1.0
    assert judge(None, "42", 1.0) == 0.0
    assert judge(Fraction(2), '["1", "2"]', 0.0) == 1.0
    with pytest.raises(ValueError, match="has no number"):
        judge(Fraction(1), "yes", 0.0)


@each(
    ("gold", "number"),
    [
        ("72", "72"),
        ("7,200", "7200"),
        ("8.0", "8"),
        ("-5", "-5"),
        ("$18", "18"),
        ("$18$", "18"),
        (r"\boxed{18}", "18"),
        ("He has 3 and 4.\n#### 7", "7"),
        ("18 eggs", "18"),
        (r"18\text{ cm}^2", "18"),
        ("50%", "50"),
        (r"90^\circ", "90"),
        ("3 1/2", "7/2"),
        (r"\frac34", "3/4"),
        ("1{,}234", "1234"),
        ("100/3", "100/3"),
        (r"6.02\times10^{23}", "602000000000000000000000"),
    ],
)
def test_a_gold_answer_is_one_number(gold: str, number: str) -> None:
    assert judge(Fraction(number), gold, 0.0) == 1.0
    assert judge(Fraction(number) + 1, gold, 0.0) == 0.0


@each(
    "gold",
    [
        r"\frac{\pi}{2}",
        r"3\sqrt{2}",
        "2^{10}",
        "x+1",
        "x = 5",
        "5x",
        "5 or 6",
        "18 eggs of 20",
        "2, 3",
        "(1, 2)",
        "10:30",
        "2024/05/17",
        "5 million",
        "3 + 4",
        "the 3 of them",
        "1/0",
        "",
    ],
)
def test_a_gold_answer_that_is_not_one_number_is_refused(gold: str) -> None:
    with pytest.raises(ValueError, match="one number alone"):
        judge(Fraction(2), gold, 0.0)


def test_equal_numbers_vote_alike() -> None:
    assert vote(read_last_number("0.5")) == vote(read_last_number("1/2")) == "1/2"


@each("piece", ["1,111", ",111", "1/1", "-", "9", "\\frac{", "1e", "$", " 1", "1_", "1 1/", "1 *10^"])
def test_its_time_grows_in_proportion_to_the_text(piece: str) -> None:
    """The driver asks it: quadratic time would take minutes here, and meet the test's time limit."""
    read_last_number(piece * (1_000_000 // len(piece)))


def test_in_a_scorer_without_a_worker() -> None:
    scorer = build_scorer([Reward(kind="last_number", tolerance=0.01)])
    scores = score_all(scorer, ["I get 42.", "I get 42.1", "I get 43", "none"], prompt("42"))
    assert [score.reward for score in scores] == [1.0, 1.0, 0.0, 0.0]
    assert [score.answer for score in scores] == ["42", "421/10", "43", None]
    assert scorer.quick
    unscored = score_all(scorer, ["I get 42."], prompt("yes"))[0]
    assert unscored.reason is not None
    assert "has no number" in unscored.reason
    with pytest.raises(RewardError, match="no effect"):
        build_scorer([Reward(kind="last_number", pattern="a")])
