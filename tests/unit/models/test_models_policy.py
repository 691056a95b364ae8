"""Policy against the model's own logits, values and gradients, on packed and padded rows."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from quick import quick

from dapo.models import attention, policy
from dapo.models.load import load_model
from dapo.models.packing import pack, pad
from dapo.models.policy import Policy
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import TokenRow

# architecture, its configuration, and why it is here
CASES = [
    ("llama", {}),
    ("llama", {"kv_heads": 2, "tied": False}),  # grouped-query attention, own output head
    ("qwen2", {"kv_heads": 1}),  # biases in attention
    ("qwen3", {"kv_heads": 2}),  # norms on queries and keys
    ("mistral", {"kv_heads": 2, "sliding_window": 6}),  # windows shorter than the sequences
    ("gemma2", {"sliding_window": 6}),  # attention soft cap, final soft cap, alternating windows
    ("granite", {"logits_scaling": 4.0}),
    ("cohere", {"logit_scale": 0.25}),
    ("gpt2", {}),  # learned positions
]


def make_rows(seed: int = 0) -> list[TokenRow]:
    """Interleaved groups, a one-token response, and a group whose prompt equals another's."""
    random = np.random.default_rng(seed)
    prompts = [random.integers(3, 78, 5), random.integers(3, 78, 9)]
    rows = []
    for group, prompt, length in [(0, 0, 7), (1, 1, 4), (0, 0, 1), (2, 0, 3), (1, 1, 12), (0, 0, 2)]:
        rows.append(TokenRow(group, prompts[prompt], random.integers(3, 78, length)))
    return rows


def naive_logprobs(model: torch.nn.Module, row: TokenRow, temperature: float) -> torch.Tensor:
    """One unpadded row through the unmodified model."""
    ids = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]))[None]
    logits = model(input_ids=ids, use_cache=False).logits[0]
    logprobs = torch.log_softmax(logits / temperature, -1)
    first = len(row.prompt_ids)
    return torch.stack([logprobs[first - 1 + t, token] for t, token in enumerate(row.token_ids)])


def gradients(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize(("architecture", "config"), quick(CASES, CASES[::2]))
def test_log_probabilities_and_gradients_equal_the_models_own(tmp_path, architecture, config, packed):
    # transformers' eager attention gives nan on float64 padding rows; Gemma 2 has no other
    double = packed or architecture != "gemma2"
    folder = make_tiny_model(tmp_path, architecture, **config)
    dtype = torch.float64 if double else torch.float32
    loaded = load_model(folder, dtype=dtype, attention_mode="packed" if packed else "padded")
    tolerance = 4e-6 if double else 1e-4  # norms compute in float32 whatever the model is
    rows, weights = make_rows(), np.random.default_rng(1)

    with attention.own_attention(loaded.model):
        expected = [naive_logprobs(loaded.model, row, 0.7) for row in rows]
        factors = [torch.from_numpy(weights.normal(size=len(e))).to(dtype) for e in expected]
        sum((f * e).sum() for f, e in zip(factors, expected, strict=True)).backward()
        expected_gradients = gradients(loaded.model)

    batch = pack(rows, loaded.device) if packed else pad(rows, loaded.device, loaded.pad_token_id)
    found, _ = Policy(loaded)(batch, 0.7)
    (torch.cat([factors[i] for i in batch.order]) * found).sum().backward()
    torch.testing.assert_close(found, torch.cat([expected[i] for i in batch.order]), rtol=tolerance, atol=tolerance)
    found_gradients = gradients(loaded.model)
    assert found_gradients.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        torch.testing.assert_close(found_gradients[name], gradient, rtol=10 * tolerance, atol=tolerance, msg=name)


def test_float32_agrees_closely(tmp_path):
    loaded = load_model(make_tiny_model(tmp_path, kv_heads=2), attention_mode="packed")
    rows = make_rows()
    batch = pack(rows, loaded.device)
    found, _ = Policy(loaded)(batch, 1.0)
    with attention.own_attention(loaded.model):
        expected = torch.cat([naive_logprobs(loaded.model, rows[i], 1.0) for i in batch.order])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_chunks_change_nothing(tmp_path, monkeypatch):
    loaded = load_model(make_tiny_model(tmp_path), dtype=torch.float64)
    batch = pack(make_rows(), loaded.device)
    whole, whole_entropy = Policy(loaded)(batch, 0.8)
    whole.square().sum().backward()
    expected = gradients(loaded.model)
    monkeypatch.setattr(policy, "MAX_LOGITS", 80 * 4)
    monkeypatch.setattr(policy, "MIN_CHUNK", 1)
    calls = []
    monkeypatch.setattr(
        policy, "checkpoint", lambda f, *a, **k: calls.append(1) or torch.utils.checkpoint.checkpoint(f, *a, **k)
    )
    chunked, entropy = Policy(loaded)(batch, 0.8)
    chunked.square().sum().backward()
    assert len(calls) == -(-len(batch.targets) // 4)
    torch.testing.assert_close(chunked, whole, rtol=0, atol=1e-12)
    torch.testing.assert_close(entropy, whole_entropy, rtol=0, atol=1e-12)
    for name, gradient in gradients(loaded.model).items():
        torch.testing.assert_close(gradient, expected[name], rtol=0, atol=1e-10, msg=name)


def test_entropy_is_that_of_the_tempered_distribution_and_carries_no_gradient(tmp_path):
    loaded = load_model(make_tiny_model(tmp_path), dtype=torch.float64)
    row = make_rows()[:1]
    _, entropy = Policy(loaded)(pack(row, loaded.device), 0.5)
    with attention.own_attention(loaded.model):
        ids = torch.from_numpy(np.concatenate([row[0].prompt_ids, row[0].token_ids]))[None]
        logits = loaded.model(input_ids=ids).logits[0, len(row[0].prompt_ids) - 1 : -1]
    expected = torch.distributions.Categorical(logits=logits / 0.5).entropy()
    torch.testing.assert_close(entropy, expected, rtol=0, atol=1e-6)
    assert not entropy.requires_grad


def test_fp32_head_computes_logits_of_a_bfloat16_model_in_float32(tmp_path):
    folder = make_tiny_model(tmp_path, tied=False)
    plain, fp32 = (load_model(folder, dtype=torch.bfloat16, fp32_head=flag) for flag in (False, True))
    hidden = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = hidden.float() @ fp32.model.lm_head.weight.float().T
    assert torch.equal(fp32.head(hidden), expected)
    assert plain.head(hidden).dtype == torch.bfloat16


def test_activation_checkpointing_gives_the_same_gradient(tmp_path):
    """Of parameters under their own names: what is recomputed is not wrapped."""
    folder = make_tiny_model(tmp_path)
    found = []
    for kind in ("none", "full", "selective"):
        loaded = load_model(folder, dtype=torch.float64, activation_checkpointing=kind)
        assert loaded.model.training is (kind != "none")
        Policy(loaded)(pack(make_rows(), loaded.device), 1.0)[0].sum().backward()
        found.append(gradients(loaded.model))
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        for name, gradient in found[0].items():
            torch.testing.assert_close(other[name], gradient, rtol=0, atol=1e-10, msg=name)


def test_selective_checkpointing_keeps_matrix_products_and_attention(tmp_path):
    """They run once with it, and twice where everything is recomputed."""
    from torch.utils._python_dispatch import TorchDispatchMode

    folder = make_tiny_model(tmp_path)
    counts = {}
    for kind in ("none", "full", "selective"):
        loaded = load_model(folder, activation_checkpointing=kind, attention_mode="packed")
        seen = Counter()

        class Count(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, args=(), kwargs=None, seen=seen):
                seen[str(function)] += 1
                return function(*args, **(kwargs or {}))

        with Count():
            Policy(loaded)(pack(make_rows(), loaded.device), 1.0)[0].sum().backward()
        counts[kind] = seen
    products, cheap = "aten.mm.default", "aten.silu.default"
    assert counts["selective"][products] == counts["none"][products] < counts["full"][products]
    assert counts["none"][cheap] < counts["selective"][cheap] == counts["full"][cheap]


@pytest.mark.gpu
@pytest.mark.parametrize("config", [{}, {"kv_heads": 2}, {"architecture": "mistral", "sliding_window": 6}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_cuda_agrees_with_the_models_own_attention(tmp_path, dtype, config):
    folder = make_tiny_model(tmp_path, **config)
    loaded = load_model(folder, dtype=dtype, device="cuda", attention_mode="packed")
    Policy(loaded)(pack(make_rows(), loaded.device), 1.0)[0].sum().backward()
    found = gradients(loaded.model)
    padded = load_model(folder, dtype=torch.float64, device="cpu", attention_mode="padded")
    Policy(padded)(pad(make_rows(), padded.device, 0), 1.0)[0].sum().backward()
    for name, gradient in gradients(padded.model).items():
        error = (found[name].cpu().double() - gradient).norm() / gradient.norm()
        assert error < (0.05 if dtype == torch.bfloat16 else 1e-3), name
