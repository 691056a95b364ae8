"""``model.fp32_head`` reaches vLLM: without it, its bfloat16 logits round by more than the rest of the forward pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from vllm_parts import LONGEST, Published, drain, request

from dapo.config.schema import Vllm
from dapo.models.facts import facts_of
from dapo.models.load import load_model
from dapo.models.packing import pack
from dapo.models.policy import Policy
from dapo.models.tiny import make_tiny_model

pytestmark = pytest.mark.vllm

PROMPT = np.array([5, 9, 31, 7, 60])


def gap(loaded, *, fp32_head: bool) -> float:
    """Mean |difference| of the engine's log-probabilities to the learner's, which leaves its logits in float32."""
    from dapo.engines.vllm import VllmEngine
    from dapo.types.batch import TokenRow

    engine = VllmEngine(
        facts_of(loaded), cuda=False, longest=LONGEST, slots=32, settings=Vllm(kv_cache_mib=64), fp32_head=fp32_head
    )
    try:
        engine.load(Published(loaded.model).ticket(0))
        assert engine.checksums()
        engine.submit([request((0, i), PROMPT, seed=i, temperature=1.0) for i in range(24)])
        events = list(drain(engine).values())
    finally:
        engine.close()
    off = []
    for event in events:
        with torch.no_grad():
            logprobs, _ = Policy(loaded)(pack([TokenRow(0, PROMPT, event.token_ids)], loaded.device), 1.0, "none")
        off.append(np.abs(event.logprobs - logprobs.numpy()))
    return float(np.concatenate(off).mean())


def test_logits_of_a_bfloat16_model_are_as_precise_as_the_learners(tmp_path):
    """Layers that add nothing leave the head as the only place where both could round."""
    folder = make_tiny_model(tmp_path, "llama", heads=2, tied=False)
    loaded = load_model(folder, dtype=torch.bfloat16, device="cpu", fp32_head=True, attention_mode="packed")
    with torch.no_grad():
        loaded.model.lm_head.weight.mul_(30)  # logits of tens, where bfloat16 knows steps of 0.06 and 0.12
        for layer in loaded.model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    assert gap(loaded, fp32_head=True) < 1e-4
    assert gap(loaded, fp32_head=False) > 5e-3
