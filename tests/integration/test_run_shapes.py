"""Runs whose environments are classes as SkyRL-Gym's and TRL's documentation asks for them, unchanged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_run import dapo, write_recipe
from test_run_environment import QUICK, assert_recomputed, playing_recipe, weights

from dapo.observe.metrics import read_metrics

pytestmark = pytest.mark.whole
CLASSES = '''
import re
from typing import Any


class Digits:
    """SkyRL-Gym's shape: wants a digit first, and answers with a sum."""

    def __init__(self, env_config: Any = {}, extras: dict = {}):
        self.truth, self.most, self.turns = extras["reward_spec"]["ground_truth"], extras["max_turns"], 0
        self.add = env_config.add

    def init(self, prompt):
        return prompt, {}

    def step(self, action: str):
        self.turns += 1
        right = action.strip()[:1].isdigit()
        if self.turns == self.most:
            return {"observations": [], "reward": float(right), "done": True, "metadata": {"digit": right}}
        hint = {"role": "user", "content": f"+{1 + (self.add + len(action)) % 9} ="}
        return {"observations": [hint], "reward": 0.0, "done": False, "metadata": {}}

    def close(self):
        pass

    def get_metrics(self):
        return {"asked": self.turns}


class Guess:
    """TRL's shape: a number is guessed by a tool."""

    def __init__(self):
        self.reward = 0.0

    def reset(self, **columns) -> str | None:
        self.hidden, self.left = int(columns["answer"]), 3
        return f"+{1 + self.hidden % 7} ="

    def guess(self, number: int) -> str:
        """Guess a number.

        Args:
            number: the guess.

        Returns:
            How far off it is.
        """
        if not self.left:
            raise ValueError("over")
        self.left -= 1
        self.reward = float(number % 2)
        return f"+{1 + abs(self.hidden - number) % 9} ="

    def get_reward(self) -> float:
        return self.reward


def read_guess(text):
    found = re.findall(r"\\d+", text)
    return [("guess", {"number": int(found[0])})] if found else []
'''
SECTION = """
environment: {{kind: "my_game:{kind}", max_turns: 4, max_turn_tokens: 6, workers: 1, {more}}}
"""
SHAPES = {"Digits": "args: {add: 3}", "Guess": "tool_format: 'my_game:read_guess'"}


def recipe(folder: Path, kind: str) -> Path:
    (folder / "my_game.py").write_text(CLASSES)
    return write_recipe(folder, SECTION.format(kind=kind, more=SHAPES[kind]))


@pytest.mark.parametrize("kind", SHAPES)
def test_a_class_of_another_shape_trains_and_goes_on_to_the_same_bits_after_a_stop(tmp_path, kind):
    for name, steps in (("whole", 4), ("cut", 2)):
        (tmp_path / name).mkdir()
        dapo("train", recipe(tmp_path / name, kind).name, *QUICK, f"trainer.steps={steps}", cwd=tmp_path / name)
    cut = tmp_path / "cut"
    dapo("train", "--resume", "run", "trainer.steps=4", cwd=cut)
    rows = [row for row in read_metrics(cut / "run/metrics.jsonl") if row.get("groups/finished")]
    assert sum(row["environment/replayed"] for row in rows) > 0
    assert sum(row["environment/not_repeatable"] for row in rows) == 0
    assert all(row["environment/errors"] == 0 for row in rows)
    if kind == "Digits":
        assert all(row["environment/fact/asked"] > 1 for row in rows)
    else:
        assert sum(row["environment/calls"] for row in rows) > 0
    ours, theirs = weights(cut / "run"), weights(tmp_path / "whole/run")
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)


@pytest.mark.parametrize("kind", SHAPES)
def test_a_plain_forward_pass_gives_the_log_probabilities_of_all_model_tokens(tmp_path, kind):
    with playing_recipe(recipe(tmp_path, kind), *QUICK, count=12) as (_, learner, groups):
        assert_recomputed(learner, groups)


def test_a_class_without_get_reward_needs_rewards_of_the_recipe(tmp_path):
    path = recipe(tmp_path, "Guess")
    (tmp_path / "my_game.py").write_text(CLASSES.replace("def get_reward", "def _unused"))
    said = dapo("check", path.name, *QUICK, cwd=tmp_path, expect=2).stderr
    assert "the environment's class has no get_reward()" in " ".join(said.split())
