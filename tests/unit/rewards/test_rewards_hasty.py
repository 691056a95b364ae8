"""Patterns: in the driver for a moment, in a worker where they take longer, with one verdict."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dapo.config.schema import Reward
from dapo.rewards import judges
from dapo.rewards.compose import build_scorer
from dapo.rewards.judges import Hasty, Verifier
from dapo.rewards.simple import compile_pattern, find_answer, found_in
from dapo.types.batch import Key, Prompt, Response
from dapo.types.enums import FinishReason

ENDLESS = r"^((?:[-+=0-9 ]|[1+][1+])+)[xyz]$"
HOSTILE = "1+" * 60 + "!"


def prompt(answer="12"):
    return Prompt("p", "", np.array([1]), "problem", answer, "s")


def completion(text):
    none = np.empty(0)
    return Response(none.astype(np.int64), none.astype(np.float32), none.astype(np.int32), FinishReason.STOP, text)


def scores(scorer, texts, answer="12"):
    for n, text in enumerate(texts):
        scorer.submit(Key("train", 0, n), prompt(answer), completion(text))
    found = {}
    while len(found) < len(texts):
        found |= dict(scorer.poll())
    return [found[Key("train", 0, n)] for n in range(len(texts))]


def test_an_ordinary_pattern_needs_no_worker():
    scorer = build_scorer([Reward(kind="exact", pattern=r"=(-?\d+)\s*$")])
    scorer.submit(Key("train", 0, 0), prompt(), completion("6+6 =12"))
    assert dict(scorer.poll(0))[Key("train", 0, 0)].values == {"accuracy": 1.0}
    assert scorer._pool is not None
    assert not scorer._pool._workers
    scorer.close()


def test_what_takes_longer_is_judged_by_a_worker_and_alike():
    """12x is done at once, HOSTILE never is: a worker ends it at the reward's limit."""
    scorer = build_scorer([Reward(kind="exact", pattern=ENDLESS, timeout=1.0)])
    try:
        found = scores(scorer, ["12x", HOSTILE, "12y"])
    finally:
        scorer.close()
    assert [score.reason and score.reason.split(":")[0] for score in found] == [None, "timeout", None]
    assert [score.reward for score in found if score.scored] == [1.0, 1.0]


def test_a_pattern_that_backtracks_on_everything_is_not_tried_for_ever():
    asked = Hasty(Verifier("regex", "accuracy", pattern=ENDLESS), moment=1e-6)
    long = completion(HOSTILE)
    assert [asked(prompt(), long) for _ in range(judges.TRIES)] == [None] * judges.TRIES
    assert asked(prompt(), completion("12x")) is None  # from here on workers are asked at once
    fresh = Hasty(Verifier("regex", "accuracy", pattern=ENDLESS))
    assert fresh(prompt(), completion("12x")) == ({"accuracy": 1.0}, None)


@pytest.mark.parametrize(
    "pattern", [r"=\s*(-?\d+)\s*$", r"(?s)<think>.*</think>", r"(?im)^answer: (.*)$", r"\bπ\b", "a|b", ""]
)
@given(text=st.text(alphabet="=- 0123456789\nanswerANSWER:<>/thinkπab", max_size=40))
def test_patterns_mean_what_the_standard_library_says(pattern, text):
    ours, theirs = compile_pattern(pattern, "exact"), re.compile(pattern)
    assert found_in(text, ours) == (theirs.search(text) is not None)
    matches = list(theirs.finditer(text))
    expected = None if not matches else (matches[-1][1] if theirs.groups else matches[-1][0]) or ""
    assert find_answer(text, ours) == expected
