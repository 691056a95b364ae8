"""Extraction and comparison of mathematical answers."""

from __future__ import annotations

import threading

import pytest

from dapo.rewards.math import accuracy, as_integer, extract_answer, same_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So the result is $\boxed{42}$.", "42"),
        (r"\boxed{\frac{1}{\sqrt{2}}} is it", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\left\{ 1, 2 \right\}}", r"\left\{ 1, 2 \right\}"),
        (r"\boxed{41} no, rather \boxed{42}", "42"),
        (r"\fbox{7}", "7"),
        (r"\boxed 7", "7"),
        ("Answer: 42", "42"),
        ("so\nAnswer: $42$.\n", "42"),
        ("**Answer:** 42", "42"),
        ("**Final Answer: 42**", "42"),
        ("### The final answer:\n\n42", "42"),
        (r"**Final Answer**: $\boxed{42}$", "42"),
        (r"Answer: \(42\)", "42"),
        ("Final Answer: The final answer is $42$. I hope it is correct.", "42"),
        ("48/2 = 24\n#### 72", "72"),
        ("#### 1,234", "1,234"),
        (r"\boxed{41}" + "\nAnswer: 42", "42"),
        ("Answer: 41\n" + r"Wait: \boxed{42}", "42"),
        # headings, and words about answers, are no answers
        ("#### Step 3: the sum\n" + r"\boxed{5}" + "\n#### 2. Check", "5"),
        (r"\boxed{5} Let me check the answer: 3 < 5.", "5"),
        # never merely mentioned
        ("The answer is 42", None),
        ("42", None),
        ("I think 41 or 42", None),
        ("", None),
        # an unfinished box is no answer
        (r"\boxed{42", None),
        (r"\boxed{41} then \boxed{42", "41"),
    ],
)
def test_the_last_marked_answer_counts(text: str, answer: str | None) -> None:
    assert extract_answer(text) == answer


@pytest.mark.parametrize(
    ("answer", "number"),
    [
        ("42", 42),
        ("042", 42),
        ("42.0", 42),
        ("-5", -5),
        ("- 5", -5),
        ("\N{MINUS SIGN}5", -5),
        ("+5", 5),
        ("1,234,567", 1234567),
        (r"1{,}234", 1234),
        (r"1\,234", 1234),
        (r"20,\!000", 20000),
        (r"\$42", 42),
        (r"336^\circ", 336),
        (r"336^{\circ}", 336),
        (r"42 \text{ cm}", 42),
        (r"42\text{ cm}^2", 42),
        ("9" * 30, int("9" * 30)),
        ("42.5", None),
        ("1 2", None),
        ("1,2", None),
        (r"\frac{1}{2}", None),
        (r"42\%", None),
        ("", None),
        ("9" * 5000, None),
    ],
)
def test_whole_numbers_are_read_exactly(answer: str, number: int | None) -> None:
    assert as_integer(answer) == number


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("0.5", r"\frac{1}{2}"),
        (r"\dfrac12", r"\frac{1}{2}"),
        (r"\frac{84}{2}", "42"),
        ("x = 42", "42"),
        (r"6 \cdot 7 = 42", "42"),
        ("x = 0", "0"),
        ("3 - 3 = 0", "0"),
        ("x + y = 7", "7"),
        (r"(0, \infty)", r"(0,\infty)"),
        (r"\left(3,\frac{\pi}{2}\right)", r"\left( 3, \frac{\pi}{2} \right)"),
        ("Evelyn", r"\text{Evelyn}"),
        (r"\text{evelyn}", r"\text{Evelyn}"),
        ("C", r"\text{(C)}"),
        (r"\{2, 1\}", "1, 2"),
        (r"2\sqrt{3}", r"\sqrt{12}"),
        (r"50\%", "50"),
        ("336", r"336^\circ"),
        ("2516_8", r"2516_{8}"),
        ("1234", "1,234"),
        ("(x+1)^2", "x^2+2x+1"),
        ("(1, -2)", "1,-2"),
        ("-2, 1", "1,-2"),
        ("100000000000000000000001", "100000000000000000000001"),
    ],
)
def test_equal_answers_in_other_words(answer: str, gold: str) -> None:
    assert same_answer(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("43", "42"),
        ("41 or 42", "42"),
        ("41, 42", "42"),
        (r"41 \quad 42", "83"),
        ("1 2", "12"),
        (r"42 \neq 41", "42"),
        (r"42 \pm 1", "42"),
        ("seat", r"\text{east}"),
        ("seat", "east"),
        ("2516_9", "2516_8"),
        ("100000000000000000000002", "100000000000000000000001"),
        (str(2**64 + 5), "5"),
        (r"\frac{1}{3}", r"\frac{1}{2}"),
        ("[0, 1]", "(0, 1)"),
        ("(-2,1)", "1,-2"),
        ("1,-2", r"\left(-2,1\right)"),
        ("x", "42"),
        ("5x - 11y + z - 17 = 0", "0"),
        ("", "42"),
        ("4" * 3000, "4" * 2999),
    ],
)
def test_different_answers(answer: str, gold: str) -> None:
    assert not same_answer(answer, gold)


def test_accuracy_is_one_or_zero() -> None:
    assert accuracy(r"I get $\boxed{0.5}$.", r"\frac12") == 1.0
    assert accuracy(r"I get $\boxed{0.6}$.", r"\frac12") == 0.0
    assert accuracy("I get 0.5.", r"\frac12") == 0.0
    assert accuracy("#### 72", r"Natalia sold 48 + 24 = 72.\n#### 72".replace(r"\n", "\n")) == 1.0


def test_a_missing_gold_answer_is_an_error_and_no_zero() -> None:
    with pytest.raises(ValueError, match="no gold answer"):
        accuracy(r"\boxed{1}", " ")


def test_works_outside_the_main_thread() -> None:
    """math-verify's own timeouts use signals, which raise in any other thread; a swallowed error there scored 0."""
    scores: list[float] = []
    thread = threading.Thread(target=lambda: scores.append(accuracy(r"\boxed{\frac{17}{34}}", r"\frac{1}{2}")))
    thread.start()
    thread.join()
    assert scores == [1.0]
