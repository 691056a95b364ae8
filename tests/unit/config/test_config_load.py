"""Loading: what lies on what, what the text may hold, and that nothing is lost on the way."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dapo.config import Recipe, dump_resolved, load_recipe, recipe_from_dict
from dapo.config.settings import settings
from dapo.config.yaml_files import RESOLVED
from dapo.errors import RecipeError

RECIPES = sorted((Path(__file__).parents[3] / "dapo/recipes").glob("*.yaml"))
SMALL = {"model": {"path": "someone/model"}, "data": {"train": [{"task": "signed_sum"}]}}


def write(folder: Path, text: str) -> Path:
    file = folder / "recipe.yaml"
    file.write_text(text)
    return file


BASE = """\
model: {path: someone/model}
data:
  train: [{task: signed_sum}]
"""


def test_file_lies_on_preset_and_override_on_file(tmp_path: Path) -> None:
    file = write(tmp_path, BASE + "preset: dapo-verl\nalgorithm: {clip: {high: 0.3}}\nlearner: {warmup: 7}\n")
    loaded = load_recipe(file, ["learner.warmup=8", "algorithm.loss.reduction=prompt_mean"])
    assert loaded.recipe.algorithm.clip.dual == 10.0  # from the preset
    assert loaded.recipe.algorithm.clip.high == 0.3  # from the file, on the preset's
    assert loaded.recipe.learner.warmup == 8  # from the override, on the file's
    assert loaded.recipe.algorithm.loss.reduction.kind == "prompt_mean"


def test_override_can_choose_the_preset(tmp_path: Path) -> None:
    assert load_recipe(write(tmp_path, BASE), ["preset=grpo"]).recipe.algorithm.loss.reduction.kind == "sequence_mean"


def test_given_and_text_are_as_in_the_file(tmp_path: Path) -> None:
    text = BASE + "# a comment\nrun: {name: mine}\n"
    loaded = load_recipe(write(tmp_path, text), ["run.name=other"])
    assert loaded.text == text
    assert loaded.given == {**SMALL, "run": {"name": "mine"}}
    assert loaded.overrides == ("run.name=other",)


def test_difference_names_preset_value_and_value() -> None:
    loaded = recipe_from_dict({**SMALL, "preset": "grpo", "algorithm": {"clip": {"high": 0.25}}}, ["trainer.steps=3"])
    assert loaded.difference == {"algorithm.clip.high": (0.2, 0.25), "trainer.steps": (100, 3)}


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-6", 1e-6), ("0.5", 0.5), ("1E-3", 1e-3), ("3", 3)],
)
def test_yaml_1_2_numbers(tmp_path: Path, text: str, value: float) -> None:
    loaded = load_recipe(write(tmp_path, BASE + f"learner: {{learning_rate: {text}}}\n"))
    assert loaded.recipe.learner.learning_rate == value
    assert recipe_from_dict(SMALL, [f"learner.learning_rate={text}"]).recipe.learner.learning_rate == value


def test_off_is_text_in_yaml_1_2(tmp_path: Path) -> None:
    loaded = load_recipe(write(tmp_path, BASE + "algorithm: {dynamic_sampling: {mode: off}}\n"))
    assert loaded.recipe.algorithm.dynamic_sampling.mode == "off"


def test_overrides_reach_list_items() -> None:
    loaded = recipe_from_dict(
        SMALL,
        [
            "rewards.0.weight=0.5",
            "rewards.1.weight=0.25",
            "rewards.1.name=short",
            "rewards.1.kind=regex",
            "rewards.1.pattern=^.{0,80}$",
            "data.train.0.size=5",
            "data.validation.0.task=signed_sum",
            "data.validation.0.seed=9",
        ],
    )
    assert [(r.name, r.weight) for r in loaded.recipe.rewards] == [("accuracy", 0.5), ("short", 0.25)]
    assert loaded.recipe.rewards[1].pattern == "^.{0,80}$"
    assert loaded.recipe.data.train[0].size == 5
    assert loaded.recipe.data.validation[0].seed == 9


def test_override_keeps_text_as_typed() -> None:
    loaded = recipe_from_dict(SMALL, ["run.name=7", "data.instruction=End with: Answer", "trainer.max_hours=null"])
    assert loaded.recipe.run.name == "7"
    assert loaded.recipe.data.instruction == "End with: Answer"
    assert loaded.recipe.trainer.max_hours is None


def test_override_of_a_section_and_of_a_list_value() -> None:
    loaded = recipe_from_dict(SMALL, ["algorithm.clip={low: 0.1}", "learner.betas=[0.8, 0.9]"])
    assert (loaded.recipe.algorithm.clip.low, loaded.recipe.algorithm.clip.high) == (0.1, 0.28)
    assert loaded.recipe.learner.betas == (0.8, 0.9)


def test_recipe_from_dict_leaves_its_argument_alone() -> None:
    given = {"model": {"path": "someone/model"}, "data": {"train": [{"task": "signed_sum"}]}}
    recipe_from_dict(given, ["data.train.0.seed=3", "model.dtype=bfloat16"])
    assert given == SMALL


@pytest.mark.parametrize("file", RECIPES, ids=lambda p: p.stem)
def test_shipped_recipes_load_without_warnings(file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)  # a shipped recipe depends on no working directory
    assert list(load_recipe(file).warnings) == []


def test_there_are_shipped_recipes() -> None:
    assert {"quickstart", "own_data"} <= {file.stem for file in RECIPES}


@pytest.mark.parametrize("preset", ["dapo", "dapo-paper", "dapo-verl", "grpo", "dr-grpo", "scalerl-loss"])
def test_resolved_recipe_loads_back_to_the_same(preset: str, tmp_path: Path) -> None:
    text = {"instruction": "a: b # c\n\\boxed{}\ttab 'quotes' \"too\"", "prompt_template": None}
    loaded = recipe_from_dict({**SMALL, "preset": preset, "data": {**SMALL["data"], **text}})
    file = write(tmp_path, dump_resolved(loaded.recipe))
    again = load_recipe(file)
    assert again.recipe == loaded.recipe
    assert dump_resolved(again.recipe) == dump_resolved(loaded.recipe) == loaded.resolved
    assert again.warnings == loaded.warnings


@pytest.mark.parametrize("file", RECIPES, ids=lambda p: p.stem)
def test_resolved_shipped_recipes_load_back(file: Path, tmp_path: Path) -> None:
    recipe = load_recipe(file).recipe
    assert load_recipe(write(tmp_path, dump_resolved(recipe))).recipe == recipe


def test_relative_paths_working_directory_first_then_the_recipe_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, beside = tmp_path / "here", tmp_path / "beside"
    for folder in (here, beside):
        folder.mkdir()
        (folder / "both.jsonl").touch()
    (beside / "one.jsonl").touch()
    (beside / "weights").mkdir()
    file = write(beside, "model: {path: weights}\ndata: {train: [{path: both.jsonl}, {path: one.jsonl}]}\n")
    monkeypatch.chdir(here)
    recipe = load_recipe(file).recipe
    assert [s.path for s in recipe.data.train] == [str(here / "both.jsonl"), str(beside / "one.jsonl")]
    assert recipe.model.path == str(beside / "weights")


def test_hub_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    recipe = recipe_from_dict({"model": {"path": "a/b"}, "data": {"train": [{"path": "hub:c/d"}]}}).recipe
    assert (recipe.model.path, recipe.data.train[0].path) == ("a/b", "hub:c/d")


def test_an_empty_recipe_names_what_is_required(tmp_path: Path) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe(write(tmp_path, "# nothing yet\n"))
    assert "model" in str(error.value)
    assert "data" in str(error.value)


def test_config_needs_neither_torch_nor_numpy() -> None:
    code = "import sys, dapo.config.resume; print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_setting_is_documented() -> None:
    assert [s.path for s in settings().values() if not s.doc] == []
    assert len(settings()) > 100
    assert "algorithm.clip.high" in settings()
    assert Recipe.model_fields.keys() <= settings().keys()


def unread(loaded) -> list[str]:
    return [line.split(" ")[0] for line in loaded.warnings if "nothing reads it" in line]


CACHE = "algorithm.overlong_punishment.cache_length"
LAG = "algorithm.dynamic_sampling.verdict_lag"
PENALTY = "algorithm: {overlong_punishment: {cache_length: 12}}\n"


@pytest.mark.parametrize(
    ("file", "overrides", "named"),
    [
        (PENALTY, [], []),
        (PENALTY, ["preset=grpo"], []),  # the file reads it, and whoever took another preset did not set it
        (PENALTY, ["algorithm.overlong_punishment.enabled=false"], []),
        (PENALTY, ["preset=grpo", f"{CACHE}=13"], [CACHE]),
        (PENALTY, ["preset=grpo", f"{CACHE}=12"], [CACHE]),
        (PENALTY, ["preset=grpo", "algorithm.overlong_punishment={cache_length: 13}"], [CACHE]),
        (f"preset: grpo\n{PENALTY}", [], [CACHE]),
        (f"preset: grpo\n{PENALTY}", ["trainer.steps=3"], [CACHE]),
        (
            "rollout: {max_staleness: 2, engines: 2, overlap_turns: 9}\npreset: grpo\n",
            [],
            [],
        ),  # max_age follows from it
        ("", [f"{LAG}=3"], []),
        ("rollout: {max_staleness: 2}\n", [f"{LAG}=3"], [LAG]),  # the wall clock decides
        ("rollout: {max_staleness: 2}\n", [], []),
        ("rollout: {max_staleness: 2, overlap_turns: 9}\n", [f"{LAG}=3"], []),
    ],
)
def test_who_set_what_nothing_reads_is_told_and_nobody_else(tmp_path, file, overrides, named) -> None:
    assert unread(load_recipe(write(tmp_path, BASE + file), overrides)) == named


def test_what_nothing_reads_is_told_when_a_run_begins_and_not_each_time_it_goes_on(tmp_path) -> None:
    began = load_recipe(write(tmp_path, f"preset: grpo\n{BASE}{PENALTY}"))
    assert unread(began) == [CACHE]
    (tmp_path / RESOLVED).write_text(began.resolved)
    assert unread(load_recipe(tmp_path / RESOLVED, ["trainer.steps=3"])) == []
    assert unread(load_recipe(tmp_path / RESOLVED, [f"{CACHE}=13"])) == [CACHE]
