"""``dapo check`` tries the rewards: what is wrong with one is said before a run, not after it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from test_cli_check_memory import facts_with

from dapo.cli.check_machine import Fit, Looked
from dapo.cli.check_rewards import try_rewards, wrong_answer
from dapo.cli.check_try import Measured, judged
from dapo.cli.main import main
from dapo.config import recipe_from_dict
from dapo.config.schema import Reward
from dapo.data import prepare
from dapo.errors import RewardError
from dapo.models.tiny import make_tiny_model, make_word_tokenizer
from dapo.types.batch import Group, Prompt, Response, Score
from dapo.types.enums import FinishReason

FUNCTIONS = """
import time

def by_level(prompt, completion):
    return float(completion.text.endswith(prompt.answer)) * (prompt.extra["level"] > 0)

def tagged(prompt, completion):
    return completion.text == f"<answer>{prompt.answer}</answer>"

def generous(prompt, completion):
    return 1.0

def never(prompt, completion):
    return 0

def hangs(prompt, completion):
    time.sleep(600)

def on_words(prompt, completion):
    return completion.text.split()[-1] == prompt.answer  # an empty answer has no last word

def by_distance(prompt, completion):
    said = completion.text.strip("=")
    return max(0.0, 1 - abs(int(said) - int(prompt.answer)) / 2) if said.isdigit() else 0.0

def signed(data_source, solution_str, ground_truth, extra_info=None):
    return 1.0 if solution_str.endswith(ground_truth) else -1.0

def signed_and_acc(data_source, solution_str, ground_truth, extra_info=None):
    score = signed(data_source, solution_str, ground_truth)
    return {"score": score, "acc": score > 0}

def counts(prompt, completion):
    return {"accuracy": completion.text.endswith(prompt.answer), "tokens": len(completion)}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards_to_check.py").write_text(FUNCTIONS)
    rows = [{"problem": f"{n} +1 =", "answer": str(n + 1), "level": 3} for n in range(1, 8)]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = [{"problem": f"{n} +2 =", "answer": str(n + 2)} for n in range(1, 4)]
    Path("held.jsonl").write_text("".join(json.dumps(row) + "\n" for row in held))
    return tmp_path


def tried(*rewards: dict[str, object], algorithm: object = None, **source: object):  # type: ignore[no-untyped-def]
    given = {
        "algorithm": algorithm or {},
        "model": {"path": "builtin/signed-sum"},
        "data": {"train": [{"path": "train.jsonl", **source}], "validation": [{"path": "held.jsonl"}], "prompt": "raw"},
        "rewards": list(rewards),
        "run": {"reward_workers": 1},
    }
    recipe = recipe_from_dict(given).recipe
    tokenizer = make_word_tokenizer()
    return try_rewards(recipe, prepare(recipe.data, tokenizer), tokenizer)


def function(name: str, **more: object) -> dict[str, object]:
    return {"kind": "function", "function": f"rewards_to_check:{name}", "timeout": 60, **more}


def test_good_rewards_leave_no_doubt() -> None:
    trial = tried({"kind": "exact"}, {"name": "has_digit", "kind": "regex", "pattern": r"\d", "weight": 0.0})
    assert trial.doubts == trial.refusals == []
    assert trial.lines[:4] == [
        "train: 7 problems, 7 of them with a gold answer",
        "  right ('GOLD')                 accuracy 1; has_digit 1",
        "  wrong                          accuracy 0; has_digit 1",
        "  empty                          accuracy 0; has_digit 0",
    ]


def test_a_function_that_one_source_cannot_feed_is_refused_with_the_columns_at_hand() -> None:
    trial = tried(function("by_level"))
    assert trial.lines[1].endswith("accuracy 1")  # training has the column
    (refusal,) = trial.refusals
    assert refusal.startswith("held: neither a gold nor an empty answer is scored: exception: KeyError")
    assert "'level' is no column of this prompt; prompt.extra holds nothing" in refusal
    with pytest.raises(RewardError, match="held: neither"):
        trial.refuse()


def test_the_form_that_a_function_wants_is_found() -> None:
    trial = tried(function("tagged"))
    assert trial.refusals == []
    assert [doubt[:61] for doubt in trial.doubts] == [  # the tokenizer knows no tags
        "train: 7 of 7 gold answers, written as '<answer>GOLD</answer>",
        "held: 3 of 3 gold answers, written as '<answer>GOLD</answer>'",
    ]
    assert trial.lines[1] == "  right ('<answer>GOLD</answer>') accuracy 1"


def test_of_several_right_forms_the_one_that_the_model_can_write_is_tried(folder: Path) -> None:
    """The quickstart's tokenizer has `=10`, and no `10`."""
    Path("train.jsonl").write_text('{"problem": "4 +6 =", "answer": "10"}\n{"problem": "4 +2 =", "answer": "6"}\n')
    assert tried(function("counts")).doubts == []


def test_an_accuracy_of_fractions_is_doubted_where_only_whole_ones_count() -> None:
    (doubt,) = tried(function("by_distance")).doubts
    assert doubt.startswith("accuracy is a fraction, such as 0.5: a group in which no response reaches 1 (")
    assert doubt.endswith("set algorithm.dynamic_sampling.mixed: spread")
    for settings in ({"mixed": "spread"}, {"keep": "mine:keep"}, {"mode": "off"}):
        assert tried(function("by_distance"), algorithm={"dynamic_sampling": settings}).doubts == []


def test_scores_of_minus_one_for_wrong_answers_are_no_accuracy() -> None:
    refusals = tried(function("signed")).refusals
    assert [text.partition(":")[0] for text in refusals] == ["train", "held"]
    assert "no wrong answer is scored (14 of 21 answers are unscored)" in refusals[0]
    assert "accuracy: -1 is not in [0, 1]" in refusals[0]
    assert "{name: accuracy, kind: math, weight: 0}" in refusals[0]
    trial = tried(function("signed_and_acc"))
    assert trial.refusals == trial.doubts == []
    assert "wrong score -1, acc 0, accuracy 0" in trial.brief[0]


def test_sums_that_scaling_clamps_are_doubted() -> None:
    rewards = ({"kind": "exact", "weight": 0.0}, {**function("signed"), "name": "score"})
    (doubt,) = tried(*rewards).doubts[-1:]
    assert "runs from -1 to 1 on these answers" in doubt
    assert "Set algorithm.reward_scaling.source_min=-1, or" in doubt
    for scaling in ({"source_min": -1.0}, {"enabled": False}):
        assert not any("clamps" in text for text in tried(*rewards, algorithm={"reward_scaling": scaling}).doubts)


@pytest.mark.whole
def test_other_failures_are_named() -> None:
    assert tried(function("generous")).doubts == [
        "train: wrong answers are right in the eyes of accuracy (function): 7 of 7",
        "train: empty answers are right in the eyes of accuracy (function): 7 of 7",
        "held: wrong answers are right in the eyes of accuracy (function): 3 of 3",
        "held: empty answers are right in the eyes of accuracy (function): 3 of 3",
    ]
    assert "calls no gold answer right in any form that was tried" in tried(function("never")).doubts[0]
    first = tried(function("on_words")).doubts[0]
    assert first.startswith("train: 7 of 21 answers are unscored: exception: IndexError")
    refusals = tried(function("hangs", timeout=0.5)).refusals
    assert [text.partition(" is scored: ")[2][:7] for text in refusals] == ["timeout", "timeout"]


def test_the_wrong_field_or_kind_is_refused() -> None:
    """The gold answers are whole sentences: ``exact`` reads them as they are, ``math`` finds its number in none."""
    rows = [{"problem": f"{n} =", "answer": f"First this,\nthen {n}"} for n in range(1, 5)]
    Path("train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (refusal,) = tried({"kind": "exact"}).refusals
    assert "train: accuracy (exact) calls all 4 gold answers wrong that were tried as 'GOLD'" in refusal
    assert "is `answer` the right field" in refusal


def test_values_are_those_of_real_tokens() -> None:
    """A completion is made as the tokenizer would: an empty answer has no tokens."""
    lines = tried(function("counts")).lines
    assert lines[1].endswith("accuracy 1; tokens 1")
    assert lines[3].endswith("accuracy 0; tokens 0")


@pytest.mark.parametrize(
    ("answer", "others", "wrong"),
    [
        ("7", ["7"], "8"),
        ("-1", ["3"], "0"),
        ("x^2", ["x^2", "", "x^3"], "x^3"),
        ("yes", ["yes"], "wrong"),
        ("9" * 5000, ["1"], "1"),
        ("", ["4"], "4"),
        ("²", ["5"], "5"),
    ],
)
def test_wrong_answers_differ(answer: str, others: list[str], wrong: str) -> None:
    prompts = [Prompt("", "", np.zeros(1, np.int64), "", text, "s") for text in [answer, *others]]
    assert wrong_answer(Reward(), prompts[0], prompts[1:]) == wrong


def test_check_ends_with_what_the_rewards_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = make_tiny_model(folder / "a model", hidden=16, layers=2, heads=2, ffn=32)
    recipe = folder / "mine too.yaml"
    recipe.write_text(
        f'model: {{path: "{model}"}}\ndata: {{train: [{{path: train.jsonl}}], prompt: raw}}\n'
        "rewards: [{kind: function, function: 'rewards_to_check:generous'}]\nvalidation: {every: 0}\n"
        "rollout: {prompts_per_step: 4, group_size: 3, max_response_tokens: 5}\n"
        "algorithm: {overlong_punishment: {enabled: false}}\n"
    )
    assert main(["check", str(recipe), "rewards.0.function=rewards_to_check:by_word"]) == 2
    captured = capsys.readouterr()
    assert "by_word" in captured.err
    assert captured.out.splitlines() == [f"{recipe}: refused"]
    mixture = "data.train=[{path: train.jsonl, weight: 1}, {path: held.jsonl, name: twos, weight: 2}]"
    assert main(["check", str(recipe), mixture, "run.name=a b", "--try", "3"]) == 0
    told = capsys.readouterr().out
    first, *odd = told.split("\nNot looked")[0].split("\nEvery detail")[0].splitlines()
    assert first.startswith(f"{recipe}: not good, with ")
    assert any(line.startswith("  not good: no group has right and wrong responses") for line in odd)
    assert any(line.startswith("  doubt: train: wrong answers are right") for line in odd)
    assert f"dapo train '{recipe}' '{mixture}' 'run.name=a b'" in told
    # --try: three groups of three from the model itself; all right, so a step could not fill its batch
    assert "3 groups, generated and scored" in told
    groups = [line for line in told.splitlines() if line.startswith("    3 of 3 right, ")]
    assert sorted(line.rpartition(": ")[2].split()[1] for line in groups) == [
        "+1",
        "+2",
        "+2",
    ]  # as training takes them
    assert "together: pass rate 100.0%, 0 of 3 groups with right and wrong responses" in told
    assert "s to generate and score 9 responses" in told
    assert "a step would not fill its batch" in told
    assert not (folder / "runs").exists()


def test_a_step_by_proportion() -> None:
    """4 groups in 2 s, 1 of them mixed, 0.5 s to learn: 8 wanted are 32 generated (16 s), 8 learned from (1 s)."""

    def group(index: int, *right: float) -> Group:
        prompt = Prompt("", "", np.zeros(1, np.int64), "p", "a", "s")
        tokens = np.zeros(10, np.int64)
        done = Response(tokens, np.zeros(10, np.float32), np.zeros(10, np.int32), FinishReason.STOP)
        return Group(
            index, prompt, [done] * len(right), [Score({"accuracy": value}, value, answer="1") for value in right]
        )

    groups = [group(0, 1, 1), group(1, 0, 0), group(2, 1, 0), group(3, 0, 0)]
    given = {
        "model": {"path": "builtin/signed-sum"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rollout": {"prompts_per_step": 8, "group_size": 2, "max_response_tokens": 100},
        "trainer": {"steps": 3600},
    }
    recipe, looked = recipe_from_dict(given).recipe, Looked(facts_with(100), Fit())
    found = Measured(groups, generated=2.0, learned=0.5, peak=2**30)
    lines, fit = judged(recipe, looked, found)
    text, (measured,) = "\n".join(lines), fit.lines
    assert "pass rate 37.5%, 1 of 4 groups with right and wrong responses, 10 tokens a response, 0% truncated" in text
    assert "2 s to generate and score 8 responses (40 tokens/s), 0.5 s to learn from 4 groups" in text
    assert "1.0 GiB at the peak" in text
    assert "a step about 17 s (16 s to generate and score 32 groups, 1 s to learn from 8), 3,600 steps" in measured
    assert "in about 17.0 h" in measured
    off = recipe_from_dict({**given, "algorithm": {"dynamic_sampling": {"mode": "off"}}}).recipe
    assert "a step about 5 s (4 s to generate and score 8 groups" in judged(off, looked, found)[1].lines[0]
