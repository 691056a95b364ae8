"""Sections with kinds: options belong to their kind, and old names lead to the new ones."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

from dapo.config import load_recipe, recipe_from_dict
from dapo.config.load import apply_settings
from dapo.config.resume import load_for_resume
from dapo.config.schema.kinds import Advantage, Correction, Loss, Reduction
from dapo.config.section import OWN, Section, kinds_of
from dapo.config.settings import settings
from dapo.errors import RecipeError
from dapo.hooks import load

SMALL: dict[str, Any] = {
    "model": {"path": "someone/model"},
    "data": {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]},
}


def made(*overrides: str, **sections: Any) -> Any:
    return recipe_from_dict({**SMALL, **sections}, list(overrides))


@pytest.mark.parametrize("union", [Loss, Reduction, Advantage, Correction])
def test_an_option_means_the_same_in_each_kind_that_has_it(union: Any) -> None:
    """The index of settings has one line for it."""
    found: dict[str, tuple[Any, Any, Any]] = {}
    for section in kinds_of(union.__origin__).values():
        for name, field in section.model_fields.items():
            if name != "kind":
                facts = (field.annotation, field.get_default(call_default_factory=True), field.description)
                assert found.setdefault(name, facts) == facts, name


@pytest.mark.parametrize("union", [Loss, Advantage])
def test_options_of_a_kind_are_the_arguments_of_its_function(union: Any) -> None:
    for kind, section in kinds_of(union.__origin__).items():
        if kind != OWN:
            fields = section.model_fields.items()
            given = {name: f.default for name, f in fields if name != "kind" and not isinstance(f.default, Section)}
            taken = inspect.signature(load(section.function)).parameters
            assert given.keys() | set(getattr(section, "clips", ())) <= taken.keys(), kind
            defaults = {n: p.default for n, p in taken.items() if n in given and p.default is not p.empty}
            assert defaults == {n: v for n, v in given.items() if n in defaults}, kind


def test_a_kind_may_be_written_as_its_name_alone() -> None:
    short = made("algorithm.loss.reduction=constant", algorithm={"loss": "sapo", "correction": "none"}).recipe
    long = made(algorithm={"loss": {"kind": "sapo", "reduction": {"kind": "constant"}}, "correction": {"kind": "none"}})
    assert short == long.recipe
    longer = made("algorithm.loss.reduction=constant", "algorithm.loss.reduction.length=9").recipe
    assert longer.algorithm.loss.reduction.model_dump() == {"kind": "constant", "length": 9}


def test_overrides_choose_the_kind_and_its_options() -> None:
    loss = made("algorithm.loss.kind=cispo", "algorithm.loss.cap=1.1").recipe.algorithm.loss
    assert (loss.kind, loss.cap, loss.floor) == ("cispo", 1.1, None)
    assert made("algorithm.loss.cap=1.1", preset="cispo").recipe.algorithm.loss.cap == 1.1
    assert made("algorithm.loss.kind=sapo", preset="cispo").recipe.algorithm.loss.positive == 1.0


def test_another_kind_drops_nothing_that_somebody_wrote() -> None:
    with pytest.raises(RecipeError, match=r"the kind is `sapo` \(its options: reduction, positive, negative\)"):
        made("algorithm.loss.kind=sapo", algorithm={"loss": {"kind": "cispo", "cap": 3.0}})
    with pytest.raises(RecipeError, match=r"set by the preset gspo; choose another preset"):
        made("algorithm.loss.kind=cispo", preset="gspo")


def test_a_function_of_the_users_takes_the_place_of_the_presets_kind_with_a_warning() -> None:
    loaded = made("algorithm.advantage.kind=mine:own", "algorithm.advantage.options.x=3", preset="grpo")
    assert loaded.recipe.algorithm.advantage.options == {"x": 3}
    said = "algorithm.advantage.eps: 0.0001 of the preset grpo is not read: mine:own takes the place of its kind"
    assert [w for w in loaded.warnings if "preset" in w] == [said]  # not of ddof, which is at its default


def test_a_resume_may_change_the_kind(tmp_path: Path) -> None:
    before = made("algorithm.loss={kind: cispo, cap: 1.1}")
    (tmp_path / "recipe.resolved.yaml").write_text(before.resolved)
    assert load_recipe(tmp_path / "recipe.resolved.yaml").recipe == before.recipe
    loaded, changes = load_for_resume(tmp_path, ["algorithm.loss.kind=sapo", "algorithm.loss.positive=2"])
    assert [change.sentence() for change in changes] == [
        'algorithm.loss.kind: "cispo" -> "sapo" (ask)',
        "algorithm.loss.positive: 1.0 -> 2.0 (ask)",
    ]
    assert any("algorithm.loss.cap: 1.1 of the run is not read" in warning for warning in loaded.warnings)


def test_a_whole_recipe_gives_its_defaults_up_for_another_kind() -> None:
    whole = made("algorithm.loss.kind=cispo").recipe.model_dump(mode="json")
    own = apply_settings(whole, {"algorithm.loss.kind": "mine:loss"}, filled_in=True)
    assert recipe_from_dict(own).recipe.algorithm.loss.kind == "mine:loss"
    whole["algorithm"]["loss"]["cap"] = 3.0
    with pytest.raises(RecipeError, match=r"algorithm\.loss\.cap"):
        recipe_from_dict(apply_settings(whole, {"algorithm.loss.kind": "sapo"}, filled_in=True))


def test_each_option_says_which_kinds_have_it() -> None:
    assert settings()["algorithm.loss.cap"].doc.startswith("For `cispo`: ")
    assert settings()["algorithm.correction.floor"].kinds == ("mask_token", "mask_sequence")
    assert "`cispo`: CISPO" in settings()["algorithm.loss.kind"].doc
