"""Whatever a model writes is read in time that grows in proportion to it, and judged within a limit."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from scoring import completion, prompt, score_all

from dapo.config.schema import Reward
from dapo.rewards import simple, task
from dapo.rewards.compared_text import MAX_ANSWER, normalise, vote_text
from dapo.rewards.compose import build_scorer
from dapo.rewards.judges import Verifier, ask, make_judge
from dapo.rewards.marks import extract_answer
from dapo.rewards.math import vote
from dapo.rewards.simple import equals, find_answer
from dapo.rewards.task import extract_task_answer

MANY = 1 << 18  # characters: squared they are hours of work
HOSTILE = {
    "degrees": "Answer: " + "°" * MANY + "x",
    "circles": r"\boxed{" + r"^\circ" * 300 + "x}",
    "open boxes": r"\boxed{" * (MANY // 7),
    "boxes within boxes": r"\boxed{" * (MANY // 8) + "1" + "}" * (MANY // 8),
    "boxes without braces": r"\boxed " * (MANY // 7),
    "boxes and blanks": (r"\boxed" + " " * 50_000) * 20,
    "closing braces": "}" * MANY + r"\boxed{1}",
    "open braces": r"\boxed{" + "{" * MANY,
    "a sentence of blanks": r"\boxed{answer is" + " " * 3900 + "x\ny}",
    "a sentence of dots": "Answer: answer is" + ". " * 1900 + "x",
    "a long sentence": "Answer: answer is" + " ." * (MANY // 2),
    "answer lines": "Answer: \n" * (MANY // 9),
    "an answer line of blanks": "answer:" + "\n" * MANY,
    "emphasis": "Answer: " + "*." * (MANY // 2),
    "peeled brackets": "Answer: " + r"\(" * (MANY // 4) + "1" + r"\)" * (MANY // 4),
    "short peeled brackets": "Answer: " + r"\(" * 900 + "1" + r"\)" * 900,
    "hashes": "#### " * (MANY // 5),
    "tags": "<answer>" * (MANY // 8),
    "closed tags": "<answer></answer>" * (MANY // 17),
    "units": r"\boxed{1" + r"\text{a" * 300 + "}" * 301,
    "unicode digits": "Answer: " + "٤" * MANY,
    "short unicode digits": "Answer: " + "٤" * MAX_ANSWER,
    "long ligatures": "\ufdfa" * MANY,
    "accents": "e" + "\u0301\u0316" * (MANY // 2),
    "blanks": " " * MANY + "=1",
    "equal signs": "=" * MANY,
    "commas": "Answer: 1" + ",111" * 400 + "x",
    "surrogates": "Answer: " + "\ud800" * 100,
}


def read_everything() -> None:
    """Every way of reading on every hostile text, in one process."""
    signed_sum = prompt("42", task="signed_sum")
    for name, hostile in HOSTILE.items():
        found = extract_answer(hostile)
        vote(found)
        simple.vote(simple.find_answer(hostile, None))
        assert equals(find_answer(hostile, None), "42") == 0.0
        for of in (prompt("42"), signed_sum):
            vote_text(task.read_answer(of, hostile) or "")
        assert task.signed_sum(signed_sum, completion(hostile)) == 0.0
        print(name, flush=True)


def test_hostile_texts_are_read_in_proportion_to_their_length() -> None:
    """Reading these by squares takes hours of processor time, in proportion a second or two.

    The kernel holds the bound, on processor time, so a busy machine changes nothing.
    """
    code = f"""
import resource, sys
sys.path.insert(0, {str(Path(__file__).parent)!r})
import test_rewards_bounded
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
test_rewards_bounded.read_everything()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.splitlines() == list(HOSTILE), (done.returncode, done.stderr[-2000:])


def test_the_last_finished_box_is_the_one_that_a_plain_search_finds() -> None:
    """Against the definition, written down as simply as it can be, on random nests."""

    def plain(text: str) -> str | None:
        found = None
        for start in range(len(text)):
            if text.startswith(r"\boxed{", start):
                depth, first = 0, start + len(r"\boxed")
                for index in range(first, len(text)):
                    if text[index] in "{}" and text[index - 1] != "\\":
                        depth += 1 if text[index] == "{" else -1
                    if depth == 0:
                        found = text[first + 1 : index]
                        break
        return found

    draw = random.Random(7)
    parts = [r"\boxed{", r"\boxed{", "{", "}", "}", r"\{", r"\}", "7", "a"]
    texts = ["".join(draw.choices(parts, k=draw.randint(1, 12))) for _ in range(3000)]
    assert sum(plain(text) is not None for text in texts) > 500
    for text in texts:
        found = plain(text)
        assert extract_answer(text) == (None if found is None else found.strip()), text


def test_an_answer_too_long_to_be_one_is_wrong_and_never_its_beginning() -> None:
    assert len(extract_answer("Answer: 42" + " " * 5000 + "or 43") or "") > MAX_ANSWER
    judge = make_judge(Verifier("math", "accuracy"))
    for text in ("Answer: 42" + " " * 5000 + "or 43", r"\boxed{42" + " " * 3000 + "or 43}", "Answer: " + "4" * 3000):
        value, _ = ask(judge, prompt("42"), completion(text))
        assert value == {"accuracy": 0.0}, text[:20]
    value, answer = ask(judge, prompt("42"), completion("Answer: 42" + " " * 5000))
    assert (value, answer) == ({"accuracy": 1.0}, "42")


def test_long_answers_vote_apart_and_short() -> None:
    one, other = "4" * 3000 + "1", "4" * 3000 + "2"
    assert vote_text("4" * MAX_ANSWER) == "4" * MAX_ANSWER
    assert vote_text(one) == vote_text(one) != vote_text(other)
    assert len(vote_text(one)) < MAX_ANSWER
    assert vote(extract_answer(f"Answer: {one}")) is not None


def test_exact_equality_is_that_of_whole_normalised_texts() -> None:
    """The cut by length loses nothing: the longest run of characters that NFKC makes one has four."""
    longest = "\u03b1\u0313\u0300\u0345"  # alpha with three marks
    assert len(normalise(longest)) == 1
    assert equals(longest * 10, "\u1f82" * 10) == 1.0
    assert equals("\u1f82" * 10, longest * 10) == 1.0
    assert equals("x" * 50_000, "x" * 50_000) == 1.0
    assert equals("x" * 50_001, "x" * 50_000) == 0.0
    assert equals("42" + " " * MANY, "42") == 1.0
    assert (equals(None, ""), equals("", ""), equals(find_answer("\n\n", None), "")) == (0.0, 1.0, 0.0)


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("<answer>1</answer> or <answer> 2 </answer>", "2"),
        ("<answer>1<answer>2</answer>", "1<answer>2"),
        ("<answer>1</answer><answer>2", "1"),
        ("</answer><answer>1</answer></answer>", "1"),
        ("<answer>1", "<answer>1"),
        ("<answer></answer>", ""),
    ],
)
def test_the_last_finished_tag_counts(text: str, answer: str) -> None:
    assert extract_task_answer(text) == answer


# ---------------------------------------------------------------- judging


@pytest.mark.whole
def test_a_pattern_that_backtracks_without_end_costs_its_time_limit_and_no_more() -> None:
    hostile = "1+" * 40 + "!"
    for kind in ("regex", "exact"):
        scorer = build_scorer([Reward(kind=kind, pattern=r"^((?:[-+=0-9 ]|[1+][1+])+)[xyz]$", timeout=1.5)])
        try:
            scores = score_all(scorer, [hostile, "12x", hostile, hostile], prompt("12x" if kind == "regex" else "12"))
        finally:
            scorer.close()
        assert [s.reason and s.reason.split(":")[0] for s in scores] == ["timeout", None, "timeout", "timeout"]
        assert scores[1].values["accuracy"] == 1.0
        assert scorer.stats()["timeouts"] == 1, "an equal text is not tried again"


@pytest.mark.whole
def test_equal_hostile_answers_cost_one_time_limit(caplog: pytest.LogCaptureFixture) -> None:
    """Of one gold answer, whatever stands around the mark; another gold answer is another question."""
    scorer = build_scorer([Reward(timeout=4.0)])
    texts = [f"{n}. " + r"\boxed{\sum_{k=1}^{10^{9}} k^{k}}" for n in range(60)] + [r"\boxed{42}"]
    try:
        scores = score_all(scorer, texts)
        assert [s.reason is None for s in scores] == [False] * 60 + [True]
        assert all(s.reason and s.reason.startswith(("timeout", "exception: MemoryError")) for s in scores[:60])
        assert scorer.stats()["worker_restarts"] <= 1
        assert [s.scored for s in score_all(scorer, texts[:3])] == [False] * 3
        assert scorer.stats()["worker_restarts"] <= 1
    finally:
        scorer.close()


@pytest.mark.whole
def test_what_time_limits_cost_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapo.rewards.pool.TOLD_SECONDS", 0.4)
    scorer = build_scorer([Reward(kind="function", function="verifiers_for_tests:obey", timeout=0.2)])
    try:
        score_all(scorer, ["hang"] * 4)
    finally:
        scorer.close()
    told = [record.getMessage() for record in caplog.records if "ran into the time limit" in record.getMessage()]
    assert [line.split()[0] for line in told] == ["2", "4"], "at the second, and when that has doubled"


@pytest.mark.whole
def test_what_lost_workers_cost_is_told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reward that ends its process on half of the responses costs those verdicts, and the starts are told."""
    monkeypatch.setattr("dapo.rewards.pool.TOLD_SECONDS", 1e-6)
    scorer = build_scorer([Reward(kind="function", function="verifiers_for_tests:obey", timeout=60)])
    try:
        scores = score_all(scorer, ["crash", "half"] * 3)
    finally:
        scorer.close()
    assert [score.scored for score in scores] == [False, True] * 3
    told = [record.getMessage() for record in caplog.records if "were lost" in record.getMessage()]
    assert told
    assert told[0].startswith("1 worker processes for rewards were lost, 0 of them to a time limit")
    assert len(told) < 3, "again at each doubling, not each time"


@pytest.mark.whole
def test_a_time_limit_of_a_function_is_not_remembered() -> None:
    """It may depend on anything, the time of day included."""
    scorer = build_scorer([Reward(kind="function", function="verifiers_for_tests:obey", timeout=0.2)])
    try:
        score_all(scorer, ["hang"] * 3)
    finally:
        scorer.close()
    assert scorer.stats()["timeouts"] == 3
