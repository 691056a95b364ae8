"""Ranks that share each row (``learner.context_parallel``) give the gradient and the numbers of one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import rank_work
import torch
import torch.distributed as dist
from learner_here import LearnerHere
from quick import quick
from rank_work import OBJECTIVES, alone, assert_equal, model, settings, step_of

from dapo.config.schema import Lora
from dapo.errors import ModelError
from dapo.learner.sharding import Shape
from dapo.learner.worker import RankPlace, make_worker
from dapo.metrics.stats import values
from dapo.models import context
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model

EXPERTS = {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}
LATENT = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
LATENT |= {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8}
MODELS = {
    "llama": {"architecture": "llama", "hidden": 32, "heads": 4, "ffn": 48},
    "two key heads": {"architecture": "llama", "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, "tied": False},
    "three key heads": {"architecture": "llama", "hidden": 48, "heads": 12, "kv_heads": 3, "ffn": 48},
    "qwen3": {"architecture": "qwen3", "hidden": 16, "heads": 2, "kv_heads": 1, "ffn": 24},
    "qwen3 wide": {"architecture": "qwen3", "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48},
    "experts": {"architecture": "qwen3_moe", "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, **EXPERTS},
    "three heads": {"architecture": "llama", "hidden": 24, "heads": 3, "ffn": 24},
    "unequal": {
        "architecture": "deepseek_v3",
        "hidden": 32,
        "heads": 2,
        "ffn": 48,
        "head_dim": 4,
        "first_k_dense_replace": 1,
        **LATENT,
    },
}
EXACT = 1e-12


@pytest.mark.whole
@pytest.mark.parametrize("case", quick(["uneven", "long prompts", "a rank without rows"], ["a rank without rows"]))
def test_two_ranks_that_share_rows_are_one_process(stages, folder, case):
    """One key head for both ranks; a prompt so long that the first rank predicts nothing."""
    found = stages(2).together(rank_work.sharded, folder / "qwen3", "float64", Shape(2, context_parallel=2), case)
    assert_equal(found, alone(folder / "qwen3", "float64", case), EXACT)


@pytest.mark.whole
def test_the_driver_asks_one_of_those_that_share_rows(stages, folder):
    """The route of a run: what a driver hands out, and puts together."""
    recipe = {"path": str(folder / "qwen3"), "device": "cpu", "attention": "packed"}
    ranks = stages(2).learner(recipe, shape=Shape(2, context_parallel=2), **settings().model_dump(exclude_unset=True))
    one = LearnerHere(
        load_model(folder / "qwen3", device="cpu", attention_mode="packed"), OBJECTIVES["token"], settings(), 1.0
    )
    step = replace(step_of("uneven", 2), ratio_against="learner")
    step = replace(
        step, minibatches=[[replace(row, traced=row.sample == 1) for row in own] for own in step.minibatches]
    )
    rows = [row for rows in step.minibatches for row in rows]
    for got, wanted in zip(ranks.logprobs(rows).result(), one.logprobs(rows).result(), strict=True):
        np.testing.assert_allclose(got, wanted, atol=1e-5)
    got, wanted = ranks.learn(step).result(), one.learn(step).result()
    assert values(got.stats)["train/loss_tokens"] == values(wanted.stats)["train/loss_tokens"]
    assert values(got.stats)["train/micro_batches"] == values(wanted.stats)["train/micro_batches"]
    np.testing.assert_allclose(values(got.stats)["train/loss"], values(wanted.stats)["train/loss"], rtol=1e-4)
    assert wanted.traces
    assert [(t.group, t.sample) for t in got.traces] == [(t.group, t.sample) for t in wanted.traces]


@pytest.mark.cluster
@pytest.mark.parametrize("case", ["uneven", "long prompts"])
@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize(("kind", "shape"), [
    ("llama", Shape(2, context_parallel=2)),
    ("llama", Shape(4, context_parallel=4)),
    ("llama", Shape(4, context_parallel=2)),
    ("llama", Shape(4, replicas=2, context_parallel=2)),
    ("two key heads", Shape(4, context_parallel=4, reshard=True)),
    ("three key heads", Shape(4, context_parallel=4)),
    ("qwen3", Shape(2, context_parallel=2, reshard=True)),
    ("qwen3 wide", Shape(4, replicas=2, context_parallel=2)),
    ("experts", Shape(2, context_parallel=2)),
    ("experts", Shape(4, context_parallel=4)),
])  # fmt: skip
def test_every_shape_is_one_process(stages, folder, kind, shape, objective, case):
    """Key heads as many as ranks, fewer, and such that they divide no number of ranks; ratios of tokens and rows."""
    options = {"objective": objective}
    found = stages(shape.ranks).together(rank_work.sharded, folder / kind, "float64", shape, case, **options)
    assert_equal(found, alone(folder / kind, "float64", case, **options), EXACT)


@pytest.mark.cluster
@pytest.mark.parametrize("checkpointing", ["full", "selective"])
@pytest.mark.parametrize("kind", ["two key heads", "experts"])
def test_recomputed_activations(stages, folder, kind, checkpointing):
    options = {"activation_checkpointing": checkpointing}
    shape = Shape(4, context_parallel=4)
    found = stages(4).together(rank_work.sharded, folder / kind, "float64", shape, "uneven", **options)
    assert_equal(found, alone(folder / kind, "float64", "uneven", **options), EXACT)


@pytest.mark.cluster
def test_an_adapter(stages, folder):
    pytest.importorskip("peft")
    options = {"lora": Lora(rank=3)}
    shape, start = Shape(2, context_parallel=2), rank_work.trained_a_little
    args = (rank_work.sharded, folder / "qwen3", "float64", shape, "uneven")
    found = stages(2).together(*args, start=start, **options)
    assert_equal(found, alone(folder / "qwen3", "float64", "uneven", start=start, **options), EXACT)


def with_strides(stage, *args, **options):
    """A rank whose exchange sends a gradient as it lies in memory, into a tensor of the same strides."""

    def in_memory(tensor):
        return tensor.as_strided((tensor.numel(),), (1,))

    def swap(parts, unit):
        got = torch.empty_like(parts)
        dist.all_to_all_single(in_memory(got), in_memory(parts), group=unit.group)
        return got

    right, context._swap = context._swap, swap
    try:
        return rank_work.sharded(stage, *args, **options)
    finally:
        context._swap = right


@pytest.mark.cluster
def test_a_gradient_in_another_order_would_be_seen(stages, folder):
    """The loss is exact with this mistake, and the gradient is not."""
    shape = Shape(2, context_parallel=2)
    found = stages(2).together(with_strides, folder / "llama", "float64", shape, "uneven", minibatches=1)
    expected = alone(folder / "llama", "float64", "uneven", minibatches=1)
    loss = [values(side[0])["train/loss"] for side in (found, expected)]
    np.testing.assert_allclose(*loss, rtol=1e-12)
    name = "model.layers.0.self_attn.q_proj.weight"
    off = max(float((found[1][n] - g).norm() / g.norm()) for n, g in expected[1].items() if n.endswith(name))
    assert off > 0.1
    with pytest.raises(AssertionError):
        assert_equal(found, expected, EXACT)


@pytest.mark.cluster
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(("ranks", "less"), [(2, 1.85), (4, 3.5)])
def test_each_rank_keeps_its_part_of_the_activations(stages, tmp_path, ranks, less, checkpointing):
    make_tiny_model(tmp_path / "model", layers=6, kv_heads=2)
    for whole, own in stages(ranks).all("run", rank_work.kept_bytes, tmp_path / "model", ranks, checkpointing):
        assert whole / own > less


def refused(stage, folder, shape, change=None):
    """What a rank says of a model that it cannot share, loaded after ``change``."""
    undo = change() if change is not None else lambda: None
    place = RankPlace(stage.rank, shape, "", 120.0)
    try:
        make_worker(place, model(folder, "float32"), settings(), 1.0, OBJECTIVES["token"], device=torch.device("cpu"))
    except ModelError as error:
        return str(error)
    finally:
        undo()
    return "not refused"


def without_attention():
    """Give the second layer a mixing of its own, which is none, and never asks the attention of packed rows."""
    from transformers.models.llama.modeling_llama import LlamaAttention

    usual = LlamaAttention.forward

    def forward(self, hidden_states, **options):
        return usual(self, hidden_states, **options) if self.layer_idx == 0 else (torch.zeros_like(hidden_states), None)

    LlamaAttention.forward = forward

    def undo():
        LlamaAttention.forward = usual

    return undo


@pytest.mark.cluster
@pytest.mark.parametrize(("kind", "change", "said"), [
    ("three heads", None, "2 ranks cannot share 3 attention heads: learner.context_parallel can be 1, 3"),
    ("unequal", None, "cannot be exchanged together"),
    ("llama", without_attention, "2 layers called attention 1 times"),
])  # fmt: skip
def test_models_that_ranks_cannot_share_are_refused(stages, folder, kind, change, said):
    for words in stages(2).all("run", refused, folder / kind, Shape(2, context_parallel=2), change):
        assert said in words
        assert words.startswith("learner.context_parallel = 2 cuts packed rows")
        assert words.endswith("; set learner.context_parallel=1")
