"""Checkpoints over changing numbers of ranks, written beside training, and by the learner of one process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch
from learner_here import LearnerHere
from learner_rows import make_rows
from learner_subject import assert_curve_goes_on, learn, publish
from rank_stage import OBJECTIVES

from dapo.config import schema
from dapo.models.load import load_model
from dapo.models.weight_files import read_weights

pytestmark = pytest.mark.cluster
SETTINGS = {"microbatch_tokens": 48}
MODELS = {"model": {"hidden": 16, "heads": 2, "ffn": 24}}


def local(folder, dtype):
    loaded = load_model(folder / "model", dtype=getattr(torch, dtype), device="cpu", attention_mode="packed")
    return LearnerHere(loaded, OBJECTIVES["clip"](), schema.LearnerSection(**SETTINGS), 1.0)


def over(stage, folder, dtype, **options):
    model = {"path": str(folder / "model"), "dtype": dtype, "attention": "packed", "device": "cpu"}
    return stage.learner(model, **SETTINGS, **options)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks_then_one_process_then_three_continue_the_curve(stages, folder, dtype, tmp_path):
    makers = (partial(over, stages(2)), local, partial(over, stages(3)))
    turns = [partial(make, folder, dtype) for make in makers]
    batches = [make_rows(seed) for seed in range(6)]
    assert_curve_goes_on(local(folder, dtype), turns, batches, tmp_path, 1e-4 if dtype == "float32" else 0.1)


def test_saved_beside_training_is_the_state_of_then(stages, folder, tmp_path):
    learner = over(stages(2), folder, "float32", asynchronous=True)
    learn(learner, [make_rows(0)])
    dtypes = dict.fromkeys(publish(learner, 1), "float32")
    then = learner.checksums(dtypes)
    saving = learner.save(tmp_path / "saved")
    learn(learner, [make_rows(1)])
    assert learner.checksums(dtypes) != then
    assert saving.result(timeout=600)
    assert saving.done()
    for other in (over(stages(3), folder, "float32"), local(folder, "float32")):
        other.load(tmp_path / "saved")
        assert other.checksums(dtypes) == then


def test_what_is_published_is_what_ranks_hold(stages, folder):
    learner, alone = over(stages(3), folder, "float32"), local(folder, "float32")
    ticket = learner.publish(0)
    tensors = dict(alone.loaded.model.named_parameters())
    found = dict(read_weights(Path(ticket.address)))
    assert found.keys() == set(ticket.names)
    assert all(torch.equal(found[name], tensors[name]) for name in found)
    dtypes = dict.fromkeys(ticket.names, "float32")
    assert learner.checksums(dtypes) == alone.checksums(dtypes)
