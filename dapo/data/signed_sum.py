"""The quickstart's task: the running sum of distinct signed digits, and demonstrations by a sloppy student.

Prompt ``4 +7 -8 +3 =``; a careful response is ``+7 =11 -8 =3 +3 =6``: each term is copied, then the running total
follows. Words are separated by spaces and each is one token of the quickstart's tokenizer.

Everything is a pure function of ``(seed, index)``. Only ``random.Random.random`` is used, the one method whose numbers
Python promises to keep.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

RESTART = "?"


@dataclass(frozen=True, slots=True)
class SignedSum:
    """One problem: the first term is positive, no running total is negative, no digit comes twice."""

    terms: tuple[int, ...]

    @property
    def prompt(self) -> str:
        first, *rest = self.terms
        return " ".join([str(first), *(f"{term:+d}" for term in rest), "="])

    @property
    def answer(self) -> str:
        return str(sum(self.terms))


def make_problem(
    seed: int, index: int, *, min_terms: int = 3, max_terms: int = 8, minus_probability: float = 0.4
) -> SignedSum:
    """Problem ``index`` of the endless set ``seed``.

    Args:
        seed: names the set; training and evaluation need different ones.
        index: position in the set.
        min_terms: fewest digits.
        max_terms: most digits, at most 9.
        minus_probability: chance that a term is subtracted, where the total stays at or above 0.
    """
    if not 2 <= min_terms <= max_terms <= 9:
        raise ValueError(f"expected 2 <= min_terms <= max_terms <= 9, found {min_terms} and {max_terms}")
    if not 0 <= minus_probability <= 1:
        raise ValueError(f"expected minus_probability between 0 and 1, found {minus_probability}")
    rng = random.Random(f"signed_sum/{seed}/{index}")
    count = min_terms + int(rng.random() * (max_terms - min_terms + 1))
    keys = [rng.random() for _ in range(9)]
    digits = sorted(range(1, 10), key=lambda digit: keys[digit - 1])[:count]
    terms = [digits[0]]
    for digit in digits[1:]:
        minus = rng.random() < minus_probability and sum(terms) >= digit
        terms.append(-digit if minus else digit)
    return SignedSum(tuple(terms))


def sloppy_solution(
    problem: SignedSum,
    rng: random.Random,
    *,
    misread_probability: float = 0.6,
    rambler_share: float = 0.4,
    restart_probability: float = 0.8,
    max_words: int = 80,
) -> str:
    """Return a demonstration by a student who reads a minus as a plus, and sometimes starts over again and again.

    Args:
        problem: what is solved.
        rng: the only source of chance.
        misread_probability: chance that one minus is added instead of subtracted (the term itself is copied rightly).
        rambler_share: share of demonstrations that go on after the chain: ``?`` and the chain again, with mistakes of
            its own.
        restart_probability: of a rambler, before each new start.
        max_words: no new start that would make the response longer than this.
    """
    words = _chain(problem, rng, misread_probability)
    if rng.random() < rambler_share:
        chain_length = len(words)
        while rng.random() < restart_probability and len(words) + 1 + chain_length <= max_words:
            words += [RESTART, *_chain(problem, rng, misread_probability)]
    return " ".join(words)


def _chain(problem: SignedSum, rng: random.Random, misread_probability: float) -> list[str]:
    total, *rest = problem.terms
    words: list[str] = []
    for term in rest:
        misread = term < 0 and rng.random() < misread_probability
        total += -term if misread else term
        words += [f"{term:+d}", f"={total}"]
    return words
