"""Two processes over gloo with uneven tokens give the one-process gradient, for every reduction and loss.

Each rank runs the passes that ``plan_passes`` gave it, fillers included; gradients are summed. What the ranks say of
their tokens merges to what one process says. Once more with the policy sharded by FSDP2 as the root module.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import warm
from learner_rows import SCALED, make_algorithm, make_groups, masked, rows_of, with_extra
from rank_work import norms_as_wide_as_the_model

from dapo.algorithms.objective import clip_objective
from dapo.algorithms.variants.cispo import cispo_objective
from dapo.config import schema
from dapo.learner.plan import plan_passes
from dapo.learner.step import PolicyStep
from dapo.learner.step_metrics import TokenRecord
from dapo.metrics.stats import merge, stat, values
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model

REDUCTIONS = {
    "token_mean": {},
    "prompt_mean": {},
    "sequence_mean": {},
    "sequence_sum": {},
    "constant": {"constant_length": 12},
    "micro_batch_mean": {"micro_batches": [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9, 10, 11]]},
}
OBJECTIVES = [
    clip_objective(low=0.2, high=0.28, dual=3.0),
    clip_objective(low=3e-4, high=4e-4, ratio="sequence"),
    cispo_objective(cap=1.1),
    SCALED,
]
LIMIT = 20  # input tokens of a micro-batch: few enough that a rank gets a filler


def cases():
    """(name, rows, objective): three groups of four responses of uneven lengths, one of them without loss."""
    for number, (reduction, options) in enumerate(REDUCTIONS.items()):
        groups = make_groups(number, 3, 4, length=lambda random: int(random.integers(1, 16)))
        rows = with_extra(rows_of(groups, make_algorithm(reduction, **options)))
        rows[3] = masked(rows[3])
        yield reduction, [row for row in rows if row.loss_mask.any()], OBJECTIVES[number % 4]


def gradient_and_stats(step: PolicyStep, rows, ranks: int, rank: int):
    """This rank's part of the gradient (float64, by parameter) and of the statistics."""
    record = TokenRecord(0, old_is_learners=False, weights_moved=False)
    stats = []
    for planned in plan_passes(rows, LIMIT, ranks=ranks)[rank]:
        if planned.rows:
            chosen = [rows[n] for n in planned.rows]
            stats.append(step.forward_backward(chosen, record, ratio_against="sampler", backward=planned.backward))
        else:
            step.empty_pass(backward=planned.backward)
    stats += [record.stats(), stat("train/loss", 0, rank == 0), stat("train/loss_tokens", 0, rank == 0)]
    return merge(stats)


VARIANTS = {"float64": (torch.float64, False), "float32": (torch.float32, False), "sharded": (torch.float64, True)}


@norms_as_wide_as_the_model()
def run_rank(folder: Path, rank: int) -> None:
    """One of two processes: its sums go into a file, the summed gradients too."""
    import torch.distributed as dist

    from dapo.learner.sharding import Shape, Sharding

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    out = {}
    for variant, (dtype, sharded) in VARIANTS.items():
        loaded = load_model(folder / "model", dtype=dtype, attention_mode="packed")
        sharding = Sharding(loaded, Shape(2).mesh(loaded.device), Shape(2)) if sharded else None
        step = PolicyStep(loaded, OBJECTIVES[0], schema.LearnerSection(), 0.9, sharding=sharding)
        for name, rows, objective in cases():
            step.objective = objective
            out[f"{variant}/{name}/stats"] = gradient_and_stats(step, rows, 2, rank)
            for parameter_name, parameter in loaded.model.named_parameters():
                gradient = parameter.grad.full_tensor() if sharded else parameter.grad
                if not sharded:
                    dist.all_reduce(gradient)
                out[f"{variant}/{name}/{parameter_name}"] = gradient.clone()
                parameter.grad = None
    torch.save(out, folder / f"rank{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory):
    """The model's folder, and what each of two processes found."""
    folder = tmp_path_factory.mktemp("ranks")
    make_tiny_model(folder / "model", hidden=16, heads=2, ffn=24)
    ranks = [warm.start(run_rank, folder, rank) for rank in range(2)]
    for rank in ranks:
        rank.join(warm.LIMIT)
        rank.kill()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    return folder / "model", [torch.load(folder / f"rank{n}.pt", weights_only=False) for n in range(2)]


@pytest.mark.parametrize(("variant", "tolerance"), [("float64", 1e-12), ("float32", 1e-6), ("sharded", 1e-12)])
@norms_as_wide_as_the_model()
def test_two_processes_give_the_gradient_of_one(two_ranks, variant, tolerance):
    folder, found = two_ranks
    loaded = load_model(folder, dtype=VARIANTS[variant][0], attention_mode="packed")
    step = PolicyStep(loaded, OBJECTIVES[0], schema.LearnerSection(), 0.9)
    for name, rows, objective in cases():
        step.objective = objective
        planned = plan_passes(rows, LIMIT, ranks=2)
        sizes = [[sum(len(rows[n].token_ids) for n in part.rows) for part in passes] for passes in planned]
        assert sizes[0] != sizes[1]
        whole = values(gradient_and_stats(step, rows, 1, 0))
        for parameter_name, parameter in loaded.model.named_parameters():
            expected, got = parameter.grad, found[0][f"{variant}/{name}/{parameter_name}"]
            scale = float(expected.abs().max())
            assert scale > 0, parameter_name
            assert float((got - expected).abs().max()) <= tolerance * scale, f"{name} {parameter_name}"
            parameter.grad = None
        together = values(merge(rank[f"{variant}/{name}/stats"] for rank in found))
        for key in whole.keys() - {"train/micro_batches", "train/packed_tokens"}:
            np.testing.assert_allclose(together[key], whole[key], rtol=max(tolerance, 1e-9), atol=1e-7, err_msg=key)


def test_some_passes_are_fillers():
    """Or the two processes above would show nothing of them."""
    plans = [plan_passes(rows, LIMIT, ranks=2) for _, rows, _ in cases()]
    assert any(not part.rows for passes in plans for own in passes for part in own)
