"""An engine of one's own is one file, named in a recipe."""

from __future__ import annotations

import pytest

from dapo.config.checks import ratio_against
from dapo.config.deployment import deployment_of
from dapo.config.load import recipe_from_dict
from dapo.engines.embedded import EmbeddedEngine
from dapo.errors import RecipeError
from dapo.models.facts import facts_of
from dapo.run.engines import check_engine, start_engine
from dapo.run.given import Context

COUNTED = """
from dapo.engines.embedded import EmbeddedEngine


class Counted(EmbeddedEngine):
    def __init__(self, context):
        super().__init__(context.loaded, slots=context.slots)
        self.brought = []

    def poll(self, timeout=None):
        events = super().poll(timeout)
        self.brought.append(len(events))
        return events
"""


def recipe_with(engine: str, **rollout: int):
    return recipe_from_dict(
        {
            "model": {"path": "builtin/signed-sum"},
            "data": {"train": [{"task": "signed_sum", "size": 8}]},
            "rollout": {"engine": engine, "slots": 2, **rollout},
        }
    ).recipe


def start(recipe, loaded):
    context = Context(recipe, loaded.tokenizer, [], None, facts_of(loaded), loaded, longest=40)
    return start_engine(recipe, deployment_of(recipe), context)


def test_an_engine_derived_from_the_embedded_one_makes_the_same_responses(fresh, help, tmp_path, monkeypatch):
    (tmp_path / "my_engine.py").write_text(COUNTED)
    monkeypatch.syspath_prepend(str(tmp_path))
    recipe, loaded = recipe_with("my_engine:Counted"), fresh("llama")
    check_engine(recipe)
    engine = start(recipe, loaded)
    plain = EmbeddedEngine(loaded, slots=2)
    found = []
    for each in (engine, plain):
        each.submit([help.request(group, max_tokens=3 + group) for group in range(4)])
        found.append({key: event.token_ids.tolist() for key, event in help.drain(each).items()})
    assert found[0] == found[1]
    assert engine.capacity == 2
    assert sum(engine.brought) == 4


def test_its_numbers_are_not_taken_for_the_learners():
    assert ratio_against(recipe_with("embedded")) == "sampler"
    assert ratio_against(recipe_with("my_engine:Counted")) == "learner"


def test_several_of_them_are_refused():
    with pytest.raises(RecipeError, match=r"rollout\.engines(.|\n)*an engine of your own is one"):
        recipe_with("my_engine:Counted", engines=2)


def test_one_that_is_not_there_is_refused_by_its_name(fresh):
    loaded = fresh("llama")
    with pytest.raises(RecipeError, match=r"rollout\.engine: cannot load 'no_such_module:Engine'"):
        start(recipe_with("no_such_module:Engine"), loaded)
