"""The verifiers verify themselves: every gold answer of every public set scores 1, another answer scores 0."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
from each import each

from dapo.config.schema import DataSource
from dapo.data import load_problems
from dapo.rewards.math import accuracy, same_answer, warm_up

DATA = Path(os.environ.get("DAPO_DATA", Path(__file__).parents[4] / "shared" / "data"))

# name -> (file, number of problems with an answer)
SETS = {
    "gsm8k_train": ("gsm8k/train.jsonl", 7473),
    "gsm8k_test": ("gsm8k/test.jsonl", 1319),
    "dapo_math_17k": ("dapo_math_17k/train.jsonl", 17917),
    "aime_2024": ("aime_2024/test.jsonl", 30),
    "aime_2025": ("aime_2025/test.jsonl", 30),
    "amc_2023": ("amc_2023/test.jsonl", 40),
    "math_500": ("math_500/test.jsonl", 500),
    "math_train": ("math_train/train.json", 7470),  # of 7,474: four records have no answer
    "svamp": ("svamp/SVAMP.json", 1000),
    "multiarith": ("multiarith/test.jsonl", 600),
}

RESPONSES = (
    "Let me see. First 3 and 4 make 7.\nTherefore the result is $\\boxed{{{}}}$.",
    "Maybe 7? No.\n\nAnswer: {}",
    "Working...\n\n**Final Answer:** ${}$",
)
HASHES = "48 / 2 = 24, and 24 + 48 = 72.\n#### {}"

# Two answers of one set that differ as text and are the same by value or by unit, so one is right for the other.
SAME = {
    ("3", "q = 3"),
    ("5", "x=5"),
    ("8", "K=8"),
    ("25\\%", "25"),
    ("4", "4\\%"),
    ("50\\%", "\\frac{1}{2}"),
    ("2", "2 \\text{ euros}"),
    ("2", "2 \\text{ pieces}"),
    ("9\\text{ values}", "9"),
    ("9:24", "\\frac{3}{8}"),
    ("120", "120^\\circ"),
    ("21\\text{ dogs}", "21"),
    ("18 \\text{ degrees}", "18"),
}


def gold_answers(name: str) -> list[str]:
    path, count = SETS[name]
    if not (DATA / path).exists():
        pytest.skip(f"{DATA / path} is not here; set DAPO_DATA to the folder of the public sets")
    answers = [problem.answer for problem in load_problems(DataSource(path=str(DATA / path)))]
    assert len(answers) == count
    return answers


@pytest.fixture(scope="module", autouse=True)
def _imports() -> None:
    warm_up()


@each("name", SETS)
def test_every_gold_answer_scores_one(name: str) -> None:
    forms = (*RESPONSES, HASHES) if name.startswith("gsm8k") else RESPONSES
    failed = [(a, form) for a in gold_answers(name) for form in forms if accuracy(form.format(a), a) != 1.0]
    assert not failed, f"{len(failed)} gold answers do not score 1.0, for example {failed[:5]}"


def wrong_pairs(answers: list[str], seed: int) -> list[tuple[str, str]]:
    """Each gold answer beside a different one of the same set."""
    others = answers[:]
    random.Random(seed).shuffle(others)
    return [(gold, other) for gold, other in zip(answers, others, strict=True) if gold != other]


def check_shuffled(answers: list[str], seed: int) -> None:
    right = []
    for gold, other in wrong_pairs(answers, seed):
        if accuracy(RESPONSES[0].format(other), gold) != 0.0 and not {(gold, other), (other, gold)} & SAME:
            right.append((gold, other))
    assert not right, f"{len(right)} wrong answers score 1.0, for example {right[:5]}"


@each("name", [name for name in SETS if name != "math_train"])
def test_shuffled_gold_answers_score_zero(name: str) -> None:
    check_shuffled(gold_answers(name), seed=1)


def test_shuffled_gold_answers_score_zero_on_a_sample_of_math_train() -> None:
    check_shuffled(gold_answers("math_train")[::10], seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_shuffled_gold_answers_score_zero_on_all_of_math_train(seed: int) -> None:
    check_shuffled(gold_answers("math_train"), seed)


@each("pair", sorted(SAME))
def test_the_listed_pairs_are_one_answer(pair: tuple[str, str]) -> None:
    assert same_answer(*pair)
    assert same_answer(*reversed(pair))
