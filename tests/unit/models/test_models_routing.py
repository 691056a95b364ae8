"""Routers of a mixture of experts: followed without a trace, made to repeat a choice, and judged by it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from expert_models import save_experts, token_rows

from dapo.errors import ModelError
from dapo.models import packed_attention, probe
from dapo.models.load import load_model
from dapo.models.packing import pack, pad
from dapo.models.policy import Policy
from dapo.models.routing import cut_out, lay_out, places_of
from dapo.models.tiny import make_tiny_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_experts(tmp_path_factory.mktemp("experts") / "model")


def computed(loaded, wanted=None, *, follow=True):
    """Log-probabilities, gradients and the pass."""
    rows, made = token_rows(), None
    batch = pack(rows, loaded.device) if loaded.packed else pad(rows, loaded.device, 0)
    loaded.model.zero_grad()
    if follow:
        with loaded.routing.following(wanted) as made:
            logprobs, _ = Policy(loaded)(batch, 1.0, "none")
            logprobs.sum().backward()
    else:
        logprobs, _ = Policy(loaded)(batch, 1.0, "none")
        logprobs.sum().backward()
    gradients = {name: p.grad.clone() for name, p in loaded.model.named_parameters() if p.grad is not None}
    return logprobs.detach(), gradients, made


@pytest.mark.parametrize(("architecture", "checkpointing"), [
    ("qwen3_moe", "none"), ("qwen3_moe", "full"), ("qwen3_moe", "selective"),
    ("mixtral", "none"), ("olmoe", "none"), ("glm4_moe", "full"), ("deepseek_v3", "none"),
    ("gpt_oss", "none"), ("qwen3_next", "none"),
])  # fmt: skip
def test_repeating_its_own_choices_changes_no_bit(architecture, checkpointing, tmp_path):
    save_experts(tmp_path, architecture)
    loaded = load_model(tmp_path, device="cpu", activation_checkpointing=checkpointing)
    plain, gradients, _ = computed(loaded, follow=False)
    followed, _, made = computed(loaded)
    repeated, again, second = computed(loaded, made.routes())
    assert torch.equal(plain, followed)
    assert torch.equal(plain, repeated)
    assert not second.changed().any()
    for name, gradient in gradients.items():
        assert torch.equal(gradient, again[name]), name
    routers = [name for name in gradients if name.endswith((".gate.weight", ".router.weight"))]
    assert len(routers) == loaded.routing.count
    assert all(gradients[name].abs().sum() > 0 for name in routers)


@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
def test_a_router_chooses_what_it_is_given_and_freely_elsewhere(checkpointing, folder):
    loaded = load_model(folder, device="cpu", activation_checkpointing=checkpointing)
    _, _, free = computed(loaded)
    wanted = free.routes()
    swapped = wanted[::2, 0] % loaded.routing.experts + 1  # of every second token the first router's, each by the next
    wanted[::2, 0] = swapped
    wanted[1::2] = 0
    _, _, made = computed(loaded, wanted)
    routes = made.routes()
    assert torch.equal(routes[::2], wanted[::2])
    assert torch.equal(routes[1::2, 0], free.routes()[1::2, 0])  # before any change can have reached them
    assert made.changed()[::2, 0].all()
    assert not made.changed()[1::2].any()


def test_the_backward_pass_chooses_as_the_forward_pass_did(folder):
    """Routers change in between, so that a free choice would be another one: the experts that got a gradient tell."""
    loaded = load_model(folder, device="cpu", activation_checkpointing="full")
    with loaded.routing.following() as made:
        logprobs, _ = Policy(loaded)(pack(token_rows(1, (2,), 1), loaded.device), 1.0, "none")
        with torch.no_grad():
            for layer in loaded.model.model.layers:
                layer.mlp.gate.weight.neg_()
        logprobs.sum().backward()
    for number, layer in enumerate(loaded.model.model.layers):
        moved = layer.mlp.experts.down_proj.grad.abs().sum((1, 2)).nonzero().flatten() + 1
        assert moved.tolist() == sorted(set(made.routes()[:, number].flatten().tolist()))


def test_a_router_that_does_not_choose_once_is_refused(folder, monkeypatch):
    loaded = load_model(folder, device="cpu")
    _, _, made = computed(loaded)
    monkeypatch.setattr(torch, "topk", lambda *args, **options: torch.sort(args[0], descending=True))
    with pytest.raises(ModelError, match=r"chose 0 times .*router_replay=off"):
        computed(loaded, made.routes())


@pytest.mark.parametrize("packed", [True, False])
def test_a_row_is_found_in_its_batch(packed):
    rows, device = token_rows(), torch.device("cpu")
    batch = pack(rows, device) if packed else pad(rows, device, 0)
    flat = batch.input_ids.flatten().numpy()
    for row, places in zip(batch.rows, places_of(batch), strict=True):
        np.testing.assert_array_equal(flat[places], np.concatenate([row.prompt_ids, row.token_ids])[:-1])


def test_rows_lay_out_what_they_know():
    """Two rows share a prompt of two tokens; the first knows nothing of it, and neither knows the padding."""
    rows = token_rows(groups=1, lengths=(2, 3), prompt=2)
    batch = pack(rows, torch.device("cpu"))
    first = np.array([[[0]], [[0]], [[7]]], np.uint8)
    second = np.array([[[1]], [[2]], [[3]], [[4]]], np.uint8)
    found = lay_out(batch, [first, second], np.zeros((5, 1, 1), np.uint8))
    assert found.ravel().tolist() == [1, 2, 7, 3, 4]
    assert cut_out(found, slice(4, 6)).ravel().tolist() == [4, 0]


def test_a_dense_model_has_no_routers(tmp_path):
    assert load_model(make_tiny_model(tmp_path), device="cpu").routing is None


@pytest.mark.parametrize(("architecture", "seed"), [("qwen3_moe", 3), ("mixtral", 3), ("qwen3_moe", 1)])
def test_near_ties_of_low_precision_do_not_refuse_packed_rows(architecture, seed, tmp_path):
    """Free choices of the first one differ by 0.13 nats in the mean, which would be refused."""
    save_experts(tmp_path, architecture, seed=seed)
    assert load_model(tmp_path, device="cpu", dtype="bfloat16", attention_mode="packed").packed


def test_wrong_attention_of_experts_is_seen_in_low_precision(folder, monkeypatch):
    """Responses that do not see the first two tokens of their prompt."""
    right = packed_attention.PackedContext.__init__

    def wrong(self, segments, device):
        cut = [s if s.prompt is None else replace(s, prompt=(s.prompt[0] + 2, s.prompt[1])) for s in segments]
        right(self, cut, device)

    monkeypatch.setattr(packed_attention.PackedContext, "__init__", wrong)
    with pytest.raises(ModelError, match=r"packed rows that differ|sends tokens to other experts"):
        load_model(folder, device="cpu", dtype="bfloat16", attention_mode="packed")


def test_choices_that_would_be_others_are_counted(folder, monkeypatch):
    """With a bound below the near-ties of this model it is refused in words."""
    from dapo.models import agreement

    save = load_model(folder, device="cpu", dtype="bfloat16")
    monkeypatch.setattr(agreement, "MOST_OTHERWISE", -1.0)
    said = probe.probe(save)
    assert said.startswith("sends tokens to other experts in ")
    assert said.endswith("% of the choices (at most -100%)")


def test_experts_are_computed_together_where_activations_are_recomputed(folder, monkeypatch):
    from transformers import PreTrainedModel

    right = PreTrainedModel.get_correct_experts_implementation
    monkeypatch.setattr(
        PreTrainedModel,
        "get_correct_experts_implementation",
        lambda model, requested: right(model, requested or "eager"),
    )
    found = {
        kind: load_model(folder, device="cpu", activation_checkpointing=kind).model.config._experts_implementation
        for kind in ("none", "full", "selective")
    }
    assert found == {"none": "eager", "full": "grouped_mm", "selective": "grouped_mm"}
