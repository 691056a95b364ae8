"""A low-precision model begins at the numbers of its files: updates below a rounding move what lies near its edge."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from exchanges import by_folder
from learner_rows import learn_step, make_rows
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from dapo.config.load import recipe_from_dict
from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import WorkerHere
from dapo.models.read import float32_weights, give_memory, read_weights_of
from dapo.models.skeleton import model_without_weights
from dapo.models.tiny import make_tiny_model
from dapo.run.learners import start_worker

SMALL = 2.0**-24  # under half a spacing of bfloat16 for numbers above 2^-15; those at the middle of a rounding stay


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, heads=2, ffn=48)


@pytest.fixture(scope="module")
def rounded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model, whose files hold bfloat16."""
    other = make_tiny_model(tmp_path_factory.mktemp("rounded"), hidden=32, heads=2, ffn=48)
    AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(other)
    return other


def moved(folder: Path) -> int:
    """The weights above 2^-15 that a training step with a small rate has changed."""
    recipe = {
        "model": {"path": str(folder), "dtype": "bfloat16", "device": "cpu"},
        "data": {"train": [{"task": "signed_sum"}]},
        "rewards": [{"name": "accuracy", "kind": "exact"}],
    }
    worker = start_worker(recipe_from_dict(recipe, ["learner.weight_decay=0"]).recipe)
    before = {name: p.detach().clone() for name, p in worker.loaded.model.named_parameters()}
    driver = LearnerDriver(WorkerHere(worker), by_folder(None))
    learn_step(driver, [make_rows(0, 2, 3, length=lambda random: int(random.integers(4, 12)))], SMALL)
    return sum(
        int((p != before[name])[before[name].abs() > 2.0**-15].sum())
        for name, p in worker.loaded.model.named_parameters()
    )


def test_a_step_below_a_rounding_moves_weights_of_a_float32_file_and_none_of_a_bfloat16_file(folder, rounded) -> None:
    assert moved(folder) > 0
    assert moved(rounded) == 0


def numbers(folder: Path, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    return float32_weights(str(folder), model, trust_remote_code=False)


@pytest.mark.parametrize("prefix", ["model.", ""], ids=["names of the model", "names of its base"])
def test_the_numbers_are_those_of_the_files(folder, tmp_path, prefix) -> None:
    plain = dict(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters())
    shutil.copytree(folder, tmp_path / "m")
    held = load_file(folder / "model.safetensors")
    renamed = {prefix + name.removeprefix("model."): tensor for name, tensor in held.items()}
    save_file(renamed, tmp_path / "m" / "model.safetensors", metadata={"format": "pt"})
    found = numbers(tmp_path / "m")
    assert found.keys() == plain.keys()
    assert all(torch.equal(found[name], plain[name]) for name in plain)


def test_nothing_is_read_that_was_not_rounded(folder, rounded, tmp_path) -> None:
    assert not numbers(folder, torch.float32)
    assert not numbers(rounded)
    shutil.copytree(rounded, tmp_path / "mixed")
    held = load_file(rounded / "model.safetensors")
    (norm,) = [name for name in held if name.endswith("model.norm.weight")]
    held[norm] = torch.full_like(held[norm], 1.0 / 3.0, dtype=torch.float32)
    save_file(held, tmp_path / "mixed" / "model.safetensors", metadata={"format": "pt"})
    found = numbers(tmp_path / "mixed")
    assert found.keys() == {norm}
    assert torch.equal(found[norm], held[norm])


def test_ranks_begin_at_the_numbers_of_the_files(folder) -> None:
    model = model_without_weights(str(folder), torch.float32, False)
    give_memory(model, torch.device("cpu"))
    model.tie_weights()  # slices of a tied head stay tied
    read_weights_of(str(folder), model, torch.bfloat16, trust_remote_code=False)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for (name, found), expected in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=0, msg=name)
