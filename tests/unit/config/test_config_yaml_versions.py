"""What is written reads the same in YAML 1.1 (PyYAML) and in YAML 1.2 (ruamel)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from dapo.config import load_recipe, recipe_from_dict
from dapo.config.write_yaml import to_yaml

SMALL: dict[str, Any] = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}}

ODD = [
    "off",
    "on",
    "yes",
    "No",
    "y",
    "N",
    "null",
    "~",
    "true",
    "017",
    "0o17",
    "0x1f",
    "0b1",
    "1_000",
    "1:30",
    "190:20:30",
    "1e-08",
    "1e5",
    ".5",
    "+1",
    ".inf",
    ".NaN",
    "2026-11-22",
    "=",
    "<<",
    "-",
    "?",
    ":",
    "a: b",
    "# c",
    "&a",
    "*a",
    "!t",
    "%d",
    "@x",
    "`x",
    "{a",
    "[b",
    "'q'",
    '"q"',
    " lead",
    "trail ",
    "\x85",
    "\u2028",
    "\ufeff",
    "\x07",
    "\t",
    "a\nb\n",
    "\n",
    "😀",
    "",
]

texts = st.one_of(
    st.sampled_from(ODD),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12),
    st.text("0123456789:._eExob+- ", max_size=8),
)
leaves = st.one_of(
    texts,
    st.integers(-(2**63), 2**63),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
)
trees = st.recursive(leaves, lambda t: st.lists(t, max_size=3) | st.dictionaries(texts, t, max_size=3), max_leaves=8)


def assert_reads_everywhere(value: Any) -> None:
    text = to_yaml(value)
    for read in (yaml.safe_load(text), YAML(typ="safe", pure=True).load(text)):
        assert repr(read) == repr(value), text  # 1 is not 1.0 and not True; the order of keys stays


@given(st.dictionaries(texts, trees, max_size=3))
def test_any_plain_value_reads_the_same_in_both(value: dict[str, Any]) -> None:
    assert_reads_everywhere(value)


def test_odd_texts_are_values_and_keys() -> None:
    assert_reads_everywhere({"list": ODD, "keys": dict.fromkeys(ODD, 1e-08), "long": "word " * 2000 + "\n  end"})


def test_a_resolved_recipe_reads_the_same_in_both() -> None:
    changes = ["algorithm.dynamic_sampling.mode=off", "run.name=017", "data.system_prompt=1:30", "learner.eps=1e-12"]
    loaded = recipe_from_dict(SMALL, changes)
    for read in (yaml.safe_load(loaded.resolved), YAML(typ="safe", pure=True).load(loaded.resolved)):
        assert read == loaded.recipe.model_dump(mode="json")
        assert read["algorithm"]["dynamic_sampling"]["mode"] == "off"
        assert read["learner"]["eps"] == 1e-12


@pytest.mark.parametrize("override", ['data.instruction="a\\x85b\\u2028c\\U0001F600"', "data.instruction='off '"])
def test_it_loads_back_to_the_same_recipe(tmp_path: Path, override: str) -> None:
    loaded = recipe_from_dict(SMALL, [override])
    file = tmp_path / "r.yaml"
    file.write_text(loaded.resolved, encoding="utf-8")
    assert load_recipe(file).recipe == loaded.recipe
