"""Supervised training over ranks is that of one process."""

import json

import pytest
import torch
from safetensors.torch import load_file
from small_run import dapo

from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import read_metrics

pytestmark = pytest.mark.cluster

RECIPE = """
run: {{dir: {folder}/runs, name: one}}
model: {{path: {folder}/model}}
sft:
  {{train: [{{path: {folder}/examples.jsonl}}], validation: [{{path: {folder}/held.jsonl}}], batch_size: 6, warmup: 0,
   learning_rate: 1.0e-2, epochs: 4, steps: 4, every: 2}}
checkpoint: {{every: 2}}
"""


@pytest.fixture
def inputs(tmp_path):
    """The folder of a recipe with its model and examples."""
    make_tiny_model(tmp_path / "model", "llama", seed=0)
    for name, start in (("examples", 1), ("held", 5)):
        lines = [json.dumps({"prompt": f"{start} +{n} =", "response": f"+{n} ={start + n}"}) for n in range(1, 10)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(folder=tmp_path))
    return tmp_path


def same_curves(folder, one, other):
    found = [read_metrics(folder / "runs" / name / "metrics.jsonl") for name in (one, other)]
    for key in ("train/loss", "train/grad_norm", "validation/loss"):
        theirs, ours = ([row[key] for row in rows if key in row] for rows in found)
        assert len(ours) >= 3
        assert ours == pytest.approx(theirs, rel=1e-4), key


def test_an_adapter_over_two_ranks_is_that_of_one_process(inputs):
    for name, ranks in (("one", 1), ("two", 2)):
        dapo("sft", inputs / "recipe.yaml", f"run.name={name}", "model.lora.rank=2", f"learner.ranks={ranks}")
    same_curves(inputs, "one", "two")
    merged = [load_file(inputs / "runs" / name / "export" / "model.safetensors") for name in ("one", "two")]
    start = load_file(inputs / "model" / "model.safetensors")
    moved = {name for name, tensor in merged[0].items() if not torch.equal(tensor, start[name])}
    assert len(moved) == 2 * 7  # linear layers of two blocks, and nothing else
    assert all(float((merged[1][name] - merged[0][name]).abs().max()) < 1e-4 for name in start)


def test_two_ranks_train_as_one_process_and_either_goes_on_from_the_other(inputs):
    tmp_path = inputs
    dapo("sft", tmp_path / "recipe.yaml", "run.name=one")
    dapo("sft", tmp_path / "recipe.yaml", "run.name=two", "learner.ranks=2", "sft.steps=2", "sft.schedule=cosine")
    dapo("sft", tmp_path / "recipe.yaml", "run.name=three", "learner.ranks=2")
    same_curves(tmp_path, "one", "three")
    assert (tmp_path / "runs" / "three" / "export" / "model.safetensors").exists()
    dapo("sft", "--resume", tmp_path / "runs" / "two", "learner.ranks=1", "sft.steps=3")
    assert [row["step"] for row in read_metrics(tmp_path / "runs" / "two" / "metrics.jsonl")] == [0, 1, 2, 3]
