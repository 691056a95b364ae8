"""A prompt stream and a scorer that a recipe names: a whole run, and one that is resumed in its middle."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from small_run import dapo, write_recipe

from dapo.config.load import load_recipe
from dapo.errors import RecipeError
from dapo.observe.commands import GIVEN
from dapo.observe.metrics import read_metrics, without_clock
from dapo.observe.rollouts import read_rollouts
from dapo.run.given import Given

EXTENDING = (Path(__file__).resolve().parents[2] / "docs" / "extending.md").read_text()
PARTS = ["data.stream=my_parts:ShortFirst", "scorer=my_parts:Ones", "checkpoint.every=2"]


ONES = """

class Ones(LastNumber):
    def submit(self, key, prompt, completion):
        right = float("=1" in completion.text.split())
        self.done.append((key, Score({"accuracy": right}, reward=right)))
"""
"""What an untrained model writes by chance."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recipe, and a module with the classes of the page, without its runs."""
    made: Path = tmp_path_factory.mktemp("named")
    write_recipe(made)
    pages = [block for block in re.findall(r"```python\n(.*?)```", EXTENDING, re.S) if "class ShortFirst" in block]
    pages += [block for block in re.findall(r"```python\n(.*?)```", EXTENDING, re.S) if "class LastNumber" in block]
    lines = [line for block in pages for line in block.splitlines() if not line.startswith(("run =", "print("))]
    (made / "my_parts.py").write_text("\n".join(lines) + ONES)
    return made


@pytest.mark.whole
def test_a_run_with_named_parts_goes_on_to_the_bit(folder: Path) -> None:
    dapo("train", folder / "recipe.yaml", *PARTS, "run.name=whole", cwd=folder)
    dapo("train", folder / "recipe.yaml", *PARTS, "run.name=half", "trainer.steps=3", cwd=folder)
    dapo("train", "--resume", folder / "half", "trainer.steps=6", cwd=folder)
    whole, half = (
        {row["step"]: without_clock(row) for row in read_metrics(folder / name / "metrics.jsonl")}
        for name in ("whole", "half")
    )
    assert sorted(whole) == list(range(7))
    assert all(json.dumps(whole[step]) == json.dumps(half[step]) for step in (1, 2, 4, 5, 6))
    assert not (folder / "whole" / GIVEN).exists()  # nothing has to be given again
    assert {key for row in whole.values() for key in row if key.startswith("reward/short")} == set()
    asked = read_rollouts(folder / "whole" / "rollouts" / "step_000001.parquet")["prompt"].to_pylist()
    assert max(map(len, asked)) <= 12  # the shortest problems


def test_a_name_that_leads_nowhere_and_a_part_given_twice_are_refused(folder: Path) -> None:
    said = dapo("train", folder / "recipe.yaml", "scorer=my_parts:Nothing", cwd=folder, expect=2)
    assert "scorer: cannot load 'my_parts:Nothing'" in said.stderr
    recipe = load_recipe(folder / "recipe.yaml", ["scorer=my_parts:LastNumber"]).recipe
    with pytest.raises(RecipeError, match="the recipe names my_parts:LastNumber, and scorer=Path is given"):
        Given(scorer=Path).with_named(recipe)
