"""Names that become part of a metric's key are refused in the recipe, where they would end a run or hide a metric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from each import each

from dapo.config import recipe_from_dict
from dapo.errors import RecipeError
from dapo.metrics.glossary import GLOSSARY, lookup
from dapo.metrics.names import MAX_NAME, name_problem, reward_name_problem

BAD = {
    "": "is empty",
    " ": "is empty",
    " a": "begins or ends with a blank",
    "a/b": "has a slash",
    "/": "has a slash",
    "a\nb": "cannot be printed",
    "a\x1b": "cannot be printed",
    "a\u202eb": "cannot be printed",
    "<set>": "has an angle bracket",
    "n" * (MAX_NAME + 1): f"has {MAX_NAME + 1} characters",
}
GOOD = ["accuracy", "gsm8k", "Formatierung ü", "pass@1", "a:b", "n" * MAX_NAME, "custom", "total", "accuracy_low"]


def recipe(*, train: dict | None = None, held_out: dict | None = None, reward: str | None = None) -> dict[str, Any]:
    more = [] if reward is None else [{"name": reward, "kind": "regex", "pattern": "x", "weight": 0.0}]
    return {
        "model": {"path": "someone/model"},
        "data": {
            "train": [{"task": "signed_sum", **(train or {})}],
            "validation": [{"task": "signed_sum", "seed": 1, **(held_out or {})}],
        },
        "rewards": [{"kind": "task"}, *more],
    }


@each("name", BAD)
def test_names_that_are_no_part_of_a_key_are_refused(name: str) -> None:
    for key, given in (
        ("rewards.1.name", recipe(reward=name)),
        ("data.train.0.name", recipe(train={"name": name})),
        ("data.validation.0.name", recipe(held_out={"name": name})),
    ):
        if name == "" and key.startswith("data"):
            continue  # an empty name of a source is none: the task's or file's is taken
        with pytest.raises(RecipeError) as error:
            recipe_from_dict(given)
        assert key in str(error.value)
        assert BAD[name] in str(error.value)


@pytest.mark.parametrize("path", ["a\nb.jsonl", "x<1>.jsonl", f"{'n' * 90}.jsonl", " .jsonl", "hub:owner/"])
def test_a_name_taken_from_a_path_is_refused_with_the_remedy(path: str, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    if not path.startswith("hub:"):
        Path(path).touch()
    given = recipe(held_out={"path": path, "task": None, "seed": 0})
    with pytest.raises(RecipeError, match="give it a `name`"):
        recipe_from_dict(given)
    given["data"]["validation"][0]["name"] = "held_out"
    recipe_from_dict(given)


def test_names_of_rewards_leave_the_other_metrics_alone() -> None:
    """Every metric of the area is taken, whatever it is called, and so is what stands for kept groups."""
    taken = {key.removeprefix("reward/") for key in GLOSSARY if key.startswith("reward/") and "<" not in key}
    assert {"raw", "raw_kept", "shaped_mean", "shaped_std", "unscored", "accuracy_kept"} <= taken
    for name in [*sorted(taken - {"accuracy"}), "format_kept"]:
        assert reward_name_problem(name) is not None, name
        with pytest.raises(RecipeError, match=r"rewards\.1\.name"):
            recipe_from_dict(recipe(reward=name))


@each("name", GOOD)
def test_every_other_name_has_glossary_lines(name: str) -> None:
    assert name_problem(name) is None
    for key in (f"reward/{name}", f"reward/{name}_kept", f"validation/{name}/accuracy", f"validation/{name}/pass@4"):
        assert lookup(key) is not None, key
    recipe_from_dict(recipe(train={"name": name}, held_out={"name": name}, reward=None if name == "accuracy" else name))


@pytest.mark.parametrize("pattern", ["(" * 5000 + ")" * 5000, "a{999999999999}", "(", "(?P<1>a)"])
def test_patterns_that_cannot_be_compiled_are_refused_by_name(pattern: str) -> None:
    given = recipe()
    given["rewards"].append({"name": "form", "kind": "regex", "pattern": pattern})
    with pytest.raises(RecipeError, match="is not a regular expression"):
        recipe_from_dict(given)
