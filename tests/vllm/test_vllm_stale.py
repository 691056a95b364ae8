"""A tensor of vLLM's that stays old is named by its checksum at the first publish that leaves it out."""

from __future__ import annotations

import pytest
import torch
from vllm_parts import Published, start

from dapo.algorithms.objective import Objective
from dapo.config import schema
from dapo.errors import EngineError
from dapo.learner.step import PolicyStep
from dapo.learner.worker import Worker

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(900)]

LAYER = "model.layers.1."
KINDS = [
    "model.embed_tokens.weight",  # the output head as well
    f"{LAYER}self_attn.q_proj.weight",
    f"{LAYER}self_attn.k_proj.weight",
    f"{LAYER}self_attn.v_proj.weight",
    f"{LAYER}self_attn.o_proj.weight",
    f"{LAYER}self_attn.q_norm.weight",
    f"{LAYER}mlp.gate_proj.weight",
    f"{LAYER}mlp.up_proj.weight",
    f"{LAYER}mlp.down_proj.weight",
    f"{LAYER}input_layernorm.weight",
    "model.norm.weight",
]


class Leaving(Published):
    """Published weights of which one is the one before: the route lost the new one."""

    def __init__(self, model, name, old):
        super().__init__(model)
        self.name, self.old = name, old

    def named_tensors(self):
        for name, tensor in super().named_tensors():
            yield name, self.old if name == self.name else tensor


def stirred(loaded, seed):
    """A small step of every parameter, norms (which start as ones) included."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.add_(0.005 * torch.randn(parameter.shape, generator=generator))


def differing(engine, loaded):
    """Names whose checksums are not the learner's, as the sync check finds them; all others must be there."""
    found = engine.checksums()
    assert set(found) == {name for name, _ in loaded.model.named_parameters()}
    worker = Worker(PolicyStep(loaded, Objective(lambda inputs: (inputs.logprobs, {})), schema.LearnerSection(), 1.0))
    expected = worker.checksums({name: one.dtype for name, one in found.items()})
    return [name for name, one in found.items() if expected[name] != one.value]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_kind_of_tensor_is_named_when_it_stays_old(wide, dtype):
    """Stale by a small step, and at the end by one unit in the last place of one number."""
    engine = start(wide, dtype=dtype)
    try:
        engine.load(Published(wide.model).ticket(0))
        assert differing(engine, wide) == []
        for version, name in enumerate(KINDS, 1):
            old = wide.model.state_dict()[name].clone()
            stirred(wide, seed=version)
            engine.load(Leaving(wide.model, name, old).ticket(version))
            assert differing(engine, wide) == [name]
        with torch.no_grad():
            head = wide.model.get_input_embeddings().weight
            engine.load(Published(wide.model).ticket(50))
            rounded = head[1023, 63].to(getattr(torch, dtype))
            head[1023, 63] = torch.nextafter(rounded, rounded + 9).float()
        assert differing(engine, wide) == ["model.embed_tokens.weight"]
    finally:
        engine.close()


def test_a_packed_head_that_was_not_packed_again_is_named(wide, monkeypatch):
    """The CPU build's own bug: the embedding is new, and the head computes with the old one."""
    monkeypatch.setattr("dapo.engines.vllm_worker.repack_output_head", lambda model: None)
    engine = start(wide)
    try:
        engine.load(Published(wide.model).ticket(0))
        with pytest.raises(EngineError, match=r"lm_head\.weight still computes with old ones"):
            engine.checksums()
    finally:
        engine.close()


def test_tensors_of_vllms_that_nobody_publishes_are_another_model(wide):
    engine = start(wide)
    try:
        engine.load(Published(wide.model).ticket(0))
        for name in [name for name in engine._shapes if name.startswith(LAYER)]:
            del engine._shapes[name]
        with pytest.raises(EngineError, match=r"has 8 tensors for which nothing was published .*layers\.1.*model.path"):
            engine.checksums()
    finally:
        engine.close()
