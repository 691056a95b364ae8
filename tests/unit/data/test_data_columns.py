"""From a column of a file to a reward function in its worker, and what that is told when a column is not there."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
from test_data_load import WordTokenizer

from dapo.config.schema import Data, Reward, TrainSource
from dapo.data import prepare
from dapo.rewards.compose import build_scorer
from dapo.types.batch import Prompt, Response, Score
from dapo.types.enums import FinishReason

FUNCTIONS = """
def level(prompt, completion):
    return {"accuracy": prompt.extra["level"] / 10, "given": "lvl" in prompt.extra}

def wrong_name(prompt, completion):
    return prompt.extra["lvl"] > 2

def as_attribute(prompt, completion):
    return prompt.level > 2
"""


@pytest.fixture
def prompt(tmp_path: Path) -> Prompt:
    row = {"question": "1+1?", "target": 2, "level": 3, "subject": "sums"}
    (tmp_path / "a.jsonl").write_text(json.dumps(row))
    source = TrainSource(path=str(tmp_path / "a.jsonl"), fields={"problem": "question", "answer": "target"})
    return prepare(Data(train=[source]), WordTokenizer()).train[0]


def score(prompt: Prompt, function: str) -> Score:
    scorer = build_scorer([Reward(kind="function", function=f"columns_for_tests:{function}", timeout=60)])
    none = np.zeros(0)
    try:
        scorer.submit((0, 0), prompt, Response(none, none, none, FinishReason.STOP, "2"))  # type: ignore[arg-type]
        ((_, found),) = scorer.poll(None)
    finally:
        scorer.close()
    return found


def test_a_reward_reads_any_column_and_is_told_which_there_are(
    prompt: Prompt, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "columns_for_tests.py").write_text(FUNCTIONS)
    monkeypatch.chdir(tmp_path)
    assert score(prompt, "level").values == {"accuracy": 0.3, "given": 0.0}
    reason = score(prompt, "wrong_name").reason or ""
    assert "KeyError" in reason
    assert "'lvl' is no column of this prompt; prompt.extra holds level, subject" in reason
    reason = score(prompt, "as_attribute").reason or ""
    assert (
        "a prompt has no 'level'; it has id, text, token_ids, problem, answer, source, extra, chat, messages, and "
        "prompt.extra" in reason
    )
    assert "holds level, subject" in reason


def test_prompts_without_columns_with_many_and_copied_ones(prompt: Prompt) -> None:
    bare = Prompt("id", "t", np.zeros(1, np.int64), "p", "a", "s")
    with pytest.raises(KeyError, match=r"prompt\.extra holds nothing"):
        bare.extra["x"]
    many = Prompt("id", "t", np.zeros(1, np.int64), "p", "a", "s", {f"c{n}": n for n in range(20)})
    with pytest.raises(KeyError, match=r"holds c0, c1, .*c11, \.\.\."):
        many.extra["x"]
    for again in (pickle.loads(pickle.dumps(prompt)), copy.deepcopy(prompt), copy.copy(prompt)):
        assert again.extra == {"level": 3, "subject": "sums"} == dict(prompt.extra)
        with pytest.raises(KeyError, match="holds level, subject"):
            again.extra["x"]
    assert prompt.extra.get("x") is None
    assert not hasattr(prompt, "x")
