"""Supervised training over ranks is that of one process."""

import json

import pytest
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


def test_two_ranks_train_as_one_process_and_either_goes_on_from_the_other(tmp_path):
    make_tiny_model(tmp_path / "model", "llama", seed=0)
    for name, start in (("examples", 1), ("held", 5)):
        lines = [json.dumps({"prompt": f"{start} +{n} =", "response": f"+{n} ={start + n}"}) for n in range(1, 10)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    (tmp_path / "recipe.yaml").write_text(RECIPE.format(folder=tmp_path))
    dapo("sft", tmp_path / "recipe.yaml", "run.name=one")
    dapo("sft", tmp_path / "recipe.yaml", "run.name=two", "learner.ranks=2", "sft.steps=2", "sft.schedule=cosine")
    dapo("sft", tmp_path / "recipe.yaml", "run.name=three", "learner.ranks=2")
    one, three = (read_metrics(tmp_path / "runs" / name / "metrics.jsonl") for name in ("one", "three"))
    for key in ("train/loss", "train/grad_norm", "validation/loss"):
        ours, theirs = ([row[key] for row in rows if key in row] for rows in (three, one))
        assert len(ours) >= 3
        assert ours == pytest.approx(theirs, rel=1e-4), key
    assert (tmp_path / "runs" / "three" / "export" / "model.safetensors").exists()
    dapo("sft", "--resume", tmp_path / "runs" / "two", "learner.ranks=1", "sft.steps=3")
    assert [row["step"] for row in read_metrics(tmp_path / "runs" / "two" / "metrics.jsonl")] == [0, 1, 2, 3]
