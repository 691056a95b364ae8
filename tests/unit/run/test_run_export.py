"""What an exported folder and a checkpoint look like to others: modes, tokenizer, model card."""

from __future__ import annotations

import os
import stat

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from dapo.checkpoint.store import CheckpointStore
from dapo.checkpoint.tree import save_state
from dapo.config import recipe_from_dict
from dapo.config.files import RESOLVED
from dapo.errors import CheckpointError
from dapo.learner import storage
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.run.export import export, model_card, tokenizer_class


def modes(folder):
    return {file.name: stat.S_IMODE(file.stat().st_mode) for file in folder.iterdir() if file.is_file()}


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o027, 0o640), (0o077, 0o600)])
def test_tensors_are_as_readable_as_the_files_beside_them(tmp_path, mask, mode):
    loaded = load_model(make_tiny_model(tmp_path / "model", "llama"))
    before = os.umask(mask)
    try:
        storage.contents(loaded, {"m": torch.zeros(3)}, {}).write(tmp_path / "saved")
        storage.export(tmp_path / "out", loaded)
    finally:
        os.umask(before)
    for folder in ("saved", "out"):
        found = modes(tmp_path / folder)
        assert any(name.endswith(".safetensors") for name in found)
        assert set(found.values()) == {mode}, (folder, found)


@pytest.mark.parametrize(
    ("architecture", "expected"), [("llama", "AutoTokenizer"), ("qwen2", "PreTrainedTokenizerFast")]
)
def test_the_class_that_loads_the_tokenizer_as_training_used_it_is_found(tmp_path, architecture, expected):
    loaded = load_model(make_tiny_model(tmp_path / "model", architecture))
    storage.export(tmp_path / "out", loaded)
    assert tokenizer_class(tmp_path / "out", loaded) == expected
    loader = {"AutoTokenizer": AutoTokenizer, "PreTrainedTokenizerFast": PreTrainedTokenizerFast}[expected]
    text = "4 +7 -9 ="
    assert loader.from_pretrained(tmp_path / "out").encode(text) == loaded.tokenizer.encode(text)


def card(rows, tokenizer="AutoTokenizer", **model):
    recipe = recipe_from_dict(
        {
            "model": {"path": "owner/base", **model},
            "data": {"train": [{"task": "signed_sum", "size": 8}]},
            "rewards": [{"name": "accuracy", "kind": "task"}],
        }
    ).recipe
    return model_card("mine", recipe, rows, 60, "against preset dapo:\n  a  1 -> 2\n", tokenizer)


def row(step, accuracy, **more):
    return {
        "step": step,
        "validation/accuracy": accuracy,
        "validation/accuracy_low": accuracy - 0.1,
        "validation/accuracy_high": accuracy + 0.1,
        "validation/problems": 128,
        **more,
    }


def test_a_model_card_tells_recipe_and_result():
    text = card([row(0, 0.25), row(30, 0.5), row(60, 0.75)])
    assert text.startswith("---\nlibrary_name: transformers\n")
    assert "`owner/base` trained for 60 steps" in text
    assert "| accuracy, sampled | 25.0% (15.0–35.0) | 75.0% (65.0–85.0) |" in text
    assert "| held-out | step 0 | step 60 |" in text
    assert "unscored" not in text
    assert "  a  1 -> 2" in text
    assert "AutoTokenizer.from_pretrained" in text


def test_a_model_card_hides_neither_unscored_responses_nor_a_tokenizer_that_auto_breaks():
    text = card([row(0, 0.5, **{"validation/unscored": 24})], "PreTrainedTokenizerFast")
    assert "| unscored responses | 24 |" in text
    assert "PreTrainedTokenizerFast.from_pretrained" in text
    assert "AutoTokenizer.from_pretrained" not in text
    assert "not evaluated" in card([])


def test_a_folder_that_cannot_be_made_is_refused_before_a_model_is_loaded(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / RESOLVED).touch()
    (tmp_path / "file").touch()
    with pytest.raises(CheckpointError, match=r"file/out cannot be made: Not a directory; give another folder"):
        export(tmp_path / "run", tmp_path / "file" / "out")


def test_the_base_model_is_named_once(tmp_path, monkeypatch, capsys):
    """Facts come before weights, so that another model is refused early; both are of one built-in model."""
    base = make_tiny_model(tmp_path / "base", hidden=16, layers=1, heads=2, ffn=16)
    monkeypatch.setattr("dapo.run.parts.find_builtin_model", lambda *args, **options: base)
    loaded = load_model(base)
    run = tmp_path / "run"
    given = {"model": {"path": "builtin/signed-sum"}, "data": {"train": [{"task": "signed_sum"}]}}
    recipe = recipe_from_dict({**given, "run": {"name": "run", "dir": str(tmp_path)}})
    run.mkdir()
    (run / RESOLVED).write_text(recipe.resolved)

    def write(folder):
        save_state({"fingerprint": loaded.fingerprint}, folder)
        storage.contents(loaded, {}, {}).write(folder / "learner")
        return ()  # nobody describes them: the store looks at them itself

    CheckpointStore(run / "checkpoints").save(3, write)
    assert export(run, tmp_path / "out") == 0
    said = capsys.readouterr().out.splitlines()
    assert [line for line in said if "base model" in line] == [f"the warmed-up base model is {base}"]
    assert any(line.startswith("load it with AutoModelForCausalLM") for line in said)
