"""An adapter over ranks: gradients, weights and merged tensors of one process, however the model is cut."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import rank_stage
import rank_work
import torch
from learner_here import LearnerHere
from learner_rows import make_rows
from learner_subject import assert_curve_goes_on, learn, logprobs
from rank_stage import OBJECTIVES
from rank_work import CASES, alone, assert_equal, trained_a_little
from torch.distributed.tensor import DTensor

from dapo.config import schema
from dapo.errors import CheckpointError
from dapo.learner import sharding
from dapo.learner.sharding import Shape
from dapo.learner.tensor_files import TensorFiles
from dapo.metrics.stats import values
from dapo.models.adapter import adapter_parts, published
from dapo.models.checksum import checksum
from dapo.models.load import load_model
from dapo.models.weight_files import read_weights

over_processes = pytest.mark.cluster
MODELS = rank_stage.MODELS | {"other": {"hidden": 16, "heads": 2, "ffn": 24, "seed": 5}}
LORA = {"rank": 3, "lora_alpha": 6.0}
SETTINGS = {"microbatch_tokens": 48}


# ---------------------------------------------------------------- gradients, weights and statistics


def together(stage, *args, work=rank_work.sharded, **options):
    """Statistics of all ranks, gradients and weights of rank 0."""
    return stage.together(work, *args, start=trained_a_little, **options)


def check(stages, folder, ranks, kind, dtype, case, shape=None, work=rank_work.sharded, lora=LORA, **options):
    settings = schema.Lora(**lora)
    shape = shape or Shape(ranks)
    found = together(stages(ranks), folder / kind, dtype, shape, case, work=work, lora=settings, **options)
    expected = alone(folder / kind, dtype, case, start=trained_a_little, lora=settings, **options)
    assert any("lora_A" in name for name in found[2])
    lost = values(expected[0])["train/merge_error"]  # and that of all ranks is the same
    assert lost == 0 if dtype == "float64" else 0 < lost < 1e-3
    assert_equal(found, expected, {"float64": 1e-12, "float32": 1e-6}[dtype])


def test_one_rank_is_one_process(stages, folder):
    check(stages, folder, 1, "tied", "float64", "uneven")


@over_processes
@pytest.mark.parametrize("case", CASES)
def test_two_ranks_are_one_process(stages, folder, case):
    check(stages, folder, 2, "tied", "float64", case)


@over_processes
@pytest.mark.parametrize(
    ("ranks", "kind", "dtype", "reshard"), [(3, "untied", "float64", True), (2, "qwen3", "float32", False)]
)
def test_other_cuts_and_models(stages, folder, ranks, kind, dtype, reshard):
    """Of three ranks one has no row of A, which has as many as the adapter's rank."""
    check(stages, folder, ranks, kind, dtype, "uneven", Shape(ranks, reshard=reshard), lora=LORA | {"rank": 2})


@over_processes
def test_recomputed_activations_and_replicas(stages, folder):
    check(stages, folder, 4, "tied", "float64", "uneven", Shape(4, replicas=2), activation_checkpointing="full")


def large_groups(stage, *args, **options):
    """With an embedding and a head that count as large."""
    defaults = sharding.Sharding.__init__.__kwdefaults__
    before, defaults["large"] = defaults["large"], 1
    try:
        return rank_work.sharded(stage, *args, **options)
    finally:
        defaults["large"] = before


@over_processes
@pytest.mark.parametrize("work", [rank_work.sharded, large_groups])
def test_modules_that_are_trained_whole(stages, folder, work):
    """A head in its own group, which has two copies then, and norms."""
    lora = LORA | {"modules_to_save": ["norm", "lm_head"]}
    check(stages, folder, 2, "untied", "float64", "uneven", work=work, lora=lora)


# ---------------------------------------------------------------- what is published and saved


def local(folder, dtype="float32", kind="tied", reference=None, **lora):
    loaded = load_model(
        folder / kind,
        dtype=getattr(torch, dtype),
        device="cpu",
        attention_mode="packed",
        lora=schema.Lora(**LORA | lora),
    )
    trained_a_little(loaded.model)
    return LearnerHere(loaded, OBJECTIVES["clip"](), schema.LearnerSection(**SETTINGS), 1.0, reference=reference)


def start_rank(stage, number):
    rank = stage.held[number]
    trained_a_little(rank.loaded.model)
    if rank.step.reference is not None:
        rank.step.reference.refresh()  # of the model as it begins


def over(stage, folder, dtype="float32", kind="tied", lora=LORA, **options):
    model = {"path": str(folder / kind), "dtype": dtype, "attention": "packed", "device": "cpu", "lora": lora}
    group = stage.learner(model, **SETTINGS, **options)
    stage.all("run", start_rank, group.number)
    return group


def types_of_slices(stage, number):
    """What a rank holds: by whether it is trained the type, and whether it is cut."""
    model = stage.held[number].loaded.model
    return {(p.requires_grad, str(p.dtype), isinstance(p, DTensor)) for p in model.parameters()}


@over_processes
@pytest.mark.parametrize(("dtype", "ranks", "replicas"), [("float32", 3, 1), ("bfloat16", 3, 1), ("bfloat16", 4, 2)])
def test_published_is_the_merge_of_one_process_to_the_bit(stages, folder, dtype, ranks, replicas):
    """Frozen slices have the model's type; A and B of a bfloat16 model are wider, and merged as they compute."""
    lora = LORA | {"modules_to_save": ["norm"]}
    learner = over(stages(ranks), folder, dtype, lora=lora, shape=Shape(ranks, replicas=replicas))
    one = local(folder, dtype, **lora)
    held = {(False, f"torch.{dtype}", True), (True, "torch.float32", True)}
    assert stages(ranks).all("run", types_of_slices, learner.number) == [held] * ranks
    expected = dict(published(one.loaded.model, aliases=True))
    base = dict(load_model(folder / "tied", dtype=getattr(torch, dtype)).model.named_parameters())
    assert not torch.equal(expected["model.layers.1.mlp.up_proj.weight"], base["model.layers.1.mlp.up_proj.weight"])
    ticket = learner.publish(0)
    found = dict(read_weights(Path(ticket.address)))
    assert found.keys() == set(ticket.names)
    assert all(tensor.dtype == expected[name].dtype for name, tensor in found.items())
    assert [name for name in found if not torch.equal(found[name], expected[name])] == []
    dtypes = dict.fromkeys([*ticket.names, "lm_head.weight"], dtype)
    assert learner.checksums(dtypes) == one.checksums(dtypes)


@over_processes
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_two_ranks_then_one_process_then_three_continue_the_curve(stages, folder, dtype, tmp_path):
    def look(number, saved, files):
        assert "adapter_config.json" in files
        with TensorFiles([saved / name for name in sorted(files) if name.startswith("rank-")]) as tensors:
            held = [name for name in tensors.shapes if name.startswith("model/")]
        assert len(held) == 2 * 2 * 7  # A and B of seven layers in each of two blocks
        assert all(".lora_" in name for name in held)

    makers = (partial(over, stages(2)), local, partial(over, stages(3)))
    turns = [partial(make, folder, dtype) for make in makers]
    batches = [make_rows(seed) for seed in range(6)]
    assert_curve_goes_on(local(folder, dtype), turns, batches, tmp_path, 1e-4 if dtype == "float32" else 0.1, look)


@over_processes
def test_saved_beside_training_and_only_for_this_model_and_adapter(stages, folder, tmp_path):
    learner = over(stages(2), folder, asynchronous=True)
    learn(learner, [make_rows(0)])
    dtypes = dict.fromkeys(learner.publish(1).names, "float32")
    then = learner.checksums(dtypes)
    saving = learner.save(tmp_path / "saved")
    learn(learner, [make_rows(1)])
    assert learner.checksums(dtypes) != then
    assert saving.result(timeout=600)
    for other in (over(stages(3), folder), local(folder)):
        other.load(tmp_path / "saved")
        assert other.checksums(dtypes) == then
    for options, message in (
        ({"kind": "other"}, "an adapter of other weights than"),
        ({"lora": LORA | {"lora_alpha": 3.0}}, "'lora_alpha': 3.0"),
        ({"lora": LORA | {"target_modules": ["q_proj"]}}, "differ in"),
        ({"lora": {}}, "differ in"),
    ):
        other = over(stages(2), folder, **options)
        before = other.checksums(dtypes)
        with pytest.raises(CheckpointError, match=message):
            other.load(tmp_path / "saved")
        assert other.checksums(dtypes) == before


@over_processes
@pytest.mark.parametrize("refresh", [None, 1])
def test_the_reference_is_the_model_without_its_adapter_or_a_copy_of_the_adapter(stages, folder, refresh, tmp_path):
    reference, rows = schema.ReferenceSection(refresh_every=refresh), make_rows()
    ranks, one = over(stages(2), folder, reference=reference), local(folder, reference=reference)
    for learner in (ranks, one):
        learn(learner, [rows])
    found, expected = (learner.logprobs(rows, "reference").result(timeout=600) for learner in (ranks, one))
    for ours, theirs, now in zip(found, expected, logprobs(ranks, rows), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)
        assert float(np.abs(ours - now).max()) > 1e-4
    ranks.save(tmp_path / "saved").result(timeout=600)
    again = local(folder, reference=reference)
    again.load(tmp_path / "saved")
    for ours, theirs in zip(again.logprobs(rows, "reference").result(), found, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


# ---------------------------------------------------------------- sent by itself


def send_adapter(rank, number):
    rank.held[number].loaded.sends_adapter = True


@over_processes
def test_two_ranks_send_the_adapter_of_one_process(stages, folder):
    """Also where three rows of A are cut over two ranks, and the checksums of frozen weights are those of the files."""
    stage = stages(2)
    model = {"path": str(folder / "tied"), "lora": LORA, "attention": "packed", "device": "cpu"}
    learner = stage.learner(model, **SETTINGS)
    stage.all("run", send_adapter, learner.number)
    found = dict(read_weights(Path(learner.publish(0).address)))
    expected = adapter_parts(load_model(folder / "tied", device="cpu", lora=schema.Lora(**LORA)).model)
    assert found.keys() == expected.keys()
    assert {name: tensor.shape for name, tensor in found.items()} == {n: t.shape for n, t in expected.items()}
    assert all(torch.equal(found[name], expected[name]) for name in found)  # A is drawn from one seed, and B is zero
    plain = published(load_model(folder / "tied", device="cpu").model)
    tensors = dict(plain) | found
    assert learner.checksums(dict.fromkeys(tensors, "float32")) == {n: checksum(t) for n, t in tensors.items()}
