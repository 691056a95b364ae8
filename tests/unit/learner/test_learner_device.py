"""What a learner asks of its device: deterministic algorithms for a while, and memory by name."""

from __future__ import annotations

import os
import types

import pytest
import torch
from learner_here import LearnerHere
from learner_rows import learn, make_rows

from dapo.algorithms.objective import Objective, clip_objective
from dapo.config import schema
from dapo.errors import LearnerError
from dapo.learner import determinism
from dapo.models.load import load_model, notes_on_cuda
from dapo.models.tiny import make_tiny_model

CLIP = clip_objective(low=0.2, high=0.28)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model"), hidden=32, heads=2, ffn=48)


def learner_of(folder, loss=CLIP.loss, **settings) -> LearnerHere:
    return LearnerHere(load_model(folder), Objective(loss), schema.LearnerSection(**settings), 1.0)


def rows_of_a_step():
    return make_rows()


@pytest.mark.parametrize("wanted", [True, False])
def test_deterministic_algorithms_are_asked_for_in_passes_alone(folder, wanted):
    seen = []

    def loss(inputs):
        seen.append(
            (torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled())
        )
        inputs.logprobs.register_hook(lambda _: seen.append(torch.are_deterministic_algorithms_enabled()))
        return CLIP.loss(inputs)

    learn(learner_of(folder, loss, deterministic=wanted), rows_of_a_step())
    assert set(seen) == {(wanted, False), wanted}
    assert not torch.are_deterministic_algorithms_enabled()


def test_on_a_cpu_it_changes_no_digit(folder):
    found = []
    for wanted in (True, False):
        learner = learner_of(folder, deterministic=wanted)
        learn(learner, rows_of_a_step())
        found.append({name: p.detach().clone() for name, p in learner.loaded.model.named_parameters()})
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


def test_what_was_set_before_is_set_again(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        with determinism.deterministic_algorithms():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
            assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
        assert torch.is_deterministic_algorithms_warn_only_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_device_without_memory_is_told_with_what_to_change(folder):
    def loss(inputs):
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nmore")

    learner = learner_of(folder, loss, microbatch_tokens=4096)
    before = [p.detach().clone() for p in learner.loaded.model.parameters()]
    with pytest.raises(LearnerError, match="too little memory") as caught:
        learn(learner, rows_of_a_step())
    for part in ("20.00 GiB", "learner.microbatch_tokens (now 4,096)", "model.activation_checkpointing=full"):
        assert part in str(caught.value)
    assert all(torch.equal(p, q) for p, q in zip(learner.loaded.model.parameters(), before, strict=True))


@pytest.mark.parametrize(
    ("device", "dtype", "precision", "said"),
    [
        ("cpu", torch.float32, "high", []),
        ("cuda", torch.bfloat16, "high", []),
        ("cuda", torch.float32, "highest", ["bfloat16"]),
        ("cuda", torch.float32, "medium", ["bfloat16", "TF32"]),
    ],
)
def test_float32_on_cuda_is_told_what_it_costs(device, dtype, precision, said):
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        config = types.SimpleNamespace(get_text_config=types.SimpleNamespace)
        notes = notes_on_cuda(
            types.SimpleNamespace(
                device=torch.device(device), dtype=dtype, packed=True, model=types.SimpleNamespace(config=config)
            )
        )
    finally:
        torch.set_float32_matmul_precision(before)
    assert len(notes) == len(said)
    assert all(word in note for word, note in zip(said, notes, strict=True))
