"""Whole runs that train an adapter over ranks, with a KL term against the model without it."""

from __future__ import annotations

from functools import partial

import faulty_rank
import pytest
from safetensors.torch import load_file
from small_run import dapo, groups_by_fate, write_recipe

from dapo.observe.metrics import read_metrics
from dapo.run import learners

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(1800)]
LORA = ("model.lora.rank=4", "algorithm.kl_coefficient=0.05", "logging.console=plain", "validation.every=0")


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("adapters"))


def train(recipe, name, *over):
    dapo("train", recipe, *LORA, f"run.name={name}", *over)
    return read_metrics(recipe.parent / name / "metrics.jsonl")


def test_two_ranks_then_one_process_then_three_are_one_process(recipe):
    """Each goes on from the other's checkpoint; either kind of export can be had of the last one, which ranks wrote."""
    alone = train(recipe, "alone")
    train(recipe, "moved", "learner.ranks=2", "trainer.steps=2")
    moved = recipe.parent / "moved"
    for ranks, steps in ((1, 4), (3, 6)):
        dapo("train", "--resume", moved, f"learner.ranks={ranks}", f"trainer.steps={steps}", "logging.console=quiet")
    rows = read_metrics(moved / "metrics.jsonl")
    exact = ("sampling/generated_tokens", "train/loss_tokens", "train/optimizer_steps", "counters/trained_tokens")
    close = ("train/loss", "train/grad_norm", "train/entropy", "train/kl", "train/merge_error")
    assert [row["step"] for row in rows] == [row["step"] for row in alone] == list(range(1, 7))
    for one, other in zip(alone, rows, strict=True):
        assert {key: other[key] for key in exact} == {key: one[key] for key in exact}
        for key in close:
            assert other[key] == pytest.approx(one[key], rel=0.05 if key == "train/merge_error" else 1e-4, abs=1e-7)
        assert other["train/sync_gap"] < 1e-5 if "train/sync_gap" in other else other["step"] in (3, 4)
    assert max(row["train/kl"] for row in alone) > 1e-5
    assert groups_by_fate(moved) == groups_by_fate(recipe.parent / "alone")
    for name in ("alone", "moved"):
        dapo("export", recipe.parent / name, recipe.parent / f"{name}-merged")
        dapo("export", recipe.parent / name, recipe.parent / f"{name}-adapter", "--adapter")
    for kind, file in (("merged", "model.safetensors"), ("adapter", "adapter_model.safetensors")):
        one, other = (load_file(recipe.parent / f"{name}-{kind}" / file) for name in ("alone", "moved"))
        assert one.keys() == other.keys()
        assert all(float((one[name] - other[name]).abs().max()) < 1e-3 for name in one)


@pytest.mark.parametrize(
    ("when", "said"),
    [
        ("published", "tensors of EmbeddedEngine are not those that were just published"),
        ("always", "its log-probabilities differ from the learner's"),
    ],
)
def test_a_rank_that_merges_an_old_a_is_seen_by_the_sync_check(recipe, when, said, monkeypatch):
    """A planted bug. Where checksums are made of the same old A, the sampled tokens tell."""
    monkeypatch.setattr(learners, "start_worker", partial(faulty_rank.start_with_an_old_merge, when, 4))
    over = ("learner.ranks=2", "cluster.max_learner_restarts=0", f"run.name=old-{when}")
    done = dapo("train", recipe, *LORA, *over, expect=None)
    assert done.returncode == 1
    told = " ".join((done.stdout + done.stderr).split())
    assert "the sync check after step 1 failed" in told, told[-2000:]
    assert said in told
