"""What is wrong with data, task, device and names is told before a model is made, warmed up or loaded."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dapo.config import recipe_from_dict
from dapo.config.schema import Model
from dapo.data.signed_sum import make_problem
from dapo.errors import DataError, ModelError
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.models.tokenizer import load_tokenizer
from dapo.observe.console import Console
from dapo.run import reinforcement as module
from dapo.run import session as common
from dapo.run.given import Given
from dapo.run.model import make_tokenizer
from dapo.run.reinforcement import reward_session


class ModelMade(Exception):
    pass


@pytest.fixture(autouse=True)
def no_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)

    def make_model(*args: Any) -> None:
        raise ModelMade

    monkeypatch.setattr(module, "make_model", make_model)


def make(**sections: Any) -> None:
    given = {
        "model": {"path": "builtin/signed-sum"},
        "data": {"train": [{"task": "signed_sum", "size": 5}]},
        "rewards": [{"kind": "task"}],
    }
    reward_session(recipe_from_dict(given | sections).recipe, Console("quiet"))


def test_a_good_recipe_gets_to_its_model() -> None:
    with pytest.raises(ModelMade):
        make()


def test_data_and_task_are_refused_first() -> None:
    Path("a.jsonl").write_text(
        json.dumps({"problem": "x", "answer": "1"}) + '\n{"problem": "\\ud800", "answer": "1"}\n'
    )
    rewards = [{"kind": "exact"}]
    with pytest.raises(DataError, match=r"line 2, field 'problem': half of a surrogate pair"):
        make(data={"train": [{"path": "a.jsonl"}]}, rewards=rewards)
    with pytest.raises(DataError, match="its options are min_terms"):
        make(data={"train": [{"task": "signed_sum", "size": 5, "options": {"min_term": 2}}]})
    with pytest.raises(DataError, match=r"longer than `data\.max_prompt_tokens: 2`"):
        make(data={"train": [{"task": "signed_sum"}], "max_prompt_tokens": 2, "overlong_prompts": "refuse"})


def test_device_and_names_are_refused_before_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "prepare", lambda *args: pytest.fail("the data was read"))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ModelError, match="torch sees no CUDA device here"):
        make(model={"path": "builtin/signed-sum", "device": "cuda"})
    with pytest.raises(ModelError, match="did you mean 'builtin/signed-sum'"):
        make(model={"path": "builtin/signed-sums"})
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(ModelError, match=r"'cuda:2', but torch sees 2 CUDA devices"):
        make(model={"path": "builtin/signed-sum", "device": "cuda:2"})


def test_a_pipe_in_a_model_folder_is_never_waited_for(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path / "model", hidden=16, heads=2, ffn=32)
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(ModelError, match=r"config\.json is no regular file but a pipe"):
        make(model={"path": str(folder)})


class Part:
    """An engine, a scorer or a learner that is asked for nothing but its end."""

    def __init__(self, name: str, ended: list[str]) -> None:
        self.name, self.ended = name, ended

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **named: None

    def close(self) -> None:
        self.ended.append(self.name)
        if self.name == "learner":
            raise OSError("no room for its last word")


def test_each_part_is_ended_the_newest_first_also_when_one_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = make_tiny_model(Path("model"), hidden=16, heads=2, ffn=32)
    ended: list[str] = []
    monkeypatch.setattr(module, "make_model", lambda recipe, console: load_model(folder))
    monkeypatch.setattr(common, "make_learner", lambda *args, **named: Part("learner", ended))
    given = Given(engine=Part("engine", ended), scorer=Part("scorer", ended))
    recipe = recipe_from_dict({"model": {"path": str(folder)}, "data": {"train": [{"task": "signed_sum", "size": 5}]}})
    session = reward_session(recipe.recipe, Console("quiet"), given=given)
    session.learner()
    with pytest.raises(OSError, match="last word"):
        session.close()
    assert ended == ["learner", "engine", "scorer"]
    session.close()  # nothing is ended twice
    assert len(ended) == 3


def test_the_built_in_tokenizer_is_the_saved_one(tmp_path: Path) -> None:
    """Prompts are tokenised before the built-in model is made, and decoded with what is loaded from its folder."""
    early = make_tokenizer(Model(path="builtin/signed-sum"))
    saved = load_tokenizer(str(make_tiny_model(tmp_path / "model", heads=2)), False, [])
    texts = [make_problem(1, index).prompt for index in range(50)] + ["=45 ? unknown <eos>"]
    for special in (True, False):
        assert (
            early(texts, add_special_tokens=special)["input_ids"]
            == saved(texts, add_special_tokens=special)["input_ids"]
        )
    assert (early.eos_token_id, early.bos_token, early.chat_template) == (saved.eos_token_id, saved.bos_token, None)


@pytest.mark.parametrize(("members", "lag"), [({}, 16), ({"quick": False}, 16), ({"quick": True}, 0)])
def test_the_verdict_lag_of_a_scorer_depends_on_whether_it_says_that_it_is_quick(
    members: dict[str, bool], lag: int
) -> None:
    given = {
        "model": {"path": "builtin/signed-sum"},
        "data": {"train": [{"task": "signed_sum", "size": 5}]},
        "rewards": [{"kind": "task"}],
    }
    recipe = recipe_from_dict(given).recipe
    assert module._verdict_lag(recipe, SimpleNamespace(**members)) == lag  # type: ignore[arg-type]
