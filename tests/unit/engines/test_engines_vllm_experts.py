"""Experts on their way to vLLM: names that it reads, and what it does not do."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from dapo.config.schema import Vllm
from dapo.engines.vllm import VllmEngine
from dapo.engines.vllm_worker import as_in
from dapo.errors import EngineError


def model_with(*names):
    return SimpleNamespace(named_modules=lambda: [(name, None) for name in names])


TENSORS = [
    ("model.layers.0.mlp.experts.gate_up_proj", torch.arange(24.0).view(2, 4, 3)),
    ("model.layers.0.mlp.experts.down_proj", torch.arange(12.0).view(2, 3, 2)),
    ("model.layers.0.mlp.gate.weight", torch.ones(2, 3)),
    ("model.norm.weight", torch.ones(3)),
]


def test_mixtral_reads_single_matrices_by_the_names_of_its_files():
    found = dict(as_in(model_with("model.layers.0.block_sparse_moe"), TENSORS))
    place = "model.layers.0.block_sparse_moe"
    gate_up, down = TENSORS[0][1], TENSORS[1][1]
    expected = {f"{place}.gate.weight": TENSORS[2][1], "model.norm.weight": TENSORS[3][1]}
    for expert in range(2):
        expected[f"{place}.experts.{expert}.w1.weight"] = gate_up[expert, :2]
        expected[f"{place}.experts.{expert}.w3.weight"] = gate_up[expert, 2:]
        expected[f"{place}.experts.{expert}.w2.weight"] = down[expert]
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in expected.items())


def test_others_read_the_experts_of_a_layer_together():
    assert list(as_in(model_with("model.layers.0.mlp"), TENSORS)) == TENSORS


def test_the_cpu_build_is_refused_for_experts():
    facts = SimpleNamespace(name="m", has_experts=True, vocabulary=80, positions=64, shapes={})
    with pytest.raises(EngineError, match=r"m is a mixture of experts, .*; set rollout\.engine: embedded"):
        VllmEngine(facts, cuda=False, longest=64, settings=Vllm())
