"""Every reasoning-gym generator: its gold answers score 1 through our scorer, and what does not is listed."""

from __future__ import annotations

import numpy as np
import pytest

from dapo.config.schema import DataSource
from dapo.data import load_problems
from dapo.rewards.task import reasoning_gym
from dapo.types.batch import Prompt, Response
from dapo.types.enums import FinishReason

NO_GOLD_ANSWER = {"boxnet", "graph_color", "propositional_logic", "rubiks_cube", "rush_hour"}
"""Many right answers, and the generator gives none: its scorer checks an answer against the question."""


def score(text: str, prompt: Prompt) -> float:
    none = np.zeros(0)
    completion = Response(
        none.astype(np.int64), none.astype(np.float32), none.astype(np.int32), FinishReason.STOP, text
    )
    return reasoning_gym(prompt, completion)


@pytest.mark.slow
def test_gold_answers_of_every_generator_score_one() -> None:
    pytest.importorskip("reasoning_gym")
    from reasoning_gym.factory import DATASETS

    without_gold = set()
    failed = []
    for name in sorted(set(DATASETS) - {"composite"}):
        for problem in load_problems(DataSource(task=f"reasoning_gym/{name}", size=2)):
            prompt = Prompt("id", "", np.arange(1), problem.problem, problem.answer, name, problem.extra)
            if not problem.answer:
                without_gold.add(name)
                assert score("<answer>nonsense</answer>", prompt) < 1.0
            elif score(f"I think so.\n<answer>{problem.answer}</answer>", prompt) != 1.0:
                failed.append((name, problem.answer))
    assert not failed
    assert without_gold == NO_GOLD_ANSWER


def test_a_composite_is_scored_by_the_generator_an_entry_came_from() -> None:
    pytest.importorskip("reasoning_gym")
    mixture = [
        {"name": "chain_sum", "weight": 1.0, "config": {"min_terms": 2, "max_terms": 2}},
        {"name": "spell_backward", "weight": 1.0, "config": {}},
    ]
    source = DataSource(task="reasoning_gym/composite", options={"datasets": mixture}, size=8)
    problems = load_problems(source)
    assert len({problem.extra["entry"]["metadata"]["source_dataset"] for problem in problems}) == 2
    for problem in problems:
        prompt = Prompt("id", "", np.arange(1), problem.problem, problem.answer, "mix", problem.extra)
        assert score(f"<answer>{problem.answer}</answer>", prompt) == 1.0
        assert score("<answer>@</answer>", prompt) < 0.5
