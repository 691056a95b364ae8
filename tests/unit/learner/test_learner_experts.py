"""A mixture of experts over several ranks: what one process computes, from slices that leave no rank empty."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import rank_work
import torch
from rank_work import alone, assert_equal

from dapo.errors import ModelError
from dapo.learner.sharding import Shape, check_experts
from dapo.metrics.stats import merge

EXPERTS = {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2, "norm_topk_prob": True}
MODELS = {
    "model": {"architecture": "qwen3_moe", "hidden": 32, "heads": 4, "kv_heads": 2, "ffn": 48, **EXPERTS},
}


def with_experts(*counts):
    model = torch.nn.Module()
    for number, count in enumerate(counts):
        model.register_parameter(f"experts{number}", torch.nn.Parameter(torch.empty(count, 2, 2, device="meta")))
    model.register_parameter("norm", torch.nn.Parameter(torch.empty(1)))
    return SimpleNamespace(model=model, name="m")


@pytest.mark.parametrize(("experts", "ranks"), [(8, 8), (8, 4), (60, 8), (128, 64), (7, 3), (5, 5)])
def test_slices_in_which_every_rank_has_experts(experts, ranks):
    """60 over 8 lie as 8 seven times and 4."""
    check_experts(with_experts(experts, 128), Shape(ranks))


@pytest.mark.parametrize(("experts", "shape", "said"), [
    (2, Shape(4), "of 2 experts leave ranks without any, while others hold 1: experts are not divided. Set "
                  "learner.replicas to 2 or 4, or learner.ranks / learner.replicas to 1 or 2"),
    (6, Shape(4), "while others hold 2"),  # 2, 2, 2, 0
    (8, Shape(32, replicas=2), "Set learner.replicas to 4 or 8 or 16 or 32, or .* to 3 or 4 or 8"),
])  # fmt: skip
def test_slices_that_leave_ranks_empty_are_refused(experts, shape, said):
    with pytest.raises(ModelError, match=said):
        check_experts(with_experts(experts, 128), shape)


def with_routes(step):
    """Rows with random experts of a sampler, the same for the prompt of a group."""
    parts = []
    for part in step.minibatches:
        parts.append([])
        for row in part:
            prompt, response = np.random.default_rng(row.group), np.random.default_rng((row.group, row.sample))
            first = np.concatenate(
                [
                    prompt.integers(1, 8, (len(row.prompt_ids), 2, 1)),
                    response.integers(1, 8, (len(row.token_ids), 2, 1)),
                ]
            )
            routes = np.concatenate([first, first + 1], axis=2).astype(np.uint8)
            parts[-1].append(replace(row, extra={"routes": routes}))
    return replace(step, minibatches=parts)


def compared(stages, folder, monkeypatch, shape, replay, *, minibatches, epochs):
    """Two ranks and one process, in float64."""
    options = {"minibatches": minibatches, "epochs": epochs}
    work = Repeating(replay)
    answers = stages(shape.ranks).all("run", work.ranks, folder / "model", shape, options)
    found = merge(stats for stats, _, _ in answers), answers[0][1], answers[0][2]
    expected = work.here(folder / "model", options)
    assert_equal(found, expected, 1e-6)  # routers compute their softmax in float32
    return expected[0]


class Repeating:
    """The work of ``rank_work`` with routers that repeat choices."""

    def __init__(self, replay):
        self.replay = replay

    def _changed(self, run):
        settings, step_of = rank_work.settings, rank_work.step_of
        rank_work.settings = lambda: settings().model_copy(update={"router_replay": self.replay})
        if self.replay == "sampler":
            rank_work.step_of = lambda *args: with_routes(step_of(*args))
        try:
            return run()
        finally:
            rank_work.settings, rank_work.step_of = settings, step_of

    def ranks(self, stage, folder, shape, options):
        return self._changed(lambda: rank_work.sharded(stage, folder, "float64", shape, "uneven", **options))

    def here(self, folder, options):
        return self._changed(lambda: alone(folder, "float64", "uneven", **options))


@pytest.mark.whole
@pytest.mark.parametrize(("replay", "minibatches", "epochs"), [
    ("off", 2, 1),
    pytest.param("learner", 1, 2, marks=pytest.mark.cluster),
    pytest.param("sampler", 2, 1, marks=pytest.mark.cluster),
])  # fmt: skip
def test_two_ranks_are_one_process(stages, folder, monkeypatch, replay, minibatches, epochs):
    stats = compared(stages, folder, monkeypatch, Shape(2), replay, minibatches=minibatches, epochs=epochs)
    assert {"train/expert_load_max", "train/experts_unused"} <= stats.keys()
    assert ("train/routes_replayed" in stats) is (replay != "off")


@pytest.mark.cluster
@pytest.mark.parametrize("replay", ["learner", "sampler"])
def test_ranks_that_share_rows_repeat_their_own_stretch(stages, folder, monkeypatch, replay):
    shape = Shape(2, context_parallel=2)
    compared(stages, folder, monkeypatch, shape, replay, minibatches=1, epochs=2)
