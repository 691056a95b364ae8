"""The composite scorer: names, weights, sources, and verifiers that hang, crash, fail or lie."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import verifiers_for_tests
from processes import alive
from scoring import completion, prompt, score_all

from dapo.config.schema import DataSource, Reward
from dapo.data import load_problems
from dapo.errors import RewardError
from dapo.rewards.compose import CompositeScorer, build_scorer
from dapo.rewards.judges import Verifier, ask, make_judge
from dapo.types.batch import MODEL, Turn

HERE = Path(__file__).parent
OBEY = "verifiers_for_tests:obey"


@pytest.fixture
def make() -> Iterator[Callable[..., CompositeScorer]]:
    made: list[CompositeScorer] = []

    def build(*rewards: Reward, **options: Any) -> CompositeScorer:
        made.append(build_scorer(rewards, **options))
        return made[-1]

    yield build
    for scorer in made:
        scorer.close()


# ---------------------------------------------------------------- inline kinds


def test_exact_takes_the_last_line_or_the_pattern(make: Any) -> None:
    last_line = make(Reward(kind="exact"))
    values = [
        s.reward for s in score_all(last_line, ["42", "so\n  42 \n\n", "4 2", "42 apples", "43\n42", "42\n43", ""])
    ]
    assert values == [1, 1, 0, 0, 1, 0, 0]
    pattern = make(Reward(kind="exact", pattern=r"=(-?\d+)\s*$"))
    scores = score_all(pattern, ["+7 =11 -8 =42", "=42 =43", "42", "=42 \n", "=042"])
    assert [s.reward for s in scores] == [1, 0, 0, 1, 0]
    assert [s.answer for s in scores] == ["42", "43", None, "42", "042"]


def test_exact_reads_white_space_runs_as_one_and_minds_case(make: Any) -> None:
    scorer = make(Reward(kind="exact"))
    scores = score_all(scorer, ["New   York", "new york", "New\N{NO-BREAK SPACE}York"], prompt("New York"))
    assert [s.reward for s in scores] == [1, 0, 1]


def test_regex(make: Any) -> None:
    scorer = make(Reward(kind="regex", pattern=r"(?s)<think>.*</think>"))
    assert [s.values["accuracy"] for s in score_all(scorer, ["<think>\nx</think> y", "y"])] == [1, 0]


def test_an_environment_that_rewards_beyond_the_unit_interval_gets_a_name_of_its_own(make: Any) -> None:
    played = replace(completion("42"), ended="done", turns=(Turn(0, 2, MODEL, "42", reward=1.5),))
    (alone,) = score_all(make(Reward(kind="environment")), [played])
    assert alone.reason == (
        "accuracy: 1.5 is not in [0, 1]; call the environment's reward otherwise, and add one called accuracy"
    )
    (both,) = score_all(make(Reward(kind="exact", weight=0), Reward(name="score", kind="environment")), [played])
    assert (both.reward, dict(both.values)) == (1.5, {"accuracy": 1.0, "score": 1.5})


def test_weights_names_and_recorded_only(make: Any) -> None:
    scorer = make(
        Reward(kind="exact", weight=2.0),
        Reward(name="polite", kind="regex", pattern="please", weight=0.5),
        Reward(name="short", kind="regex", pattern=r"^.{0,9}$", weight=0),
    )
    scores = score_all(scorer, ["please\n42", "42"])
    assert dict(scores[0].values) == {"accuracy": 1, "polite": 1, "short": 0}
    assert [s.reward for s in scores] == [2.5, 2.0]


def test_rewards_per_source(make: Any) -> None:
    scorer = make(
        Reward(kind="exact", sources=["text"]),
        Reward(kind="regex", pattern="yes", sources=["talk"]),
        sources=["text", "talk"],
    )
    assert score_all(scorer, ["42"], prompt(source="text"))[0].reward == 1
    assert score_all(scorer, ["yes!"], prompt(source="talk"))[0].reward == 1
    lost = score_all(scorer, ["42"], prompt(source="other"))[0]
    assert lost.reason == "accuracy: no reward called accuracy applies to the source 'other'"


def test_signed_sum_scores_its_last_word(make: Any) -> None:
    scorer = make(Reward(kind="task"), tasks=["signed_sum"])
    of = prompt("6", task="signed_sum")
    scores = score_all(scorer, ["+7 =11 -8 =3 +3 =6", "=6 ?", "6", "", "+2 =16", "=6"], of)
    assert [s.reward for s in scores] == [1, 0, 0, 0, 0, 1]
    assert [s.answer for s in scores] == ["6", None, None, None, "16", "6"]
    assert scorer.quick
    assert scorer._pool is None, "it needs no worker process"
    in_worker = make(Reward(kind="task"), tasks=["signed_sum", "reasoning_gym/chain_sum"])
    assert not in_worker.quick
    assert score_all(in_worker, ["=6", "=7"], of)[0].reward == 1


@pytest.mark.whole
def test_task_reward_on_a_file_is_unscored_with_its_reason(make: Any) -> None:
    score = score_all(make(Reward(kind="task")), ["42"])[0]
    assert score.reason is not None
    assert "needs a procedural source" in score.reason


# ---------------------------------------------------------------- in workers


def test_math_in_a_worker(make: Any) -> None:
    scorer = make(Reward())
    texts = [r"\boxed{\frac{84}{2}}", "Answer: 41", "42", "#### 42"]
    scores = score_all(scorer, texts)
    assert [s.reward for s in scores] == [1, 0, 0, 1]
    assert [s.answer for s in scores] == ["42", "41", None, "42"]  # equal numbers vote alike
    assert scorer.stats()["scored"] == 4


def test_reasoning_gym_scores_its_own_answers(make: Any) -> None:
    pytest.importorskip("reasoning_gym")
    scorer = make(Reward(kind="task"))
    # polynomial_equations' scorer reads its configuration
    for name, options in (("chain_sum", {"min_terms": 2}), ("polynomial_equations", {})):
        source = DataSource(task=f"reasoning_gym/{name}", options=options, size=2)
        for problem in load_problems(source):
            of = prompt(problem.answer, **problem.extra)
            right, tagged, wrong = score_all(
                scorer, [problem.answer, f"hm\n<answer>{problem.answer}</answer>", "<answer>12345</answer>"], of
            )
            assert right.reward == tagged.reward == 1.0, (name, right, tagged)
            assert wrong.reward < 0.1, (name, wrong)


def test_imports_are_not_taken_from_a_response_s_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("reasoning_gym")
    monkeypatch.delitem(sys.modules, "reasoning_gym")
    make_judge(Verifier("task", "accuracy"))  # what a worker does before it says that it is ready
    assert "reasoning_gym" in sys.modules


def test_signed_sums_import_nothing_of_reasoning_gym(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    imported: list[str] = []
    monkeypatch.setattr("dapo.rewards.judges.warm_up", lambda: imported.append("reasoning_gym"))
    make(Reward(kind="task"), tasks=["signed_sum"])
    assert not imported


def test_what_a_function_may_return(make: Any) -> None:
    scorer = make(Reward(kind="function", function=OBEY))
    scores = score_all(scorer, ["one", "true", "half", "numpy", "dict"])
    assert [s.reward for s in scores] == [1, 1, 0.5, 1, 1]
    assert dict(scores[4].values) == {"accuracy": 1.0, "format": 0.25}


BAD = {
    "nan": "not a number: nan",
    "inf": "not a number: inf",
    "none": "not a number: NoneType None",
    "text": "not a number: str '1.0'",
    "seven": "accuracy: 7 is not in [0, 1]",
    "minus": "accuracy: -0.5 is not in [0, 1]",
    "huge text": "not a number: str 'xxxx",
    "huge number": "not a number: int (cannot be shown) (OverflowError",
    "huge dict": "not a number: a dict of 100000 entries",
    "no accuracy": "not a number: a dict without 'accuracy'",
    "odd key": "not a number: a dict with the key int 3",
    "function": "not a number: function <function",
    "hostile": "not a number: Hostile",
    "fail": "exception: ValueError: no such answer",
    "leave": "exception: SystemExit: 3",
    "crash": "crash: the process ended with code 7",
    "segfault": "crash: the process ended with code -11",
    "slash": "name: the key str 'len/mean' cannot name a metric: it has a slash",
    "empty key": "name: the key str '' cannot name a metric: it is empty",
    "blank key": "name: the key str ' ' cannot name a metric: it is empty",
    "newline key": r"name: the key str 'a\nb' cannot name a metric: it has a character that cannot be printed",
    "raw": "name: the key str 'raw' cannot name a metric: it is taken: `reward/raw`",
    "shaped": "name: the key str 'shaped_mean' cannot name a metric: it is taken",
    "kept": "name: the key str 'format_kept' cannot name a metric: it ends in `_kept`",
    "placeholder": "name: the key str '<name>' cannot name a metric: it has an angle bracket",
    "surrogate key": r"name: the key str '\ud800' cannot name a metric: it has a character that cannot be printed",
    "escape key": r"name: the key str '\x1b[2J' cannot name a metric: it has a character that cannot be printed",
    "long key": "name: the key str 'kkkk",
    "beyond": "not a number: 1e+300 is beyond 1e+15",
    "surrogate error": r"exception: KeyError: '\ud800'",
    "hang": "timeout: no answer within 2 s",
    "hang in c": "timeout: no answer within 2 s",
}


@pytest.mark.whole
def test_misbehaviour_is_unscored_with_its_reason_and_harms_no_neighbour(make: Any) -> None:
    """All kinds in one queue, each between good responses: only the bad ones are unscored."""
    scorer = make(Reward(kind="function", function=OBEY, timeout=2), workers=2)
    texts = [word for bad in BAD for word in (bad, "one", "half")]
    scores = score_all(scorer, texts)
    for text, score in zip(texts, scores, strict=True):
        if text in BAD:
            assert score.reason is not None, text
            assert score.reason.startswith(BAD[text]), (text, score.reason)
            assert len(score.reason) < 500
            assert np.isnan(score.reward)
        else:
            assert (score.reason, score.reward) == (None, {"one": 1.0, "half": 0.5}[text])
    assert scorer.failures == {
        "timeout": 2,
        "crash": 2,
        "exception": 3,
        "not a number": 12,
        "name": 11,
        "accuracy": 2,
    }
    assert scorer.stats()["worker_restarts"] == 4
    assert scorer.stats()["scored"] == 2 * len(BAD)


def test_printing_disturbs_nothing_and_can_be_kept(make: Any, tmp_path: Path, capfd: Any) -> None:
    log = tmp_path / "logs" / "rewards.log"
    scorer = make(Reward(kind="function", function=OBEY), output=log)
    assert [s.reward for s in score_all(scorer, ["noisy", "one", "noisy"])] == [1, 1, 1]
    assert capfd.readouterr().out == ""
    assert b"more noise" in log.read_bytes()


def test_changes_a_function_makes_to_its_inputs_are_seen_by_nobody(make: Any) -> None:
    scorer = make(Reward(kind="function", function=OBEY))
    of = prompt(list=[1])
    assert [s.reward for s in score_all(scorer, ["mutate"] * 6, of)] == [1] * 6
    assert of.extra == {"list": [1]}


def test_names_that_never_repeat_do_not_become_metrics_without_end(make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr("dapo.rewards.compose.MAX_NAMES", 3)
    scorer = make(Reward(kind="function", function="verifiers_for_tests:numbered"))
    scores = score_all(scorer, ["a", "b", "c", "b", "d"])
    assert [s.scored for s in scores] == [True, True, False, True, False]
    assert scores[2].reason == "name: 'c' would be one name too many; a run has at most 3"
    assert dict(scores[2].values) == {"accuracy": 1.0}


def test_two_verifiers_of_which_one_fails(make: Any) -> None:
    scorer = make(Reward(kind="exact"), Reward(name="quality", kind="function", function=OBEY, weight=0.5))
    bad, _ = score_all(scorer, ["fail", "one"], prompt("one"))
    lines = inspect.getsource(verifiers_for_tests).splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "such answer" in text)
    assert bad.reason == (
        "exception: ValueError: no such answer "
        f"(raised by verifiers_for_tests:obey, verifiers_for_tests.py line {line}) (reward 'quality')"
    )
    good = score_all(scorer, ["half"], prompt("half"))[0]
    assert good.reason == "not a number: a dict without 'quality'" or good.reward == 1.25


def test_the_same_scores_with_any_number_of_workers(make: Any) -> None:
    texts = ["one", "half", "fail", "dict", "nan"] * 20
    runs = [score_all(make(Reward(kind="function", function=OBEY), workers=n), texts) for n in (1, 3)]
    assert [(dict(s.values), s.reason) for s in runs[0]] == [(dict(s.values), s.reason) for s in runs[1]]


def test_poll_without_waiting_and_with_nothing_to_wait_for(make: Any) -> None:
    scorer = make(Reward(kind="function", function=OBEY))
    assert scorer.poll(0) == []
    assert scorer.poll(None) == []
    scorer.submit((0, 0), prompt(), completion("one"))
    assert [key for key, _ in scorer.poll(None)] == [(0, 0)]


# ---------------------------------------------------------------- set-up


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:f", "No module named 'no_such_module'"),
        ("verifiers_for_tests:obay", "did you mean obey"),
        ("verifiers_for_tests:ORDERS", "not as a function"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_refused_at_once(make: Any, function: str, message: str) -> None:
    with pytest.raises(RewardError, match=message):
        make(Reward(kind="function", function=function))


def test_a_module_of_the_current_folder_is_found(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_rewards.py").write_text("def score(prompt, completion):\n    return len(completion.text) / 10\n")
    monkeypatch.chdir(tmp_path)
    scorer = make(Reward(kind="function", function="my_rewards:score"))
    assert score_all(scorer, ["12345"])[0].reward == 0.5


@pytest.mark.parametrize(
    ("rewards", "message"),
    [
        ([Reward(name="quality", kind="exact")], "no reward is called `accuracy`"),
        ([Reward(), Reward(name="a/b", kind="exact")], "'a/b': the name has a slash"),
        ([Reward(), Reward(name="", kind="exact")], "'': the name is empty"),
        ([Reward(), Reward(name="raw", kind="exact")], "'raw': the name is taken"),
        ([Reward(), Reward(name="x_kept", kind="exact")], "ends in `_kept`"),
        ([Reward(kind="exact"), Reward(kind="math")], "two rewards are called 'accuracy'"),
        ([Reward(kind="regex")], "needs a `pattern`"),
        ([Reward(kind="exact", pattern="(")], "not a regular expression"),
        ([Reward(kind="exact", pattern="(" * 5000 + ")" * 5000)], "not a regular expression"),
        ([Reward(kind="regex", pattern="a{999999999999}")], "not a regular expression"),
        ([Reward(kind="function")], "belong together"),
        ([Reward(kind="math", function="a:b")], "belong together"),
        ([Reward(kind="math", pattern="x")], "`pattern` has no effect"),
        ([Reward(kind="exact", sources=["sett"])], "is for the source 'sett'"),
        ([Reward(kind="exact", sources=["set"])], "no reward is called `accuracy` for the source 'other'"),
    ],
)
def test_contradictions_are_refused(make: Any, rewards: list[Reward], message: str) -> None:
    with pytest.raises(RewardError, match=message.replace("(", r"\(")):
        make(*rewards, sources=["set", "other"])


# ---------------------------------------------------------------- processes


def children(scorer: CompositeScorer) -> list[int]:
    assert scorer._pool is not None
    return [worker.process.pid for worker in scorer._pool._workers]


@pytest.mark.whole
def test_workers_are_lazy_and_end_at_close(make: Any) -> None:
    scorer = make(Reward())
    assert children(scorer) == []
    score_all(scorer, [r"\boxed{42}"])
    (pid,) = children(scorer)
    assert alive(pid)
    scorer.close()
    assert not alive(pid)


def test_workers_do_not_import_torch(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "spy.py").write_text(
        "import sys\ndef score(prompt, completion):\n    return float('torch' in sys.modules)\n"
    )
    monkeypatch.chdir(tmp_path)
    # a math verifier beside it: what it imports counts too
    scorer = make(Reward(kind="function", function="spy:score"), Reward(name="maths", kind="math", weight=0))
    assert score_all(scorer, ["x"])[0].values["accuracy"] == 0.0


def test_ctrl_c_does_not_reach_workers(make: Any) -> None:
    scorer = make(Reward(kind="function", function=OBEY))
    (pid,) = children(scorer)
    assert os.getsid(pid) != os.getsid(0)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("None", "not a number: NoneType None (returned by my_reward_{}:score)"),
        ("'1.0'", "not a number: str '1.0' (returned by my_reward_{}:score)"),
        ("float('nan')", "not a number: nan (returned by my_reward_{}:score)"),
        ("(1.0, 'fine')", "not a number: tuple (1.0, 'fine') (returned by my_reward_{}:score)"),
        (
            "completion.txt",
            "exception: AttributeError: 'str' object has no attribute 'txt' (raised by my_reward_{}:score, "
            "my_reward_{}.py line 2)",
        ),
    ],
)
def test_a_function_is_named_with_what_it_returned(body, said, tmp_path, monkeypatch):
    module = f"my_reward_{len(body)}"
    (tmp_path / f"{module}.py").write_text(f"def score(prompt, completion):\n    return {body}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    judge = make_judge(Verifier("function", "accuracy", f"{module}:score"))
    outcome, _ = ask(judge, None, "text")
    assert outcome == said.replace("{}", str(len(body)))
