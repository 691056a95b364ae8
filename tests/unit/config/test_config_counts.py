"""Ranks and engines that are counted from GPUs, and GPUs of a job that nothing uses."""

from __future__ import annotations

import pytest
from each import each

from dapo.config.counts import gpus_used
from dapo.config.load import recipe_from_dict
from dapo.errors import RecipeError
from dapo.system import gpu_count

SMALL = {
    "model": {"path": "someone/model"},
    "data": {"train": [{"task": "signed_sum"}], "validation": [{"task": "signed_sum", "seed": 1}]},
}
AUTO = ("learner.ranks=auto", "rollout.engines=auto")
JOB = ("slurm.nodes=2", "slurm.options.gpus-per-node=8")
VLLM = "rollout.engine=vllm"
WIDE = (VLLM, "rollout.vllm.tensor_parallel_size=4")


def counted(*overrides):
    recipe = recipe_from_dict(SMALL, overrides).recipe
    return recipe.learner.ranks, recipe.rollout.engines


@pytest.fixture(autouse=True)
def four(monkeypatch):
    """A machine of four GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")


@each(
    ("overrides", "counts"),
    [
        (AUTO, (4, 4)),
        (AUTO[:1], (4, 1)),
        ((*AUTO[1:], "learner.ranks=2"), (2, 4)),
        ((*AUTO, VLLM, "rollout.vllm.tensor_parallel_size=2"), (4, 2)),
        ((*AUTO, "rollout.vllm.tensor_parallel_size=2"), (4, 4)),  # of vLLM's, which does not generate here
        ((*AUTO, *JOB), (16, 16)),
        ((*AUTO, *JOB, *WIDE), (16, 4)),
        ((*AUTO, "slurm.options.gpus-per-node=h100:8"), (8, 8)),
        ((*AUTO, "launch.backend=ray", "cluster.nodes=3", "cluster.gpus_per_node=2"), (6, 6)),
        ((*AUTO, "model.device=cpu"), (1, 1)),
        (("learner.ranks=auto", "rollout.engines=1", VLLM, "rollout.max_staleness=2"), (3, 1)),
        (("learner.ranks=3", "rollout.engines=auto", VLLM, "rollout.max_staleness=2"), (3, 1)),
        (("learner.ranks=8", "rollout.engines=auto", "rollout.max_staleness=2", *JOB, *WIDE), (8, 2)),
        ((*AUTO, "rollout.engine=vllm_server", "rollout.server.url=http://a:1"), (4, 1)),
    ],
)
def test_auto_is_all_gpus_of_the_machine_or_the_job(overrides, counts):
    assert counted(*overrides) == counts


def test_without_a_gpu_there_is_one_of_each(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert counted(*AUTO) == (1, 1)


def test_the_number_is_what_a_run_keeps():
    loaded = recipe_from_dict(SMALL, AUTO)
    assert "ranks: 4" in loaded.resolved
    assert "auto" not in loaded.resolved.partition("engines:")[2].splitlines()[0]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ((*AUTO, "launch.backend=ray"), ["learner.ranks", "cluster.nodes and cluster.gpus_per_node"]),
        ((*AUTO, VLLM, "rollout.max_staleness=2"), ["rollout.max_staleness", "auto takes the rest"]),
        (
            ("learner.ranks=4", AUTO[1], VLLM, "rollout.max_staleness=2"),
            ["rollout.engines", "4 GPUs, and none is left"],
        ),
        (("learner.ranks=all",), ["learner.ranks", "all"]),
    ],
)
def test_what_cannot_be_counted_is_refused(overrides, words):
    with pytest.raises(RecipeError) as refused:
        counted(*overrides)
    for word in words:
        assert word in str(refused.value)


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (JOB, "reserves 16 GPUs on 2 machines, and ranks and engines use 1: set learner.ranks: auto"),
        ((*JOB, "learner.ranks=8", "rollout.engines=4"), "ranks and engines use 8"),
        ((*JOB[1:], *AUTO, "model.device=cpu"), "reserves 8 GPUs, and model.device is cpu"),
        ((*JOB[1:], "learner.ranks=4", "rollout.engines=3", "rollout.max_staleness=1"), "ranks and engines use 7"),
    ],
)
def test_gpus_of_a_job_that_nothing_uses_are_refused(overrides, said):
    with pytest.raises(RecipeError) as refused:
        counted(*overrides)
    assert "slurm.options.gpus-per-node" in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize(
    "overrides",
    [
        (*JOB, "learner.ranks=16"),
        (*JOB, "learner.ranks=8", "rollout.engines=2", *WIDE, "rollout.max_staleness=2"),
        (*JOB, "slurm.setup=['vllm serve judge &']"),  # which may use the others
        (*JOB, "rollout.engine=vllm_server", "rollout.server.url=http://a:1"),
    ],
)
def test_gpus_of_a_job_that_something_uses_are_not(overrides):
    asked = dict(line.split("=", 1) for line in overrides)
    assert counted(*overrides) == (int(asked.get("learner.ranks", 1)), int(asked.get("rollout.engines", 1)))


def test_ranks_and_engines_share_gpus_where_they_take_turns():
    def used(*overrides):
        return gpus_used(recipe_from_dict(SMALL, overrides).recipe)

    both = ("learner.ranks=4", "rollout.engines=2", *WIDE)
    assert used(*both) == used(*both, "launch.backend=ray") == 8
    assert used(*both, "launch.backend=ray", "cluster.colocate=false") == used(*both, "rollout.max_staleness=2") == 12
    assert used(*both, "model.device=cpu") == 0


@pytest.mark.parametrize(
    ("named", "count"), [("0,1,2", 3), ("GPU-ab,GPU-cd", 2), ("0,-1,2", 1), ("", 0), ("-1", 0), (None, 2)]
)
def test_gpus_are_counted_as_cuda_sees_them(monkeypatch, tmp_path, named, count):
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-caps"):
        (tmp_path / name).touch()
    monkeypatch.setattr("dapo.system._DEVICES", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert gpu_count() == count


EIGHT = (VLLM, "rollout.vllm.kv_cache_dtype=fp8")


@pytest.mark.parametrize(
    "overrides",
    [("algorithm.old_logprobs=sampler",), ("algorithm.correction.kind=none",), ("algorithm.correction.kind=report",)],
)
def test_keys_and_values_of_8_bits_want_a_correction(overrides):
    with pytest.raises(RecipeError, match=r"rollout\.vllm\.kv_cache_dtype: .*\n.*algorithm\.correction\.kind=truncate"):
        counted(*EIGHT, *overrides)
    counted(*EIGHT)  # auto is the learner's numbers and truncation
    counted(*EIGHT[1:], "algorithm.correction.kind=none")  # another engine does not read it
