"""The learner contract, kept by ranks behind a transport: one in this process, and two in processes of their own."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from forked import ForkedTransport
from inline_transport import InlineTransport
from learner_contract import CHECKS
from learner_here import LearnerHere
from learner_rows import make_rows
from learner_subject import Subject, learn
from rank_stage import OBJECTIVES, Stage

from dapo.config import schema
from dapo.models.load import load_model
from dapo.models.slices import own_part
from dapo.models.tiny import make_tiny_model

SETTINGS = {"microbatch_tokens": 48, "max_skipped_steps": 1}  # several passes a minibatch


def subject(stage, mode, dtype, adapter=""):
    def make(ffn=24, objective="clip"):
        model = {"path": str(stage.folder / str(ffn)), "dtype": dtype, "attention": mode, "device": "cpu"}
        model |= {"lora": {"rank": 2 if adapter else None}}
        return stage.learner(model, objective=objective, **SETTINGS)

    return Subject(
        make=make,
        other=lambda: make(ffn=32),
        diverging=lambda: make(objective="explosive"),
        close_to=1e-5 if dtype == "float32" else 0.05,
        dtype=dtype,
    )


def staged(transport, ranks, tmp_path_factory):
    folder = tmp_path_factory.mktemp("group")
    for ffn in (24, 32):
        make_tiny_model(folder / str(ffn), hidden=16, heads=2, ffn=ffn)
    try:
        yield Stage(transport, ranks, folder)
    finally:
        transport.close()
        if dist.is_initialized():
            dist.destroy_process_group()


@pytest.fixture(scope="module")
def one_rank(tmp_path_factory):
    yield from staged(InlineTransport(), 1, tmp_path_factory)


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    yield from staged(ForkedTransport(tmp_path_factory.mktemp("output")), 2, tmp_path_factory)


@pytest.mark.whole
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_one_rank_in_this_process(one_rank, check, tmp_path):
    check(subject(one_rank, "packed", "float32"), tmp_path)


@pytest.mark.parametrize("adapter", ["", "lora"])
def test_a_bfloat16_model_goes_from_one_process_to_a_rank_and_back_to_the_bit(one_rank, adapter, tmp_path):
    """One process keeps float32 numbers beside its weights, a rank instead of them."""

    def here():
        lora = schema.Lora(rank=2) if adapter else None
        loaded = load_model(one_rank.folder / "24", dtype="bfloat16", device="cpu", attention_mode="packed", lora=lora)
        return LearnerHere(loaded, OBJECTIVES["clip"](), schema.LearnerSection(**SETTINGS), 1.0)

    one, ranks, again = here(), subject(one_rank, "packed", "bfloat16", adapter).make(), here()
    learn(one, [make_rows()])
    one.save(tmp_path / "one").result()
    ranks.load(tmp_path / "one")
    slices = dict(one_rank.hosts[0].thing.held[ranks.number].loaded.model.named_parameters())
    masters = one.step.optimizer.masters
    assert any(not torch.equal(master, master.bfloat16().float()) for master in masters.values())
    assert [name for name, master in masters.items() if not torch.equal(own_part(slices[name]), master)] == []
    ranks.save(tmp_path / "ranks").result()
    again.load(tmp_path / "ranks")
    for before, after in (
        (one.step.optimizer.state(), again.step.optimizer.state()),
        (dict(one.loaded.model.named_parameters()), dict(again.loaded.model.named_parameters())),
    ):
        assert before.keys() == after.keys()
        assert [name for name in before if not torch.equal(before[name], after[name])] == []


@pytest.mark.cluster
@pytest.mark.parametrize("kind", ["packed float32", "padded float32", "packed bfloat16", "packed float32 lora"])
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_two_ranks_in_processes(two_ranks, kind, check, tmp_path):
    check(subject(two_ranks, *kind.split()), tmp_path)
