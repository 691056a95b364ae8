"""Limits and tokens that do not fit the model are refused before its weights are read."""

from __future__ import annotations

from typing import Any

import pytest

from dapo.cli.main import main
from dapo.config import Recipe, recipe_from_dict
from dapo.data.demonstrations import Demonstrations
from dapo.data.load import PreparedData, prepare
from dapo.errors import RecipeError
from dapo.models.facts import read_facts
from dapo.models.tiny import make_tiny_model, make_word_tokenizer
from dapo.run.fits import check_fits
from dapo.run.supervised import check_examples


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model")
    make_tiny_model(folder, "llama", seed=0)
    return str(folder)


def prepared(model: str, *overrides: str) -> tuple[Recipe, Any, PreparedData]:
    given = {
        "model": {"path": model},
        "data": {
            "train": [{"task": "signed_sum", "size": 8}],
            "validation": [{"task": "signed_sum", "name": "held", "size": 8, "seed": 2}],
        },
    }
    recipe = recipe_from_dict(given, overrides).recipe
    tokenizer = make_word_tokenizer()
    return recipe, read_facts(model, "float32", tokenizer=tokenizer), prepare(recipe.data, tokenizer)


def test_the_longest_response_that_fits_is_taken_and_one_token_more_is_not(model):
    _, facts, data = prepared(model)
    longest = max(len(p.token_ids) for p in [*data.train, *data.validation["held"]])
    assert facts.positions is not None
    room = facts.positions - longest
    for key in ("rollout", "validation"):
        check_fits(*prepared(model, f"{key}.max_response_tokens={room}"))
        with pytest.raises(RecipeError, match=rf"^{key}\.max_.* = {room + 1} does not fit.*at most {room},"):
            check_fits(*prepared(model, f"{key}.max_response_tokens={room + 1}"))


def test_training_prompts_that_are_placeholders_do_not_count(model):
    recipe, facts, data = prepared(model, "rollout.max_response_tokens=100000", "validation.max_response_tokens=10")
    check_fits(recipe, facts, data, training=False)


def test_more_ranks_for_a_row_than_can_share_the_heads_are_refused(model):
    check_fits(*prepared(model, "learner.ranks=8", "learner.context_parallel=4"))  # the model has four heads
    with pytest.raises(RecipeError, match=r"context_parallel = 8 does not divide the 4 attention heads.* 1, 2, 4$"):
        check_fits(*prepared(model, "learner.ranks=8", "learner.context_parallel=8"))


@pytest.mark.parametrize(("tokens", "outside"), [("[1000000]", "1000000"), ("[1, 16, 99999]", "99999")])
def test_a_stop_token_that_the_model_cannot_write_is_refused(model, tokens, outside):
    with pytest.raises(RecipeError, match=rf"stop_token_ids: .*{outside} is no token"):
        check_fits(*prepared(model, f"rollout.stop_token_ids={tokens}"))
    _, facts, _ = prepared(model)
    check_fits(*prepared(model, f"rollout.stop_token_ids=[0, {facts.vocabulary - 1}]"))


@pytest.mark.parametrize("command", ["check", "train"])
def test_both_commands_refuse_it_before_weights_are_read(model, tmp_path, capsys, monkeypatch, command):
    def never(*arguments: object, **more: object) -> None:
        raise AssertionError("weights were read")

    monkeypatch.setattr("dapo.run.reinforcement.make_model", never)
    recipe = tmp_path / "r.yaml"
    recipe.write_text(
        f"run: {{dir: {tmp_path}}}\nmodel: {{path: {model}}}\ndata: {{train: [{{task: signed_sum, size: 8}}]}}\n"
        "rollout: {max_response_tokens: 100000}\n"
    )
    assert main([command, str(recipe)]) == 2
    assert "does not fit" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("key", ["target_modules", "modules_to_save"])
def test_an_adapter_for_a_layer_that_is_not_there_is_refused_before_weights(model, key):
    recipe, facts, data = prepared(model, "model.lora.rank=2", f"model.lora.{key}=[q_proj, nowhere]")
    with pytest.raises(RecipeError, match=rf"model\.lora\.{key}: nowhere is no (linear )?layer of .*k_proj"):
        check_fits(recipe, facts, data)
    check_fits(*prepared(model, "model.lora.rank=2", f"model.lora.{key}=[q_proj, self_attn.v_proj]"))


def test_a_supervised_run_refuses_an_adapter_of_layers_that_the_model_lacks(model):
    recipe, facts, _ = prepared(model, "model.lora.rank=2", "model.lora.target_modules=[nowhere]")
    with pytest.raises(RecipeError, match="nowhere is no linear layer"):
        check_examples(recipe, Demonstrations(), facts)
