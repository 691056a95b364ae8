"""YAML that was made to break whoever reads it."""

from __future__ import annotations

import pytest

from dapo.config.yaml_files import MOST_BYTES, parse_yaml
from dapo.errors import RecipeError


def bomb(line: str, levels: int = 30) -> str:
    """Each line stands for two of the line before."""
    return "x0: &x0 {a: 1}\n" + "".join(line.format(n=n, last=n - 1) for n in range(1, levels))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (bomb("x{n}: &x{n} [*x{last}, *x{last}]\n"), "aliases"),
        (bomb("x{n}: &x{n} {{a: *x{last}, b: *x{last}}}\n"), "aliases"),
        (bomb("x{n}: &x{n} {{<<: [*x{last}, *x{last}]}}\n"), "aliases"),
        ("a: &a [*a]\n", "aliases"),
        ("[" * 5000, "too deep"),
        ("#" * (MOST_BYTES + 1), "at most"),
    ],
    ids=["list", "mapping", "merge", "round", "deep", "long"],
)
@pytest.mark.timeout(120)  # what is not refused at once takes hours or all memory
def test_a_recipe_that_would_not_end_is_refused(text: str, said: str) -> None:
    with pytest.raises(RecipeError, match=f"recipe.yaml: .*{said}"):
        parse_yaml(text, "recipe.yaml")


def test_aliases_that_a_person_writes_are_kept() -> None:
    text = "one: &one {path: a, task: b}\ntwo: *one\nthree: {<<: *one, task: c}\n"
    value, lines = parse_yaml(text, "recipe.yaml")
    assert value["two"] == value["one"] == {"path": "a", "task": "b"}
    assert value["three"] == {"path": "a", "task": "c"}
    assert lines["three"] == 3
