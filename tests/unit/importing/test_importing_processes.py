"""Recipes of several GPUs and machines: ranks, engines and machines as lines, by hand from each trainer's own words."""

from __future__ import annotations

import json

import pytest
from each import each

from dapo.importing.convert import import_text

KEYS = {
    "learner.ranks",
    "learner.replicas",
    "learner.context_parallel",
    "rollout.engines",
    "rollout.vllm.tensor_parallel_size",
    "cluster.colocate",
    "slurm.nodes",
    "slurm.options",
}


def lines_of(system: str, settings: dict, devices: int | None = None) -> dict:
    made = import_text(json.dumps(settings), "a.json", system, devices)
    return {key: line.value for key, line in made.reading.lines.items() if key in KEYS}


@each(
    ("system", "settings", "lines"),
    [
        (  # eight machines of eight GPUs; engines of four; rows over four ranks; two copies of the model over 32 each
            "verl",
            {
                "trainer": {"nnodes": 8, "n_gpus_per_node": 8},
                "actor_rollout_ref": {
                    "rollout": {"tensor_model_parallel_size": 4},
                    "actor": {"ulysses_sequence_parallel_size": 4, "fsdp_config": {"fsdp_size": 32}},
                },
            },
            {
                "learner.ranks": 64,
                "learner.replicas": 2,
                "learner.context_parallel": 4,
                "rollout.engines": 16,
                "rollout.vllm.tensor_parallel_size": 4,
                "slurm.nodes": 8,
                "slurm.options": {"gpus-per-node": 8},
            },
        ),
        ("verl", {"trainer": {"nnodes": 1, "n_gpus_per_node": 1}}, {}),
        ("verl", {"actor_rollout_ref": {"rollout": {"n": 4}}}, {}),  # nothing said of machines, nothing written
        (
            "skyrl",
            {
                "trainer": {"placement": {"colocate_all": False, "policy_num_gpus_per_node": 4}},
                "generator": {"inference_engine": {"num_engines": 2, "tensor_parallel_size": 2}},
            },
            {"learner.ranks": 4, "rollout.engines": 2, "rollout.vllm.tensor_parallel_size": 2},
        ),
        (
            "areal",
            {"allocation_mode": "vllm:d4t2+d8", "cluster": {"n_nodes": 2}},
            {
                "learner.ranks": 8,
                "rollout.engines": 4,
                "rollout.vllm.tensor_parallel_size": 2,
                "cluster.colocate": False,
                "slurm.nodes": 2,
                "slurm.options": {"gpus-per-node": 8},
            },
        ),
        (
            "areal",
            {"actor": {"backend": "megatron:d2t2c2"}, "rollout": {"backend": "vllm:d4"}},
            {"learner.ranks": 8, "learner.context_parallel": 2, "rollout.engines": 4},
        ),
        (
            "nemo-rl",
            {
                "cluster": {"num_nodes": 4, "gpus_per_node": 8},
                "policy": {
                    "generation": {
                        "vllm_cfg": {"tensor_parallel_size": 2},
                        "colocated": {"enabled": False, "resources": {"num_nodes": 1, "gpus_per_node": 8}},
                    }
                },
            },
            {
                "learner.ranks": 24,
                "rollout.engines": 4,
                "rollout.vllm.tensor_parallel_size": 2,
                "slurm.nodes": 4,
                "slurm.options": {"gpus-per-node": 8},
            },
        ),
    ],
)
def test_machines_become_lines(system: str, settings: dict, lines: dict) -> None:
    assert lines_of(system, settings) == lines


@pytest.mark.parametrize("system", ["trl", "ms-swift"])
def test_processes_of_a_launcher_are_ranks(system: str) -> None:
    colocated = {"use_vllm": True, "vllm_mode": "colocate", "vllm_tensor_parallel_size": 2}
    assert lines_of(system, colocated, 8) == {
        "learner.ranks": 8,
        "rollout.engines": 4,
        "rollout.vllm.tensor_parallel_size": 2,
    }
    assert lines_of(system, {"use_vllm": True, "vllm_mode": "server"}, 8) == {"learner.ranks": 8}


def test_options_of_sbatch_stay_and_ranks_come_beside_them() -> None:
    script = (
        'COMMAND="uv run examples/run_grpo_math.py cluster.num_nodes=2 cluster.gpus_per_node=8" \\\n'
        "sbatch --nodes=2 --gres=gpu:8 --time=4:00:00 ray.sub\n"
    )
    made = import_text(script, "job.sh").reading.lines
    assert made["slurm.options"].value == {"gpus-per-node": 8, "time": "4:00:00"}
    assert (made["learner.ranks"].value, made["rollout.engines"].value) == (16, 16)
