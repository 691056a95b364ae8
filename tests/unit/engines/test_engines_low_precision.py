"""bfloat16 decoding of a model whose scores are large, and probes that tell rounding from a mistake."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dapo.engines import cache, decoders, pools
from dapo.engines.cache import SlotCache
from dapo.engines.fused import FusedDecoder
from dapo.engines.generic import GenericDecoder
from dapo.engines.pools import CacheShape, Prefilled
from dapo.models import agreement, precision
from dapo.models.probe import probe


def with_offsets(loaded, size: float):
    """Constant parts of queries and keys, as Qwen2's biases are: scores are large, and equal but for a little."""
    with torch.no_grad():
        for layer in loaded.model.model.layers:
            layer.self_attn.k_proj.bias.fill_(size)
            layer.self_attn.q_proj.bias.fill_(size / 4)
    return loaded


def deep(fresh, spread: float, size: float):
    settings = {"hidden_size": 64, "num_hidden_layers": 12, "head_dim": 16, "initializer_range": spread}
    return with_offsets(fresh("qwen2", dtype=torch.bfloat16, **settings), size)


@pytest.fixture
def offset(fresh):
    return deep(fresh, 0.2, 24.0)


@pytest.mark.parametrize("kind", [FusedDecoder, GenericDecoder])
def test_large_scores_are_no_reason_to_refuse_a_bfloat16_model(offset, kind):
    assert decoders.difference(offset, kind(offset)) is None


@pytest.mark.parametrize("kind", [FusedDecoder, GenericDecoder])
def test_scores_rounded_to_bfloat16_are_one(offset, kind, monkeypatch):
    def rounded(query, keys, values, *, attn_mask, scale):
        scores = (query @ keys.transpose(2, 3)).float() + attn_mask
        return scores.softmax(-1).to(values.dtype) @ values

    monkeypatch.setattr(cache, "F", SimpleNamespace(scaled_dot_product_attention=rounded))
    assert "differ" in decoders.difference(offset, kind(offset))


def test_a_model_that_rounds_a_lot_is_no_reason_either(fresh, monkeypatch):
    """Its own forward pass is off by 0.057 nats in the mean, which the fixed tolerance does not allow."""
    loaded = deep(fresh, 0.17, 12.0)
    decoder = FusedDecoder(loaded)
    assert decoders.difference(loaded, decoder) is None
    monkeypatch.setattr(decoders, "float32_outputs", lambda *args, **kwargs: None)
    assert "differ" in decoders.difference(loaded, decoder)


def test_a_wrong_mask_is_refused_however_much_the_model_rounds(offset, monkeypatch):
    write = pools.Pool.write_lengths

    def one_more(self, slots, lengths):
        write(self, slots, (lengths - 1).clamp(min=1))

    monkeypatch.setattr(pools.Pool, "write_lengths", one_more)
    assert "differ" in decoders.difference(offset, FusedDecoder(offset))


def test_scores_are_exact_where_bfloat16_would_move_them_by_halves():
    """Scores near 100: bfloat16 knows 99.5 and 100, so weights would be off by a factor of up to 1.28."""
    shape = CacheShape(layers=1, kv_heads=2, head_dim=64, dtype=torch.bfloat16, device=torch.device("cpu"))
    random = torch.Generator().manual_seed(0)
    kv = torch.randn(1, 2, 3, 2, 20, 64, generator=random).bfloat16()
    kv[:, 0] += 12.5
    slots = SlotCache(shape, seats=3)
    slots.insert(np.arange(3), np.array([20, 7, 13]), Prefilled(kv, torch.empty(0)), np.arange(3))
    batch = slots.layout()
    query = (torch.randn(3, 4, 64, generator=random) * 0.1 + 0.125).bfloat16()
    new = torch.randn(3, 4, 64, generator=random).bfloat16()
    out = batch.attend(0, query, new).view(3, 4, 64)
    for row, length in enumerate([20, 7, 13]):
        keys, values = (
            torch.cat([kv[0, i, row, :, :length], new[row, 2 * i : 2 * i + 2, None]], 1).double() for i in (0, 1)
        )
        scores = query[row].double().view(2, 2, 64) @ keys.transpose(1, 2)
        assert scores.abs().max() > 80
        right = (scores.softmax(-1) @ values).view(4, 64)
        assert (out[row].double() - right).norm() / right.norm() < 0.01  # 0.1 and more with rounded scores


def _seen_precision(monkeypatch, module, name) -> list[str]:
    seen, real = [], getattr(module, name)

    def spy(*args, **kwargs):
        seen.append(torch.get_float32_matmul_precision())
        return real(*args, **kwargs)

    monkeypatch.setattr(module, name, spy)
    return seen


@pytest.mark.parametrize("asked", ["highest", "high", "medium"])
def test_probes_compare_exact_products_and_leave_the_setting(model, monkeypatch, asked):
    """On CUDA `high` and `medium` are TF32, which differs by 0.002 to 0.004 nats from one order of sums to another."""
    loaded, before = model("llama"), torch.get_float32_matmul_precision()
    decoding = _seen_precision(monkeypatch, FusedDecoder, "decode")
    learning = _seen_precision(monkeypatch, loaded.model, "forward")
    try:
        torch.set_float32_matmul_precision(asked)
        assert decoders.difference(loaded, FusedDecoder(loaded)) is None
        assert probe(loaded) is None
        assert torch.get_float32_matmul_precision() == asked
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(decoding) == set(learning) == {"highest"}


def test_the_setting_is_restored_when_a_probe_fails():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        with pytest.raises(ZeroDivisionError), precision.exact_matmuls():
            raise ZeroDivisionError
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.parametrize(
    ("ours", "own", "fine"),
    [
        (0.04, 0.0, True),  # within the fixed tolerance: nothing is measured
        (0.09, 0.06, True),  # beyond it, and no worse than the model's own rounding
        (0.13, 0.06, False),
        (0.3, 0.25, False),  # a model that rounds so much says nothing
    ],
)
def test_what_a_low_precision_candidate_may_be_off(fresh, ours, own, fine):
    loaded, exact = fresh(dtype=torch.bfloat16), torch.zeros(100)
    asked = []
    found, expected = exact + ours, exact - own
    if ours < 0.05:
        expected = exact
    off = agreement.disagreement(loaded, found, expected, (1e-4, 1e-2), lambda: asked.append(1) or exact)
    assert (off is None) is fine
    assert len(asked) == (ours > 0.05 and ours + own <= 0.4)


def test_float32_outputs_are_those_of_the_widened_model_and_leave_it_alone(fresh):
    loaded = fresh("qwen2", dtype=torch.bfloat16)
    ids = torch.arange(2, 12)[None]
    wide = fresh("qwen2", dtype=torch.bfloat16).model.float()
    found = agreement.float32_outputs(loaded, input_ids=ids, use_cache=False).logits
    assert found.dtype == torch.float32
    assert torch.equal(found, wide(input_ids=ids, use_cache=False).logits)
    assert {p.dtype for p in loaded.model.parameters()} == {torch.bfloat16}


def test_without_memory_for_it_the_fixed_tolerance_decides(fresh, monkeypatch):
    def none_left(*args, **kwargs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    loaded = fresh(dtype=torch.bfloat16)
    monkeypatch.setattr(torch.func, "functional_call", none_left)
    assert agreement.float32_outputs(loaded, input_ids=torch.ones(1, 2, dtype=torch.int64)) is None
    off = agreement.disagreement(loaded, torch.ones(3), torch.zeros(3), (1, 1), lambda: None)
    assert off == (1.0, 1.0)


@pytest.mark.parametrize(("architecture", "turned"), [("qwen2", 1), ("llama", 1), ("qwen3", 2)])
def test_queries_and_keys_are_turned_together(fresh, architecture, turned):
    """A kernel less is a launch less in every layer of every step; norms of each head (Qwen3) come in between."""
    loaded = fresh(architecture, dtype=torch.bfloat16, num_hidden_layers=3)
    decoder, seen = FusedDecoder(loaded), []

    class Listen(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            if function is torch.ops.aten.mul.Tensor and made.is_complex():
                seen.append(made.shape)
            return made

    with torch.no_grad(), Listen():
        decoder.prefill(torch.arange(3, 9)[None], [6])
    assert len(seen) == 3 * turned
