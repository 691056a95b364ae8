"""The quickstart's task and its sloppy student."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo.config.schema import TrainSource
from dapo.data import load_problems
from dapo.data.signed_sum import SignedSum, make_problem, sloppy_solution
from dapo.errors import DataError

EXAMPLE = SignedSum((4, 7, -8, 3))


def careful_solution(problem: SignedSum) -> str:
    return sloppy_solution(problem, random.Random(0), misread_probability=0.0, rambler_share=0.0)


def test_the_example_of_the_task() -> None:
    assert EXAMPLE.prompt == "4 +7 -8 +3 ="
    assert EXAMPLE.answer == "6"
    assert careful_solution(EXAMPLE) == "+7 =11 -8 =3 +3 =6"


@given(st.integers(), st.integers(0))
def test_problems_keep_the_rules_of_the_task(seed: int, index: int) -> None:
    problem = make_problem(seed, index)
    assert problem == make_problem(seed, index)
    assert 3 <= len(problem.terms) <= 8
    assert len({abs(term) for term in problem.terms}) == len(problem.terms)
    assert {abs(term) for term in problem.terms} <= set(range(1, 10))
    totals = [sum(problem.terms[: n + 1]) for n in range(len(problem.terms))]
    assert problem.terms[0] > 0
    assert min(totals) >= 0
    words = careful_solution(problem).split()
    assert words[-1] == f"={problem.answer}"
    assert words[1::2] == [f"={total}" for total in totals[1:]]
    assert words[0::2] == problem.prompt.split()[1:-1]


def test_the_problems_are_pinned() -> None:
    """Quickstart figures and cached warm-up models depend on them."""
    assert [make_problem(0, i).prompt for i in range(3)] == PINNED


PINNED = ["8 +2 +5 =", "9 +1 -7 +3 -4 =", "3 -1 +7 +8 +6 +4 -2 +5 ="]


def test_shares_of_lengths_and_minus_signs() -> None:
    problems = [make_problem(3, i) for i in range(4000)]
    lengths = [len(p.terms) for p in problems]
    for count in range(3, 9):
        assert lengths.count(count) / 4000 == pytest.approx(1 / 6, abs=0.025)
    # a minus is drawn with 0.4 and taken where the total allows it
    allowed = minus = 0
    for p in problems:
        for n, term in enumerate(p.terms[1:], start=1):
            if sum(p.terms[:n]) >= abs(term):
                allowed += 1
                minus += term < 0
    assert minus / allowed == pytest.approx(0.4, abs=0.02)


def test_the_sloppy_student() -> None:
    """Minus signs are misread in 60 %, the term is copied rightly, 40 % ramble, each restart follows with 0.8."""
    problem = SignedSum((9, -1))
    chains = rambles = misread = restarts = trials = 0
    for i in range(6000):
        text = sloppy_solution(problem, random.Random(i), max_words=10_000)
        parts = text.split(" ? ")
        for part in parts:
            assert part in ("-1 =8", "-1 =10")
            misread += part == "-1 =10"
        chains += len(parts)
        rambles += len(parts) > 1
        restarts += len(parts) - 1
        trials += len(parts) - 1 + (len(parts) > 1)
    assert misread / chains == pytest.approx(0.6, abs=0.02)
    assert rambles / 6000 == pytest.approx(0.4 * 0.8, abs=0.02)  # the first restart has to be drawn too
    # beyond the first, every restart is followed by another with 0.8
    assert (restarts - rambles) / restarts == pytest.approx(0.8, abs=0.02)


def test_demonstrations_are_reproducible_short_enough_and_within_the_vocabulary() -> None:
    words = {f"{s}{d}" for s in "+-" for d in range(1, 10)} | {f"={n}" for n in range(46)} | {"?"}
    for i in range(500):
        text = sloppy_solution(make_problem(1, i), random.Random(i))
        assert text == sloppy_solution(make_problem(1, i), random.Random(i))
        assert set(text.split()) <= words
        assert len(text.split()) <= 80
    texts = {sloppy_solution(EXAMPLE, random.Random(i)) for i in range(20)}
    assert len(texts) > 1  # the student is not always wrong in the same way


def test_as_a_data_source() -> None:
    problems = load_problems(TrainSource(task="signed_sum", size=5, seed=3, options={"max_terms": 4}))
    assert [p.problem for p in problems] == [make_problem(3, i, max_terms=4).prompt for i in range(5)]
    assert all(dict(p.extra) == {"task": "signed_sum"} for p in problems)
    for options in ({"terms": 3}, {"min_terms": 1}, {"max_terms": 10}, {"minus_probability": 2}):
        with pytest.raises(DataError, match="min_terms, max_terms and minus_probability"):
            load_problems(TrainSource(task="signed_sum", size=5, options=options))
