"""A tensor that stays old after a publish, of every kind, planted in engines whose tensors can be read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_here import LearnerHere

from dapo.algorithms.objective import Objective
from dapo.config import schema
from dapo.engines import fused, received_weights
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.generate import GenerateEngine
from dapo.errors import EngineError
from dapo.loop.sampling.rollouts import Rollouts
from dapo.loop.sampling.texts import Texts, Thinking
from dapo.loop.sync_check import SyncCheck
from dapo.types.batch import Prompt, SamplingParams

KINDS = [
    "embed_tokens", "layers.1.self_attn.q_proj", "layers.0.self_attn.k_proj", "layers.1.self_attn.v_proj",
    "layers.0.self_attn.o_proj", "layers.1.mlp.down_proj", "layers.0.mlp.gate_proj", "layers.1.mlp.up_proj",
    "layers.0.input_layernorm", "layers.1.post_attention_layernorm", "layers.1.self_attn.k_norm", "model.norm",
    "lm_head",
]  # fmt: skip
PROMPTS = [Prompt(str(n), "p", np.array([2 + n, 3, 4]), "p", "", "s") for n in range(4)]


def learner_of(loaded) -> LearnerHere:
    return LearnerHere(loaded, Objective(lambda inputs: (inputs.logprobs, {})), schema.LearnerSection(), 1.0)


def move(model, size=1e-3) -> None:
    """As an optimiser step would."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))


def check_of(engine, learner) -> SyncCheck:
    return SyncCheck(Rollouts(engine, None, lambda ids: [""] * len(ids)), learner, PROMPTS, SamplingParams(8), seed=1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("make", [EmbeddedEngine, GenerateEngine])
def test_one_old_tensor_is_named_at_its_first_publish(make, kind, fresh, monkeypatch):
    """By checksum: an update of one part in a thousand moves log-probabilities less than the eye sees."""
    learner = learner_of(fresh("qwen3", tie_word_embeddings=False))
    engine = make(fresh("qwen3", tie_word_embeddings=False), shares_weights=False)
    check = check_of(engine, learner)
    engine.load(learner.publish(0))
    assert check(0)["train/sync_tensors"] == len(learner.loaded.model.state_dict())
    old = {name: x.clone() for name, x in engine._loaded.model.state_dict().items() if kind in name}
    assert len(old) == 1
    copy = received_weights.copy_weights

    def forgetful(model, tensors):
        copy(model, tensors)
        model.load_state_dict(old, strict=False)

    monkeypatch.setattr(received_weights, "copy_weights", forgetful)
    move(learner.loaded.model)
    engine.load(learner.publish(1))
    with pytest.raises(EngineError, match=f"after step 1 failed: 1 of .* tensors .*{kind}"):
        check(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_coarser_engine_holds_the_learners_weights_rounded(dtype, fresh):
    learner = learner_of(fresh("llama"))
    engine = EmbeddedEngine(fresh("llama", dtype=dtype), shares_weights=False)
    move(learner.loaded.model)
    engine.load(learner.publish(1))
    found = check_of(engine, learner)(1)
    assert found["train/sync_tensors"] > 10
    assert 0.0 < found["train/sync_gap"] < (1e-5 if dtype is torch.float32 else 0.05)
    with torch.no_grad():
        engine._loaded.model.model.norm.weight.mul_(1.02)
    with pytest.raises(EngineError, match=r"1 of .*model\.norm"):
        check_of(engine, learner)(1)


def copies(value):
    """As ``refresh`` would leave it if it did not touch it."""
    if isinstance(value, list):
        return [copies(part) for part in value]
    return value.clone() if isinstance(value, torch.Tensor) else value


DERIVED = ["qkv", "gates", "qkv_bias", "gates_bias", "head_norms"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("forgotten", [*DERIVED, "everything"])
def test_a_derived_matrix_that_is_not_made_again_is_named(forgotten, architecture, dtype, fresh, monkeypatch):
    options = {"attention_bias": True, "mlp_bias": True} if architecture == "llama" else {}
    loaded = fresh(architecture, dtype=dtype, **options)
    learner, engine = learner_of(loaded), EmbeddedEngine(loaded)
    assert engine.decoder.name == "fused"
    check = check_of(engine, learner)
    refresh, layer = fused._Layer.refresh, engine.decoder._layers[1]
    if forgotten != "everything" and not any(name.startswith(forgotten) for name in layer.tensors()):
        pytest.skip("this architecture has none")

    def forgetful(self):
        if self is not layer:
            refresh(self)
        elif forgotten != "everything":
            old = {name: copies(value) for name, value in vars(self).items() if name.startswith(forgotten)}
            refresh(self)
            for name, value in old.items():
                setattr(self, name, value)

    engine.load(learner.publish(1))
    assert check(1) == {}
    monkeypatch.setattr(fused._Layer, "refresh", forgetful)
    move(loaded.model, 0.02)
    engine.load(learner.publish(2))
    with pytest.raises(EngineError, match=rf"layers\.1\.{'qkv' if forgotten == 'everything' else forgotten}"):
        check(2)


def test_weights_that_are_not_finite_are_not_called_old(fresh):
    loaded = fresh("llama")
    learner, engine = learner_of(loaded), EmbeddedEngine(loaded)
    with torch.no_grad():
        loaded.model.model.layers[0].self_attn.q_proj.weight.fill_(float("nan"))
    engine.load(learner.publish(1))
    assert check_of(engine, learner)(1) == {}


def test_tokens_that_end_a_thinking_budget_are_not_compared(fresh):
    """No engine drew them: they have a log-probability of 0, and the learner's is many nats away."""
    thinking = Thinking(
        "<think>",
        "</think>",
        begun=lambda ids: True,
        first=lambda ids, strings: None,
        budget=2,
        forced=np.array([1, 2]),
    )
    learner = learner_of(fresh("qwen3"))
    engine = EmbeddedEngine(fresh("qwen3"), shares_weights=False)
    texts = Texts(lambda rows: ["a thought"] * len(rows), thinking=thinking)
    check = SyncCheck(Rollouts(engine, None, texts), learner, PROMPTS, SamplingParams(8), seed=1)
    engine.load(learner.publish(0))
    assert check(0)["train/sync_gap_max"] < 1e-4
