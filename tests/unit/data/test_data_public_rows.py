r"""Rows of the public data sets as they are: what is asked, the gold answer, and the line that reads any other."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from dapo.config import Recipe
from dapo.config.schema import Data, Sft, TrainSource
from dapo.data import RawProblem, load_problems, prepare
from dapo.data.answers import Answers, answers_read
from dapo.data.demonstrations import prepare_demonstrations
from dapo.errors import DataError

ASKED = "A robe takes 2 bolts of blue fiber and half that much white fiber. How many bolts in total?"
WORKED = "It takes 2/2=1 bolt of white fiber.\nSo the total is 2+1=3 bolts.\n"
USER, SAYS = {"role": "user", "content": ASKED}, {"role": "assistant", "content": WORKED + "#### 3"}
SYSTEM = {"role": "system", "content": "Be brief."}


def write(path: Path, *rows: Any) -> TrainSource:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TrainSource(path=str(path))


def read(path: Path, *rows: Any, answers: Answers = Answers.COMPARED, **settings: Any) -> list[RawProblem]:
    source = write(path / "rows.jsonl", *rows).model_copy(update=settings)
    return load_problems(source, answers)


PUBLIC: dict[str, dict[str, Any]] = {
    "MATH": {"problem": ASKED, "level": "Level 1", "type": "Algebra", "solution": WORKED + r"That is $\boxed{3}$."},
    "NuminaMath": {"source": "olympiads", "problem": ASKED, "solution": r"\boxed{1} of white, $\boxed{3}$ in all"},
    "OpenR1": {"problem": ASKED, "solution": WORKED, "answer": "3", "messages": [USER, SAYS]},
    "AIME of another hub": {"ID": "2024-I-1", "Problem": ASKED, "Solution": WORKED, "Answer": 3},
    "GSM8K": {"question": ASKED, "answer": WORKED + "#### 3"},
    "GSM8K under another name": {"prompt": ASKED, "answer": WORKED + "#### 3"},
    "MetaMath": {"query": ASKED, "response": WORKED + "The answer is: 3", "type": "GSM_AnsAug"},
    "Alpaca": {"instruction": ASKED, "input": "", "output": "3"},
    "ShareGPT": {"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": SAYS["content"]}]},
    "messages": {"messages": [USER, SAYS]},
    "prompt and completion": {"prompt": ASKED, "completion": " 3"},
    "TRL's conversations": {"prompt": [USER], "completion": [SAYS]},
    "TRL's rewards": {"prompt": [USER], "solution": "3"},
    "OpenMathReasoning": {"problem": ASKED, "expected_answer": "3", "generated_solution": WORKED},
    "verl": {
        "data_source": "openai/gsm8k",
        "prompt": [USER],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "3"},
        "extra_info": {"index": 7, "answer": WORKED, "question": ASKED},
    },
    "SkyRL": {
        "data_source": "openai/gsm8k",
        "prompt": [USER],
        "env_class": "gsm8k",
        "reward_spec": {"method": "rule", "ground_truth": "3"},
        "extra_info": {"index": 7},
    },
}


@pytest.mark.parametrize("row", PUBLIC.values(), ids=PUBLIC)
def test_a_public_row_is_read_without_a_setting(tmp_path: Path, row: dict[str, Any]) -> None:
    (problem,) = read(tmp_path, row)
    assert (problem.problem, problem.answer, problem.messages) == (ASKED, "3", ())


@pytest.mark.parametrize("name", ["MATH", "MetaMath", "prompt and completion"])
def test_a_worked_solution_stays_a_column_and_the_report_names_it(tmp_path: Path, name: str) -> None:
    """Its result alone is the answer, and reward functions may want the steps."""
    (column,) = {"solution", "response", "completion"} & PUBLIC[name].keys()
    (problem,) = read(tmp_path, PUBLIC[name])
    assert problem.extra[column] == PUBLIC[name][column]
    report = prepare(Data(train=[write(tmp_path / "a.jsonl", PUBLIC[name])], prompt="raw"), Letters()).report
    assert any(f"`{column}`" in line for line in report.lines())


def test_nested_columns_reach_functions_as_they_are(tmp_path: Path) -> None:
    (problem,) = read(tmp_path, PUBLIC["verl"])
    assert problem.extra["extra_info"] == {"index": 7, "answer": WORKED, "question": ASKED}
    assert problem.extra["reward_model"]["style"] == "rule"


def test_the_input_of_an_instruction_belongs_to_the_problem(tmp_path: Path) -> None:
    rows = [{"instruction": "Add them.", "input": "2, 3", "output": "5"}, {"instruction": "Go.", "output": "4"}]
    found = read(tmp_path, *rows)
    assert [p.problem for p in found] == ["Add them.\n\n2, 3", "Go."]
    assert found[0].extra == {"output": "5"}
    mapped = read(tmp_path, *rows[:1], fields={"problem": "instruction", "answer": "output", "numbers": "input"})
    assert (mapped[0].problem, mapped[0].extra) == ("Add them.", {"numbers": "2, 3"})


def test_the_input_of_an_instruction_is_imitated_too(tmp_path: Path) -> None:
    source = write(tmp_path / "a.jsonl", {"instruction": "Add them.", "input": "2, 3", "output": "5"})
    sft = Sft.model_validate({"train": [{"path": str(tmp_path / "a.jsonl")}]})
    made = prepare_demonstrations(sft, Data(train=[source], prompt="raw"), Letters(), [1])
    assert made.train[0].prompt.problem == "Add them.\n\n2, 3"


def test_all_turns_before_the_last_answer_are_asked(tmp_path: Path) -> None:
    turns = [("system", "Be brief."), ("human", "2+2?"), ("gpt", "4"), ("human", "And 3+3?"), ("gpt", "Answer: 6")]
    row = {"conversations": [{"from": who, "value": said} for who, said in turns]}
    text = {"conversations": json.dumps(row["conversations"])}  # as a CSV file holds it
    for problem in read(tmp_path, row, text):
        assert (problem.problem, problem.answer) == ("And 3+3?", "6")
        assert [message["role"] for message in problem.messages] == ["system", "user", "assistant", "user"]


def test_solutions_without_a_result_are_passed_over_with_the_line_that_takes_them_whole(tmp_path: Path) -> None:
    proof = {"problem": "Prove it.", "solution": "Suppose not.\nThen it is, a contradiction."}
    assert [p.answer for p in read(tmp_path, proof, PUBLIC["MATH"])] == ["3"]
    with pytest.raises(DataError, match=r"1 without, the first: .*line 1.*`solution`") as refused:
        read(tmp_path, proof)
    (whole,) = read(tmp_path, proof, fields=pasted(refused.value))
    assert (whole.problem, whole.answer) == (proof["problem"], proof["solution"])
    (handed,) = read(tmp_path, proof, answers=Answers.PASSED_ON)
    assert handed.answer == proof["solution"]


def pasted(error: Exception) -> dict[str, str]:
    """The mapping that a refusal shows, read as YAML reads it."""
    found = re.search(r"`(fields: \{.*?\})`", str(error))
    assert found, error
    fields: dict[str, str] = yaml.safe_load(found[1])["fields"]
    return fields


@pytest.mark.parametrize(
    ("row", "problem", "answer"),
    [
        ({"id": 7, "text": ASKED, "label": "3"}, ASKED, "3"),
        ({"id": 7, "question": ASKED, "gold answer": "3"}, ASKED, "3"),
        ({"uid": "x1", "data": {"question": ASKED, "final": {"answer": 3}}}, ASKED, "3"),
        ({"prompt": [USER, {"role": "assistant", "content": "3"}]}, ASKED, "3"),
        ({"chat": [USER, {"role": "assistant", "content": "3"}], "n": 1}, ASKED, "3"),
        ({"q: 1": ASKED, "yes": "3"}, ASKED, "3"),
    ],
)
def test_the_line_of_a_refusal_reads_the_row(tmp_path: Path, row: dict[str, Any], problem: str, answer: str) -> None:
    with pytest.raises(DataError, match="fields: ") as refused:
        read(tmp_path, row)
    (found,) = read(tmp_path, row, fields=pasted(refused.value))
    assert (found.problem, found.answer) == (problem, answer)


def test_a_prompt_that_ends_with_the_assistant_is_refused_also_with_an_answer_of_its_own(tmp_path: Path) -> None:
    """It may be the beginning of the response."""
    with pytest.raises(DataError, match="fields: "):
        read(tmp_path, {"prompt": [USER, SAYS], "answer": "3"})


# ---------------------------------------------------------------- rewards that compare with no answer


def recipe_of(*rewards: dict[str, Any], **more: Any) -> Recipe:
    data = {"train": [{"path": "rows.jsonl"}], "validation": [{"path": "held.jsonl"}]}
    return Recipe.model_validate({"model": {"path": "a/b"}, "data": data, "rewards": [*rewards] or [{}], **more})


FUNCTION = {"kind": "function", "function": "mine:f"}
JUDGE = {"kind": "service", "url": "http://judge", "api": "openai", "model": "m"}


@pytest.mark.parametrize(
    ("recipe", "read"),
    [
        (recipe_of({"kind": "math"}), Answers.COMPARED),
        (recipe_of({"kind": "last_number"}), Answers.COMPARED),
        (recipe_of({"kind": "exact"}), Answers.COMPARED),
        (recipe_of({"kind": "code"}), Answers.UNREAD),
        (recipe_of({"kind": "code"}, {"name": "same", "kind": "exact", "weight": 0.1}), Answers.COMPARED),
        (recipe_of(FUNCTION), Answers.PASSED_ON),
        (recipe_of(JUDGE | {"template": "{problem} {response}"}), Answers.PASSED_ON),
        (recipe_of(JUDGE | {"template": "{problem} {response} {answer}"}), Answers.COMPARED),
        (recipe_of({"kind": "environment"}, environment={"kind": "mine:play"}), Answers.PASSED_ON),
        (recipe_of(scorer="mine:Scorer"), Answers.PASSED_ON),
    ],
)
def test_rewards_say_whether_they_compare_with_the_answer(recipe: Recipe, read: Answers) -> None:
    assert answers_read(recipe) == {"rows": read, "held": read}


def test_each_source_has_its_own_rewards() -> None:
    recipe = recipe_of({"kind": "code", "sources": ["rows"]}, {"kind": "math", "sources": ["held"]})
    assert answers_read(recipe) == {"rows": Answers.UNREAD, "held": Answers.COMPARED}


@pytest.mark.parametrize("more", [{}, {"answer": None}, {"solution": None}, {"solution": "def f():\n    return 1\n"}])
def test_code_needs_no_answer(tmp_path: Path, more: dict[str, Any]) -> None:
    row = {"prompt": "Write f.", "tests": ["assert f() == 1"], **more}
    (problem,) = read(tmp_path, row, answers=Answers.UNREAD)
    assert (problem.problem, problem.answer) == ("Write f.", "")
    assert {"tests", *(more.keys() - {"answer"})} <= problem.extra.keys()


def test_a_function_gets_rows_with_and_without_a_column_of_answers(tmp_path: Path) -> None:
    (problem,) = read(tmp_path, {"prompt": "Write a haiku."}, answers=Answers.PASSED_ON)
    assert (problem.problem, problem.answer) == ("Write a haiku.", "")
    rows = [{"prompt": "2+2?", "answer": "4"}, {"prompt": "3+3?", "answer": None}]
    assert [p.answer for p in read(tmp_path, *rows, answers=Answers.PASSED_ON)] == ["4"]
    with pytest.raises(DataError, match=r"line 2.*'answer'"):
        read(tmp_path, rows[0], {"prompt": "3+3?"}, answers=Answers.PASSED_ON)


def test_rewards_that_compare_refuse_rows_without_an_answer(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"line 1: none of the fields \['prompt'\] is known to hold the gold answer"):
        read(tmp_path, {"prompt": "Write a haiku."})


class Letters:
    """One token a character."""

    eos_token_id = 1

    def __call__(self, texts: list[str], add_special_tokens: bool = True) -> dict[str, list[list[int]]]:
        return {"input_ids": [list(map(ord, text)) for text in texts]}

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(map(chr, ids))
