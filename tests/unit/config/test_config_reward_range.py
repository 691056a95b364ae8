"""Weights whose sum leaves the interval of reward scaling: refused or warned of, with the interval that fits."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from each import each
from hypothesis import given
from hypothesis import strategies as st

from dapo.algorithms.shaping import clamped
from dapo.config import load_recipe, recipe_from_dict
from dapo.config.load import LoadedRecipe
from dapo.errors import RecipeError

RECIPES = Path(__file__).parents[3] / "dapo/recipes"
CONCISE = {"name": "concise", "kind": "regex", "pattern": "x"}
MINE = {"name": "mine", "kind": "function", "function": "json:loads"}


def recipe(*rewards: dict[str, Any], overrides: tuple[str, ...] = ()) -> LoadedRecipe:
    sources = [{"task": "signed_sum", "name": "a"}, {"task": "signed_sum", "name": "b", "seed": 1}]
    validation = [{"task": "signed_sum", "name": "held_out", "seed": 2}]
    data = {"train": sources, "validation": validation}
    return recipe_from_dict({"model": {"path": "m"}, "data": data, "rewards": list(rewards)}, overrides)


@each(
    ("rewards", "fits"),
    [
        ([{}, CONCISE | {"weight": 0.5}], "source_max=1.5"),
        ([{}, CONCISE], "source_max=2"),
        ([{"weight": 2.0}], "source_max=2"),
        ([{}, CONCISE | {"weight": -0.25}], "source_min=-0.25"),
        ([{"weight": 0.8}, CONCISE | {"weight": -0.1}, CONCISE | {"name": "c", "weight": 0.3}],
         "source_min=-0.1 and algorithm.reward_scaling.source_max=1.1"),
        # a reward of one source only: that source is named
        ([{}, CONCISE | {"weight": 0.5, "sources": ["b"]}], "`b` run from 0 to 1.5"),
        # what is called accuracy lies in [0, 1], a function's too
        ([{"kind": "function", "function": "json:loads"}, CONCISE | {"weight": 0.5}], "source_max=1.5"),
        # certain to overflow even without the function, whose weight counts for the range that fits
        ([{}, CONCISE | {"weight": 0.5}, MINE | {"weight": 0.25}], "source_max=1.75"),
    ],
)  # fmt: skip
def test_a_sum_that_is_certain_to_leave_the_interval_is_refused_with_one_that_fits(
    rewards: list[dict[str, Any]], fits: str
) -> None:
    with pytest.raises(RecipeError, match=r"what is clamped away teaches nothing") as refused:
        recipe(*rewards)
    assert fits in str(refused.value)
    move = re.search(r"Set (\S+)(?: and (\S+?))?,", str(refused.value))
    assert move is not None
    mended = recipe(*rewards, overrides=tuple(o for o in move.groups() if o))
    assert not [w for w in mended.warnings if "clamps" in w]


@each(
    "rewards",
    [
        [{}],
        [{}, CONCISE | {"weight": 0.0}],
        [{"weight": 0.7}, CONCISE | {"weight": 0.2}, CONCISE | {"name": "c", "weight": 0.1}],
        [{"weight": 0.5}, MINE | {"weight": 0.5}],
        [{"sources": ["a"]}, {"sources": ["b", "held_out"]}],
        # a reward of a validation set alone is never scaled
        [{}, CONCISE | {"weight": 3.0, "sources": ["held_out"]}],
    ],
)
def test_a_sum_that_stays_inside_says_nothing(rewards: list[dict[str, Any]]) -> None:
    assert recipe(*rewards).warnings == ()


@pytest.mark.parametrize(
    "override", ["algorithm.reward_scaling.enabled=false", "algorithm.shaping=json:loads", "preset=grpo"]
)
def test_without_scaling_any_sum_is_welcome(override: str) -> None:
    assert not [w for w in recipe({}, CONCISE, overrides=(override,)).warnings if "clamps" in w]


def test_of_a_function_of_the_users_one_is_warned_since_its_values_are_not_known() -> None:
    (warning,) = recipe({}, MINE | {"weight": 0.5}).warnings
    assert "source_max=1.5" in warning
    assert "`mine`" in warning
    assert recipe({}, MINE | {"weight": 0.5}, overrides=("algorithm.reward_scaling.source_max=1.5",)).warnings == ()
    (warning,) = recipe({}, MINE | {"weight": -1.0}).warnings
    assert "source_min=-1" in warning


@given(
    weights=st.lists(st.floats(-2, 2).map(lambda w: round(w, 3)), min_size=1, max_size=4).filter(any),
    low=st.sampled_from([0.0, -0.5]),
    high=st.sampled_from([1.0, 1.5, 4.0]),
    values=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_nothing_is_clamped_in_a_recipe_that_is_not_refused(
    weights: list[float], low: float, high: float, values: list[float]
) -> None:
    rewards = [{"weight": weights[0]}, *(CONCISE | {"name": f"r{n}", "weight": w} for n, w in enumerate(weights[1:]))]
    bounds = (f"algorithm.reward_scaling.source_min={low}", f"algorithm.reward_scaling.source_max={high}")
    extremes = [sum(w for w in weights if w > 0), sum(w for w in weights if w < 0)]
    try:
        recipe(*rewards, overrides=bounds)
    except RecipeError:
        assert clamped(extremes, source_min=low, source_max=high).any()
        return
    total = sum(w * v for w, v in zip(weights, values, strict=False))
    assert not clamped([total, *extremes], source_min=low, source_max=high).any()


def test_what_the_recipe_for_ones_own_data_invites_works() -> None:
    """The comment says: give `concise` a weight, 0.2 say, and let source_max hold the sum."""
    text = (RECIPES / "own_data.yaml").read_text()
    assert "such as 0.2" in text
    assert "1.2 with the above" in text
    overrides = ["rewards.1.weight=0.2", "algorithm.reward_scaling.source_max=1.2"]
    assert not [w for w in load_recipe(RECIPES / "own_data.yaml", overrides).warnings if "clamps" in w]
    with pytest.raises(RecipeError, match=r"source_max=1\.2"):
        load_recipe(RECIPES / "own_data.yaml", overrides[:1])
