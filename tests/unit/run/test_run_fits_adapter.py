"""What an adapter cannot be is refused before weights are read, by ``dapo check`` as by ``dapo train``."""

from __future__ import annotations

from pathlib import Path

import pytest

from dapo.cli.check_memory import load_tokenizer_and_facts
from dapo.config import recipe_from_dict
from dapo.data import prepare
from dapo.errors import RecipeError
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.run.fits import check_fits


@pytest.fixture(scope="module", params=[True, False], ids=["tied", "untied"])
def model(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return make_tiny_model(folder, hidden=16, layers=2, heads=2, ffn=32, tied=request.param)


def refused(model: Path, **lora: object) -> str:
    """What the look before training says; "" where it takes the adapter, and so does loading."""
    given = {
        "model": {"path": str(model), "lora": {"rank": 2, **lora}},
        "data": {"train": [{"task": "signed_sum", "size": 4}]},
    }
    recipe = recipe_from_dict(given).recipe
    tokenizer, facts = load_tokenizer_and_facts(recipe)
    try:
        check_fits(recipe, facts, prepare(recipe.data, tokenizer))
    except RecipeError as error:
        return str(error)
    load_model(model, lora=recipe.model.lora)
    return ""


@pytest.mark.parametrize(
    "name", ["embed_tokens", "norm", "input_layernorm", "lm_head", "nothing", "self_attn", "q_pro"]
)
def test_targets_that_are_no_linear_layers(model: Path, name: str) -> None:
    said = refused(model, target_modules=["q_proj", name])
    assert f"model.lora.target_modules: {name} " in said
    assert "q_proj" in said.replace(f": {name} ", "")  # layers that it may name


def test_targets_that_are_linear_layers(model: Path) -> None:
    assert not refused(model, target_modules=["q_proj", "self_attn.k_proj", "down_proj"])
    assert not refused(model, target_modules=["q_proj"], modules_to_save=["norm"])


def test_a_table_that_is_trained_whole(model: Path, request: pytest.FixtureRequest) -> None:
    said = refused(model, modules_to_save=["embed_tokens"])
    tied = "untied" not in request.node.callspec.id
    assert ("model.lora.modules_to_save: embed_tokens" in said) == tied
