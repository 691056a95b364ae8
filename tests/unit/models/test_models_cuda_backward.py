"""The learner's passes as a card makes them, backward too, on tensors without memory that say they are on one.

torch's own operators see shapes and types, the variable-length kernel and its gradient among them, in the form that the
installed torch has. A tensor of CUDA without memory (``fake_cuda``) has no backward pass: autograd asks for the device.
One of the device ``meta`` has, and only Python looks at ``is_cuda``.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch
from quick import quick
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks.gpu.made import make_rows as benchmark_rows
from benchmarks.gpu.shapes import PUBLISHED, config_of
from benchmarks.gpu.speed_learner import layer_sizes
from dapo.algorithms.objective import clip_objective
from dapo.config.schema import LearnerSection
from dapo.learner import step
from dapo.learner.step import PolicyStep
from dapo.learner.step_metrics import TokenRecord
from dapo.models import attention, policy
from dapo.models.load import load_model
from dapo.models.loaded import LoadedModel
from dapo.models.memory import layer_bytes
from dapo.models.packing import pack
from dapo.models.policy import Policy
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import Row

NOWHERE = torch.device("meta")
WORDS, WIDTH = 80, 64
HALF_BILLION = PUBLISHED["0.5b"]


class Listen(TorchDispatchMode):
    """Counts operators, and by their shape tensors that are widened to float32."""

    def __init__(self):
        super().__init__()
        self.calls, self.widened = Counter(), Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        made = function(*args, **(kwargs or {}))
        self.calls[str(function)] += 1
        if str(function) == "aten._to_copy.default" and made.dtype == torch.float32 != args[0].dtype:
            self.widened[tuple(made.shape)] += 1
        return made


def make_rows():
    return [
        Row(
            group=group,
            sample=sample,
            prompt_ids=np.arange(3, 8 + group),
            token_ids=np.arange(3, 3 + count),
            loss_mask=np.ones(count, np.bool_),
            sampler_logprobs=np.full(count, -4.0, np.float32),
            versions=np.zeros(count, np.int32),
            loss_weight=0.05,
            advantage=1.0,
        )
        for group, sample, count in ((0, 0, 3), (0, 1, 7), (0, 2, 1), (1, 0, 9))
    ]


def learn_on_paper(folder, monkeypatch, *, chunk=2**27, dtype="bfloat16", architecture="qwen2", config=None, **options):
    """One micro-batch through a model on ``meta``: the step, and what was called."""
    make_tiny_model(folder, architecture, kv_heads=2, vocabulary=WORDS, hidden=WIDTH, **(config or {}))
    loaded = load_model(folder, dtype=dtype, device="cpu", attention_mode="packed", **options)
    loaded.model.to(NOWHERE)
    loaded.device = NOWHERE
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.device.type == "meta"))
    monkeypatch.setattr(policy, "MAX_LOGITS_CUDA", chunk)
    monkeypatch.setattr(policy, "MIN_CHUNK", 5)
    monkeypatch.setattr(step.TokenRecord, "add", lambda *_: None)  # it reads numbers, and there are none
    learner = PolicyStep(loaded, clip_objective(low=0.2, high=0.28), LearnerSection(), 0.7)
    with Listen() as heard:
        for _ in range(2):
            learner.forward_backward(make_rows(), TokenRecord(0, False, False), ratio_against="sampler")
    return learner, heard


@pytest.mark.parametrize(
    "config", [{}, {"architecture": "mistral", "config": {"sliding_window": 4}}], ids=["", "window"]
)
@pytest.mark.parametrize("checkpointing", ["none", "full", "selective"])
@pytest.mark.parametrize("dtype", quick(["bfloat16", "float32"], ["bfloat16"]))
def test_gradients_of_every_parameter_come_and_add_up_in_float32(tmp_path, monkeypatch, dtype, checkpointing, config):
    learner, heard = learn_on_paper(
        tmp_path, monkeypatch, dtype=dtype, activation_checkpointing=checkpointing, **config
    )
    masters = learner.optimizer.masters
    assert all(masters[name].grad.shape == p.shape for name, p in learner.loaded.model.named_parameters())
    assert {master.grad.dtype for master in masters.values()} == {torch.float32}
    layers, passes = 2, 2
    if dtype == "bfloat16":  # selective: attention is kept, not computed again
        forward = layers * passes * (2 if checkpointing == "full" else 1)
        assert heard.calls["torch_attn._varlen_attn.default"] == forward
        assert heard.calls["torch_attn._varlen_attn_backward.default"] == layers * passes


def kept_bytes(layers, monkeypatch):
    """What autograd saves of one micro-batch through Qwen2.5-0.5B's shape with so many layers, weights aside."""
    from transformers import AutoModelForCausalLM

    with NOWHERE:
        model = AutoModelForCausalLM.from_config(
            config_of(HALF_BILLION.with_layers(layers)), dtype=torch.bfloat16
        ).eval()
    attention.register()
    model.set_attn_implementation(attention.NAME)
    loaded = LoadedModel(model, None, (1,), 0, NOWHERE, torch.bfloat16, packed=True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.device.type == "meta"))
    weights = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept, alive = {}, []

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
            alive.append(tensor)  # else its address comes again
        return tensor

    batch = pack(benchmark_rows(1000, 2, 8, 128, 1024, equal=True), NOWHERE)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        Policy(loaded)(batch)
    return sum(kept.values()), batch.input_ids.numel()


def test_what_a_card_keeps_of_a_layer_is_what_is_counted(monkeypatch):
    """The variable-length kernel keeps other tensors than a CPU's attention: keys and values of shared prompts several
    times."""
    (two, tokens), (one, _) = kept_bytes(2, monkeypatch), kept_bytes(1, monkeypatch)
    assert (two - one) / tokens == pytest.approx(layer_bytes(layer_sizes(HALF_BILLION), 2), rel=0.005)


@pytest.mark.parametrize("chunk", [2**27, 1], ids=["at once", "in chunks"])
def test_a_float32_head_is_computed_without_a_float32_copy_of_it(tmp_path, monkeypatch, chunk):
    _, heard = learn_on_paper(tmp_path, monkeypatch, chunk=chunk, fp32_head=True, config={"tied": False})
    passes, recomputed, chunks = 2, chunk == 1, 1 if chunk > 1 else 20 // 5  # of 20 response tokens
    # the logits, again where a chunk is computed again, and the weight's gradient
    assert heard.calls["aten.mm.dtype"] == passes * chunks * (2 + recomputed)
    # the gradients of embedding and head, for AdamW; the head itself stays as it is
    assert heard.widened[WORDS, WIDTH] == passes * 2
