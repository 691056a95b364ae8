"""The name of a run that no recipe gives: the file's, with a number where such a run exists."""

from __future__ import annotations

import pytest

from dapo.config import load_recipe, recipe_from_dict
from dapo.errors import RecipeError
from dapo.observe.run_folder import RunFolder
from dapo.observe.run_name import with_free_name

TEXT = "model: {path: builtin/signed-sum}\ndata: {train: [{task: signed_sum}]}\n"


def name_of(tmp_path, file, *overrides, text=TEXT, **kind):
    path = tmp_path / file
    path.write_text(text)
    return load_recipe(path, [f"run.dir={tmp_path}/runs", *overrides], **kind)


def begin(tmp_path, name):
    folder = RunFolder.create(tmp_path / "runs", name)
    folder.write(folder.resolved_recipe, "{}\n")
    folder.release()


@pytest.mark.parametrize(
    ("file", "name"),
    [("mine.yaml", "mine"), ("gsm8k 0.5b.yaml", "gsm8k-0.5b"), (".-hidden.yaml", "hidden"), ("--.yaml", "run")],
)
def test_a_run_is_called_as_its_recipes_file(tmp_path, file, name):
    loaded = name_of(tmp_path, file)
    assert loaded.recipe.run.name == name
    assert not loaded.named
    assert "run.name" not in loaded.difference


def test_shipped_recipes_and_settings_alone_have_a_name():
    assert load_recipe("quickstart").recipe.run.name == "quickstart"
    given = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}}
    assert recipe_from_dict(given).recipe.run.name == "run"


def test_a_supervised_run_has_its_suffix(tmp_path):
    text = TEXT + "sft: {train: [{path: mine.yaml}]}\n"
    assert name_of(tmp_path, "mine.yaml", text=text, sft=True).recipe.run.name == "mine-sft"


def test_the_next_free_number_is_taken(tmp_path):
    loaded = name_of(tmp_path, "mine.yaml")
    assert with_free_name(loaded).recipe.run.name == "mine"
    begin(tmp_path, "mine")
    begin(tmp_path, "mine-2")
    named = with_free_name(loaded)
    assert named.recipe.run.name == "mine-3"
    assert "name: mine-3" in named.resolved
    (tmp_path / "runs/.jobs/mine-3").mkdir(parents=True)  # of a job in the queue
    assert with_free_name(loaded).recipe.run.name == "mine-4"


def test_a_name_that_was_given_keeps_its_refusal(tmp_path):
    begin(tmp_path, "mine")
    named = name_of(tmp_path, "mine.yaml", "run.name=mine")
    assert named.named
    assert with_free_name(named).recipe.run.name == "mine"
    assert "exists already" in str(RunFolder.refusal(tmp_path / "runs", "mine"))
    aside = name_of(tmp_path, "mine.yaml", "run.if_exists=backup")
    assert with_free_name(aside).recipe.run.name == "mine"


def test_a_name_that_another_run_takes_meanwhile_is_passed_over(tmp_path, monkeypatch):
    begin(tmp_path, "mine")
    seen = iter(["mine", "mine-2", "mine-2"])  # the first look came before the other run's folder
    monkeypatch.setattr(RunFolder, "free_name", staticmethod(lambda directory, name: next(seen)))
    assert RunFolder.create_free(tmp_path / "runs", "mine").path.name == "mine-2"


def test_a_folder_that_cannot_be_made_is_refused_once(tmp_path):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(RecipeError, match="no run can be made"):
        RunFolder.create_free(tmp_path / "runs", "mine")
