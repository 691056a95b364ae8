"""What a program gives becomes a recipe, or gets a sentence."""

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dapo
from dapo.algorithms.objective import Objective
from dapo.api.data import sources
from dapo.api.recipe import ask, overrides_of, reward_sections
from dapo.config.yaml_files import RESOLVED
from dapo.errors import DataError, RecipeError
from dapo.hooks import give_as, given, load

SMALL = {"model": {"path": "a/b"}, "data": {"train": [{"task": "signed_sum"}]}}
ROWS = [{"problem": "1 + 1", "answer": "2"}, {"problem": "1 + 2", "answer": "3"}]


def score(prompt, completion):
    return 1.0


def test_the_package_fits_on_a_screen_and_names_what_was_meant():
    assert len(dir(dapo)) <= 20
    assert all(getattr(dapo, name) is not None for name in dir(dapo))
    with pytest.raises(AttributeError, match=r"did you mean dapo\.train"):
        dapo.trian  # noqa: B018


def test_importing_the_package_or_checking_a_recipe_needs_no_torch():
    code = "import sys, dapo; dapo.load_recipe('quickstart'); dapo.Callback; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == 0


@pytest.mark.parametrize("form", ["name", "path", "dict", "loaded", "recipe"])
def test_every_form_of_a_recipe_is_the_same_recipe(form, tmp_path):
    loaded = dapo.load_recipe("quickstart")
    (tmp_path / "quickstart.yaml").write_text(loaded.text)
    forms = {
        "name": "quickstart",
        "path": tmp_path / "quickstart.yaml",
        "dict": loaded.given | {"run": {"name": "quickstart", "seed": 1}},  # without a file it would be called run
        "loaded": loaded,
        "recipe": loaded.recipe,
    }
    assert ask(forms[form]).loaded.recipe == loaded.recipe
    changed = ask(forms[form], settings={"trainer.steps": 7, "validation": {"samples": 2}}).loaded.recipe
    assert (changed.trainer.steps, changed.validation.samples, changed.validation.every) == (7, 2, 10)


def test_the_text_of_a_file_stays_as_it_is_unless_something_goes_on_top():
    assert ask("quickstart").loaded.text == dapo.load_recipe("quickstart").text
    assert "steps: 7" in ask("quickstart", settings={"trainer.steps": 7}).loaded.text


def test_settings_alone_make_a_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = ask(None, train=ROWS, rewards=score, settings={"model": "a/b", "trainer": {"steps": 3}}).loaded.recipe
    assert (recipe.model.path, recipe.trainer.steps) == ("a/b", 3)


@pytest.mark.parametrize(
    ("arguments", "settings", "key"),
    [
        ({"rewards": [score]}, {"rewards.0.weight": 2.0}, "rewards.0.weight"),
        ({"train": ROWS}, {"data": {"train": [{"task": "signed_sum"}]}}, "data.train"),
        ({"objective": "cispo"}, {"algorithm": {"loss": {"kind": "clip"}}}, "algorithm.loss.kind"),
        ({}, {"trainer.steps": 2, "trainer": {"steps": 1}}, "trainer.steps"),
    ],
)
def test_a_call_that_sets_one_thing_twice_is_refused_since_one_value_would_be_lost(arguments, settings, key):
    with pytest.raises(RecipeError, match=key.replace(".", r"\.")):
        ask("quickstart", settings=settings, **arguments)


def test_what_is_given_twice_and_alike_or_in_parts_is_fine():
    settings = {
        "trainer": {"steps": 2},
        "trainer.steps": 2,
        "algorithm": {"loss": "sapo"},
        "algorithm.loss.positive": 0.5,
    }
    recipe = ask("quickstart", rewards=[{"kind": "exact", "weight": 0.5}], settings=settings).loaded.recipe
    assert (recipe.trainer.steps, recipe.algorithm.loss.positive, recipe.rewards[0].weight) == (2, 0.5, 0.5)


def test_no_rewards_are_those_of_a_teacher_alone():
    settings = {"preset": "distillation", "algorithm.teacher.path": "a/b", "data.validation": []}
    assert ask("quickstart", rewards=[], settings=settings).loaded.recipe.rewards == []
    with pytest.raises(RecipeError, match=r"algorithm\.teacher\.path"):
        ask("quickstart", rewards=[])


def test_functions_of_a_module_keep_their_name_and_others_are_objects_of_the_program():
    def local(prompt, completion):
        return 0.0

    found = reward_sections([score, local, lambda p, c: 0.0, "math", {"name": "x", "kind": "regex", "pattern": "a"}])
    assert [r["name"] for r in found] == ["accuracy", "local", "function", "math", "x"]
    assert found[0]["function"] == f"{__name__}:score"
    assert found[1]["function"] == "python:local"
    assert load("python:local") is local
    asked = ask(SMALL, rewards=[local])
    assert asked.objects == {"rewards.0.function": "python:local"}
    assert ask(SMALL, rewards=[score]).objects == {}


def test_a_function_may_stand_wherever_a_recipe_names_one():
    loss = Objective(lambda inputs: (inputs.logprobs, {}))
    asked = ask(SMALL, objective=loss, settings={"algorithm": {"shaping": math.hypot}})
    assert given(asked.objects["algorithm.loss.kind"]) is loss
    assert asked.loaded.recipe.algorithm.shaping == "math:hypot"


def test_a_resume_takes_settings_as_the_command_line_has_them():
    assert overrides_of({"trainer": {"steps": 3}, "learner.betas": (0.9, 0.95)}) == [
        "trainer.steps=3",
        "learner.betas=[0.9, 0.95]",
    ]


def test_records_become_a_file_named_by_their_content(tmp_path):
    (first,) = sources(ROWS, "train", tmp_path)
    (again,) = sources(iter(ROWS), "train", tmp_path)
    (other,) = sources([*ROWS, {"problem": "p", "answer": np.int64(4), "more": [np.float32(0.5)]}], "train", tmp_path)
    assert first == again
    assert first["path"] != other["path"]
    assert [json.loads(line) for line in Path(first["path"]).read_text().splitlines()] == ROWS
    assert json.loads(Path(other["path"]).read_text().splitlines()[-1]) == {"problem": "p", "answer": 4, "more": [0.5]}


def test_data_in_every_form(tmp_path):
    class Frame:
        columns = ("problem", "answer")

        def to_dict(self, how):
            assert how == "records"
            return ROWS

    class Table:
        def to_pylist(self):
            return ROWS

    (rows,) = sources(ROWS, "train", tmp_path)
    assert sources(Frame(), "train", tmp_path) == sources(Table(), "train", tmp_path) == [rows]
    assert sources("task:signed_sum", "train", tmp_path) == [{"task": "signed_sum"}]
    assert sources(["a.jsonl", {"path": "b.jsonl", "name": "b"}], "train", tmp_path) == [
        {"path": "a.jsonl"},
        {"path": "b.jsonl", "name": "b"},
    ]
    by_name = sources({"easy": ROWS[:1], "hard": "hub:x/y", "framed": Frame()}, "held_out", tmp_path)
    assert [source["name"] for source in by_name] == ["easy", "hard", "framed"]
    with pytest.raises(DataError, match="given as a list of one"):
        sources(ROWS[0], "train", tmp_path)


def test_a_data_set_of_the_hub_library(tmp_path):
    datasets = pytest.importorskip("datasets")
    (rows,) = sources(ROWS, "train", tmp_path)
    assert sources(datasets.Dataset.from_list(ROWS), "train", tmp_path) == [rows]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: ask(score), r"found a function; a reward is given as rewards=\[f\]"),
        (lambda: ask(ROWS), "data are given as train="),
        (lambda: ask(None), "a recipe is missing"),
        (lambda: ask("nowhere.yaml"), "recipe file not found"),
        (lambda: ask(SMALL, settings={"steps": 3}), "'steps' is no argument and no section"),
        (lambda: ask(SMALL, settings={"trainer.stepz": 3}), r"trainer\.steps"),
        (lambda: ask(SMALL, rewards=[]), "nothing would train"),
        (lambda: ask(SMALL, rewards=[3]), "found int"),
        (lambda: ask(SMALL, train=3), "int is no data"),
        (lambda: ask(SMALL, train=[]), "hold no record"),
        (lambda: ask(SMALL, train=["a.jsonl", {"problem": "p"}]), "record 0 is str"),
        (lambda: ask(SMALL, validation={"every": 3}), r"\*\*{'validation.every': 5}"),
        (lambda: dapo.Run(3), "opened by its folder"),
        (lambda: dapo.Run("nowhere"), "holds no run"),
        (lambda: dapo.evaluate(score), "found function"),
        (lambda: dapo.evaluate("a/b"), "data must be given"),
        (lambda: dapo.resume("nowhere"), "holds no run"),
        (lambda: dapo.train(SMALL, callbacks=[3]), "int is no callback"),
    ],
)
def test_a_mistake_gets_a_sentence(call, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((RecipeError, DataError), match=said):
        call()


def test_the_command_line_says_that_an_object_is_missing(tmp_path):
    def mine(prompt, completion):
        return 0.0

    (tmp_path / RESOLVED).write_text(ask(SMALL, rewards=[mine]).loaded.resolved)
    give_as("python:mine", mine)
    assert load("python:mine") is mine
    with pytest.raises(ImportError, match=r"dapo\.resume"):
        load("python:never_given")
    with pytest.raises(RecipeError, match=r"rewards=\[mine\]"):
        dapo.resume(tmp_path)


def test_a_setting_that_a_keyword_made_idle_is_nobodys_slip_and_one_that_a_keyword_sets_is():
    def unread(**settings):
        return [line for line in ask("quickstart", settings=settings).loaded.warnings if "nothing reads it" in line]

    assert unread(preset="grpo") == []
    (told,) = unread(preset="grpo", algorithm={"overlong_punishment": {"cache_length": 13}})
    assert told.startswith("algorithm.overlong_punishment.cache_length is set")
