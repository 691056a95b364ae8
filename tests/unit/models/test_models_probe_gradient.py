"""Is the gradient through packed rows the model's own? Asked at loading where torch's kernels compute it."""

from __future__ import annotations

import pytest
import torch

from dapo.models import packed_attention, probe
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model
from tests.helpers.expert_models import save_experts


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("probed") / "model", "qwen2", kv_heads=1)


def rows_of(loaded):
    return probe._probe_rows(loaded.model.get_input_embeddings().weight.shape[0], 0)


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("bfloat16", 0.1)])
def test_the_gradient_is_the_models_own_up_to_rounding(dtype, most, folder):
    loaded = load_model(folder, dtype=dtype, device="cpu", attention_mode="packed")
    attention = loaded.model.config._attn_implementation
    assert 1e-9 < probe.gradient_difference(loaded, rows_of(loaded)) < most
    assert loaded.model.config._attn_implementation == attention
    assert all(parameter.grad is None for parameter in loaded.model.parameters())


def planted(monkeypatch, backward):
    monkeypatch.setattr(packed_attention._SharedPromptAttention, "backward", staticmethod(backward))


@pytest.mark.parametrize("bug", ["prompts get none", "not a number"])
def test_a_wrong_backward_pass_is_seen(bug, folder, monkeypatch):
    right = packed_attention._SharedPromptAttention.backward

    def wrong(ctx, grad):
        q, k, v, *rest = right(ctx, grad)
        if bug == "not a number":
            return q, k, v * torch.nan, *rest
        for prompt, _ in ctx.context.prompts:
            k[prompt] = v[prompt] = 0.0
        return q, k, v, *rest

    planted(monkeypatch, wrong)
    loaded = load_model(folder, dtype="float32", device="cpu", attention_mode="packed")
    assert probe._wrong_gradient(loaded, rows_of(loaded), 0).startswith("gives a gradient on packed rows that differs")


def test_a_kernel_without_a_backward_pass_is_told_and_auto_pads(folder, monkeypatch):
    def none(ctx, grad):
        raise NotImplementedError("derivative for this kernel")

    planted(monkeypatch, none)
    monkeypatch.setattr(probe, "_ASKED_OF", {"cpu"})
    loaded = load_model(folder, dtype="float32", device="cpu", attention_mode="auto")
    assert not loaded.packed
    assert any("no gradient on packed rows (NotImplementedError: derivative" in note for note in loaded.notes)
    assert all(parameter.grad is None for parameter in loaded.model.parameters())


@pytest.mark.whole
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
def test_recomputed_layers_repeat_the_choices_of_experts(checkpointing, tmp_path, monkeypatch):
    """In bfloat16, where routers follow those of the reference."""
    monkeypatch.setattr(probe, "_ASKED_OF", {"cpu"})
    folder = save_experts(tmp_path / "model")
    loaded = load_model(folder, dtype="bfloat16", device="cpu", activation_checkpointing=checkpointing)
    assert loaded.packed, loaded.notes
    assert 1e-9 < probe.gradient_difference(loaded, rows_of(loaded)) < 0.2
