"""What every scorer promises (``dapo.types.protocols.Scorer``), as one list of checks.

A test file of a scorer makes a ``Subject`` and runs ``CHECKS``:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_contract(check, subject):
        check(subject)

What is submitted under a key follows from the key (``kind_of``), so that a scorer may be scripted by keys.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from dapo.types.batch import Prompt, Response, Score

Kind = Literal["right", "wrong", "fails"]
GATED = 1000  # the group whose response is scored when the gate opens


@dataclass
class Subject:
    """One scorer under test."""

    make: Callable[[], Any]  # -> a scorer of which nothing is pending; it may be one that was used before
    fresh: Callable[[], Any]  # -> a new one, to be closed
    ask: Callable[[Kind], tuple[Prompt, Response]]  # a response that is right, is wrong, or fails its verifier
    gated: Callable[[], tuple[Prompt, Response]] | None = None  # one whose verifier waits; None: none can
    open_gate: Callable[[], None] = lambda: None  # lets it answer


def kind_of(key: Any) -> Kind:
    group, index = key
    return ("right", "wrong", "fails")[(group + index) % 3]  # type: ignore[return-value]


KEYS = [(group, index) for group in range(4) for index in range(3)]


def submit(s: Subject, scorer: Any, keys: Iterable[Any]) -> None:
    for key in keys:
        scorer.submit(key, *s.ask(kind_of(key)))


def drain(scorer: Any) -> dict[Any, Score]:
    """Everything to the end; no key comes twice, and an empty answer means that nothing is pending."""
    found: dict[Any, Score] = {}
    while scores := scorer.poll(None):
        for key, score in scores:
            assert key not in found
            found[key] = score
    assert scorer.poll(0) == []
    return found


def said(score: Score) -> tuple[Any, ...]:
    return dict(score.values), None if math.isnan(score.reward) else score.reward, score.reason, score.answer


def every_key_comes_back_once(s: Subject) -> None:
    scorer = s.make()
    submit(s, scorer, KEYS)
    assert set(drain(scorer)) == set(KEYS)


def nothing_pending_is_an_empty_answer_at_once(s: Subject) -> None:
    scorer = s.make()
    for timeout in (0, None, 600):
        assert scorer.poll(timeout) == []
    submit(s, scorer, KEYS[:2])
    drain(scorer)
    for timeout in (0, None, 600):
        assert scorer.poll(timeout) == []


def looking_does_not_lose_a_score(s: Subject) -> None:
    """poll(0) between submissions gives what is there; the rest comes later."""
    scorer, found = s.make(), []
    for key in KEYS:
        submit(s, scorer, [key])
        found += [key for key, _ in scorer.poll(0)]
    found += drain(scorer)
    assert sorted(found) == KEYS


def waiting_ends_with_the_first_score(s: Subject) -> None:
    scorer = s.make()
    for timeout in (None, 600):
        submit(s, scorer, KEYS[:1])
        assert [key for key, _ in scorer.poll(timeout)] == KEYS[:1]


def a_score_is_an_accuracy_and_a_reward_or_a_reason(s: Subject) -> None:
    scorer = s.make()
    submit(s, scorer, KEYS)
    for key, score in drain(scorer).items():
        if kind_of(key) == "fails":
            assert isinstance(score.reason, str)
            assert score.reason
            assert not score.scored
            assert math.isnan(score.reward)
            assert score.accuracy is None
        else:
            assert score.scored
            assert score.accuracy == float(kind_of(key) == "right")
            assert math.isfinite(score.reward)
            assert all(type(value) is float for value in score.values.values())


def order_and_company_change_no_score(s: Subject) -> None:
    scorer = s.make()
    alone = {}
    for key in KEYS:
        submit(s, scorer, [key])
        alone |= drain(scorer)
    for keys in (KEYS, KEYS[::-1], KEYS[1::2] + KEYS[::2]):
        submit(s, scorer, keys)
        together = drain(scorer)
        assert {key: said(score) for key, score in together.items()} == {key: said(alone[key]) for key in KEYS}


def a_key_that_came_back_may_be_asked_again(s: Subject) -> None:
    scorer = s.make()
    for _ in range(3):
        submit(s, scorer, KEYS[:3])
        assert set(drain(scorer)) == set(KEYS[:3])


def a_slow_verifier_holds_up_nobody(s: Subject) -> None:
    """Neither who submits nor who looks; with a limit one waits for it and no longer."""
    if s.gated is None:
        return
    scorer = s.make()
    scorer.submit((GATED, 0), *s.gated())
    submit(s, scorer, KEYS)
    assert (GATED, 0) not in {key for timeout in (0, 0.01, 0) for key, _ in scorer.poll(timeout)}
    s.open_gate()
    assert (GATED, 0) in drain(scorer)


def close_forgets_what_is_pending_and_may_come_twice(s: Subject) -> None:
    scorer = s.fresh()
    scorer.close()
    scorer.close()
    scorer = s.fresh()
    if s.gated is not None:
        scorer.submit((GATED, 0), *s.gated())  # and nobody opens the gate
    submit(s, scorer, KEYS)
    scorer.close()
    scorer.close()
    assert scorer.poll(0) == [] == scorer.poll(None)


CHECKS: list[Callable[[Subject], None]] = [
    every_key_comes_back_once,
    nothing_pending_is_an_empty_answer_at_once,
    looking_does_not_lose_a_score,
    waiting_ends_with_the_first_score,
    a_score_is_an_accuracy_and_a_reward_or_a_reason,
    order_and_company_change_no_score,
    a_key_that_came_back_may_be_asked_again,
    a_slow_verifier_holds_up_nobody,
    close_forgets_what_is_pending_and_may_come_twice,
]
