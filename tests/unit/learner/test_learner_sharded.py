"""Ranks that share a model give the gradient, the weights and the numbers of one process, however it is cut."""

from __future__ import annotations

import pytest
import rank_stage
import rank_work
import torch
from rank_work import CASES, alone, assert_equal

from dapo.learner import sharding
from dapo.learner.sharding import Shape

pytestmark = pytest.mark.cluster
MODELS = rank_stage.MODELS
EXACT = {"float64": 1e-12, "float32": 1e-6}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("reshard", [False, True])
@pytest.mark.parametrize("dtype", EXACT)
@pytest.mark.parametrize("kind", ["tied", "untied"])
@pytest.mark.parametrize("ranks", [2, 3])  # 80 rows of the embedding: 27, 27 and 26
def test_the_gradient_of_one_process(stages, folder, ranks, kind, dtype, reshard, case):
    found = stages(ranks).together(rank_work.sharded, folder / kind, dtype, Shape(ranks, reshard=reshard), case)
    assert_equal(found, alone(folder / kind, dtype, case), EXACT[dtype])


@pytest.mark.parametrize("case", ["uneven", "a rank without rows"])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_epochs_deal_rows_to_other_ranks(stages, folder, case, minibatches):
    """Ranks exchange the old log-probabilities of the first epoch."""
    options = {"minibatches": minibatches, "epochs": 3}
    found = stages(2).together(rank_work.sharded, folder / "tied", "float64", Shape(2), case, **options)
    assert_equal(found, alone(folder / "tied", "float64", case, **options), EXACT["float64"])


@pytest.mark.parametrize("kind", ["full", "selective"])
def test_recomputed_activations(stages, folder, kind):
    found = stages(2).together(
        rank_work.sharded, folder / "qwen3", "float64", Shape(2), "uneven", activation_checkpointing=kind
    )
    assert_equal(found, alone(folder / "qwen3", "float64", "uneven", activation_checkpointing=kind), EXACT["float64"])


def test_replicas(stages, folder):
    """Two copies, each cut over two ranks; rows are dealt to all four."""
    found = stages(4).together(rank_work.sharded, folder / "tied", "float64", Shape(4, replicas=2), "uneven")
    assert_equal(found, alone(folder / "tied", "float64", "uneven"), EXACT["float64"])


def test_bfloat16_with_float32_slices_is_bfloat16_with_masters(stages, folder):
    """Ranks gather bfloat16 and keep float32; one process computes in bfloat16 and keeps float32 copies."""
    found = stages(2).together(rank_work.sharded, folder / "tied", "bfloat16", Shape(2), "uneven")
    expected = alone(folder / "tied", "bfloat16", "uneven")
    assert {tensor.dtype for tensor in found[2].values()} == {torch.float32}
    assert_equal(found, expected, 0.02)
    apart = alone(folder / "tied", "float32", "uneven")[1]

    def distance(gradients):
        return float(torch.stack([(gradients[n] - g).norm() for n, g in expected[1].items()]).norm())

    # Ranks pack other rows together than one process does, and bfloat16 rounds those sums otherwise: not equal, but
    # closer than float32 is.
    assert distance(found[1]) < 0.7 * distance(apart)


def large_groups(stage, *args, **options):
    """With an embedding and a head that count as large, and a head that runs in chunks."""
    from dapo.models import policy

    before = sharding.LARGE, policy.MAX_LOGITS, policy.MIN_CHUNK
    sharding.Sharding.__init__.__kwdefaults__["large"] = 1
    policy.MAX_LOGITS, policy.MIN_CHUNK = 1, 5
    try:
        return rank_work.sharded(stage, *args, before=check_groups, **options)
    finally:
        sharding.Sharding.__init__.__kwdefaults__["large"], policy.MAX_LOGITS, policy.MIN_CHUNK = before


def check_groups(rank):
    from torch.distributed.fsdp import FSDPModule

    assert isinstance(rank.loaded.model.get_input_embeddings(), FSDPModule)
    assert isinstance(rank.step.sharding.policy.output, FSDPModule)


@pytest.mark.parametrize("reshard", [False, True])
def test_large_embedding_and_head_are_groups_of_their_own(stages, folder, reshard):
    found = stages(2).together(large_groups, folder / "untied", "float64", Shape(2, reshard=reshard), "uneven")
    assert_equal(found, alone(folder / "untied", "float64", "uneven"), EXACT["float64"])


FROZEN = ("embed_tokens", "layers.0")


def with_frozen(stage, *args, **options):
    """A rank whose model has parameters that do not train, as an adapter's has."""
    from dapo.models import load

    made = load.model_without_weights

    def frozen(*own):
        model = made(*own)
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(not any(part in name for part in FROZEN))
        return model

    load.model_without_weights = frozen
    try:
        return rank_work.sharded(stage, *args, **options)
    finally:
        load.model_without_weights = made


def test_frozen_parameters_are_cut_and_stay(stages, folder):
    found = stages(2).together(with_frozen, folder / "untied", "float64", Shape(2), "uneven")
    assert not [name for name in found[1] if any(part in name for part in FROZEN)]
    assert_equal(found, alone(folder / "untied", "float64", "uneven", frozen=FROZEN), EXACT["float64"])
