"""An adapter that vLLM applies itself: what it computes is the learner's, and a bfloat16 merge would not be."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from learner_here import LearnerHere
from vllm_parts import drain, request, start, true_logprobs

from dapo.algorithms.objective import clip_objective
from dapo.config.schema import LearnerSection, Lora
from dapo.errors import EngineError
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model

pytest.importorskip("peft", reason="adapters need PEFT (extra lora)")
pytestmark = pytest.mark.vllm

OBJECTIVE = clip_objective(low=0.2, high=0.28)
PROMPT = np.arange(4, 4 + 2 * 32 + 7)  # two whole blocks of the prefix cache


def adapted(folder, architecture, dtype="float32", **lora):
    """A model with an adapter, and a learner that sends the adapter by itself."""
    path = make_tiny_model(folder, architecture, hidden=128, heads=4, kv_heads=2, dtype=getattr(torch, dtype))
    loaded = load_model(str(path), device="cpu", dtype=dtype, lora=Lora(rank=4, **lora))
    loaded.sends_adapter = True
    return loaded, LearnerHere(loaded, OBJECTIVE, LearnerSection(), 1.0)


def moved(loaded, seed, scale):
    """Another adapter: noise of this size on each A and B."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_" in name:
                parameter.copy_(scale * torch.randn(parameter.shape, generator=draw))


def sampled(engine, version):
    engine.submit([request((version, i), PROMPT, seed=i) for i in range(4)])
    events = drain(engine)
    assert all((event.versions == version).all() for event in events.values())
    return events.values()


def compare(engine, learner):
    found = engine.checksums()
    assert learner.checksums({name: one.dtype for name, one in found.items()}) == {n: s.value for n, s in found.items()}
    return found


@pytest.mark.parametrize(
    ("architecture", "lora"),
    [
        ("llama", {"lora_alpha": 12}),
        ("qwen3", {"target_modules": ["q_proj", "v_proj", "down_proj"], "use_rslora": True}),
    ],
)
def test_what_vllm_computes_is_what_the_learner_computes(tmp_path, architecture, lora):
    """Also after another version, whose keys and values are computed anew, and after the frozen model alone."""
    loaded, learner = adapted(tmp_path, architecture, **lora)
    engine = start(loaded, adapter_rank=4)
    try:
        seen = []
        for version, scale in enumerate((0.1, 0.2, 0.0)):
            moved(loaded, version, scale)
            ticket = learner.publish(version)
            assert all(".lora_" in name for name in ticket.names)  # nothing that is frozen travels
            engine.load(ticket)
            for event in sampled(engine, version):
                np.testing.assert_allclose(
                    event.logprobs, true_logprobs(loaded, PROMPT, event.token_ids, 0.7), atol=5e-5
                )
            seen.append(next(iter(sampled(engine, version))).logprobs[0])
            found = compare(engine, learner)
            assert set(ticket.names) < set(found)
        assert len({round(float(one), 3) for one in seen}) == 3  # versions differ by more than the tolerance
        assert engine._engine.list_loras() == {1}
    finally:
        engine.close()


def test_an_adapter_of_another_version_is_seen_by_its_checksums(tmp_path):
    loaded, learner = adapted(tmp_path, "llama")
    engine = start(loaded, adapter_rank=4)
    try:
        moved(loaded, 0, 0.1)
        engine.load(learner.publish(0))
        before = compare(engine, learner)
        moved(loaded, 1, 0.1)
        ours = learner.checksums({name: one.dtype for name, one in before.items()})
        assert {name for name, one in before.items() if ours[name] != one.value} == set(learner.publish(1).names)
        loaded.sends_adapter = False
        merging = LearnerHere(loaded, OBJECTIVE, LearnerSection(), 1.0)
        with pytest.raises(EngineError, match="applies an adapter, and whole weights were published"):
            engine.load(merging.publish(2))
    finally:
        engine.close()


def test_live_responses_go_on_with_the_new_adapter(tmp_path):
    loaded, learner = adapted(tmp_path, "llama")
    engine = start(loaded, adapter_rank=4)
    try:
        moved(loaded, 0, 0.1)
        engine.load(learner.publish(0))
        engine.submit([request((0, 0), PROMPT, max_tokens=60, stop_token_ids=())])
        engine.submit([request((1, 0), PROMPT, max_tokens=10, stop_token_ids=())])
        assert [e.key for e in engine.poll()] == [(1, 0)]
        moved(loaded, 1, 0.2)
        engine.load(learner.publish(1), in_flight="keep")
        (event,) = drain(engine).values()
        new = event.versions == 1
        assert 40 < new.sum() < 55
        truth = true_logprobs(loaded, PROMPT, event.token_ids, 0.7)
        np.testing.assert_allclose(event.logprobs[new], truth[new], atol=5e-5)
        assert np.abs(event.logprobs[~new] - truth[~new]).max() > 1e-3
    finally:
        engine.close()


def test_in_bfloat16_vllm_applies_the_very_numbers_of_the_learner(tmp_path):
    loaded, learner = adapted(tmp_path, "llama", "bfloat16")
    moved(loaded, 0, 0.0)
    engine = start(loaded, adapter_rank=4)
    try:
        engine.load(learner.publish(0))
        moved(loaded, 1, 0.1)
        engine.load(learner.publish(1))
        assert compare(engine, learner)
        for event in sampled(engine, 1):
            gap = np.abs(event.logprobs - true_logprobs(loaded, PROMPT, event.token_ids, 0.7))
            assert gap.mean() < 0.02
    finally:
        engine.close()
