"""Cached device memory is the driver's again before an engine of another process wakes. torch.cuda has stand-ins."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from inline_transport import InlineTransport
from learner_here import LearnerHere, learner_apart
from learner_rows import make_rows
from rank_stage import Stage

from dapo.algorithms.objective import clip_objective
from dapo.config import schema
from dapo.learner.step import PolicyStep
from dapo.learner.worker import Worker
from dapo.metrics.stats import Max
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import LearnStep, TokenRow
from dapo.weights import broadcast, ipc

KINDS = ["in the driver", "through a folder", "in a process", "of ranks"]


@pytest.fixture(scope="module")
def stage(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stage")
    make_tiny_model(folder / "model", hidden=16, heads=2, ffn=24)
    try:
        yield Stage(InlineTransport(), 1, folder)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.fixture
def notes(monkeypatch):
    """What happened to the device's memory, in order."""
    found = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: found.append("give back"))
    return found


def make(kind, stage, folder):
    path = stage.folder / "model"
    if kind == "of ranks":
        return stage.learner({"path": str(path), "device": "cpu"})
    weights = None if kind == "in the driver" else folder
    objective = clip_objective(low=0.2, high=0.28)
    made = load_model(str(path), device="cpu"), objective, schema.LearnerSection(), 1.0
    if kind == "in a process":
        return learner_apart(lambda *parts: Worker(PolicyStep(*parts)), *made, weights=folder)
    return LearnerHere(*made, weights=weights)


def rows():
    return [TokenRow(row.group, row.prompt_ids, row.token_ids) for row in make_rows()]


@pytest.mark.whole
@pytest.mark.parametrize("kind", KINDS)
def test_a_publish_gives_back_before_the_engine_wakes(kind, stage, notes, tmp_path):
    """The first one, one after a step, and one after a checkpoint was loaded."""
    learner = make(kind, stage, tmp_path / "weights")

    def wake(ticket):
        notes.append("wake")

    wake(learner.publish(0))
    learner.learn(LearnStep([make_rows()], [1e-3], 0, "sampler")).result()
    notes.append("learned")
    wake(learner.publish(1))
    learner.save(tmp_path / "saved").result()
    learner.load(tmp_path / "saved")
    notes.append("loaded")
    wake(learner.publish(1))
    assert notes == ["give back", "wake", "learned", "give back", "wake", "loaded", "give back", "wake"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_beside_a_wake_engine_gives_back(kind, stage, notes, tmp_path):
    """The sync check computes while the engine holds its cache."""
    learner = make(kind, stage, tmp_path / "weights")
    learner.logprobs(rows()).result()
    assert notes == ["give back"]


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["through a folder", "of ranks"])
def test_what_gathers_weights_gives_back_behind_it(kind, stage, notes, tmp_path, monkeypatch):
    learner = make(kind, stage, tmp_path / "weights")
    one = learner.worker if kind != "of ranks" else stage.hosts[0].thing.held[learner.number]
    monkeypatch.setattr(ipc, "lend", lambda *_: notes.append("gathered") or ("GPU 0", [], []))
    one.send("ipc")
    monkeypatch.setattr(broadcast.HERE, "send", lambda *_: notes.append("sent") or True)
    one.send("broadcast", None)
    assert notes == ["gathered", "give back", "sent", "give back"]


def test_what_a_rank_had_taken_is_reported(stage, monkeypatch, tmp_path):
    """The largest of all ranks; nothing where there is no device."""
    learner = make("of ranks", stage, tmp_path)
    step = LearnStep([make_rows()], [1e-3], 0)
    assert "memory/reserved_cuda_mib" not in learner.learn(step).result().stats
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 3 * 2**20)
    assert learner.learn(step).result().stats["memory/reserved_cuda_mib"] == Max(3.0)
    assert Max(3.0) + Max(5.0) == Max(5.0)
