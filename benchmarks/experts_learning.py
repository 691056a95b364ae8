"""What router replay changes of training a small mixture of experts in bfloat16: gap, clip shares and accuracy.

    nice python benchmarks/experts_learning.py --work WORK         # continues where it was stopped

A Qwen3-MoE of random weights (2 layers, 8 experts, 2 of them for a token) first imitates the quickstart's sloppy
student in float32 (``dapo sft``), then trains with DAPO in bfloat16 from that start, once a seed and arm. The ratio
runs against the learner's own log-probabilities in all arms, four optimizer steps a rollout.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from paired import Measure, Settings, Study, at, main, mean_of

import dapo
from dapo.data.signed_sum import make_problem, sloppy_solution
from dapo.models.tiny import make_tiny_model
from dapo.observe.status import read_status

STEPS, EXAMPLES = 24, 10_000
REPLAY = "learner.router_replay"
ARMS: dict[str, Settings] = {
    "off": {REPLAY: "off"},
    "learner (R2)": {REPLAY: "learner"},
    "sampler (R3)": {REPLAY: "sampler"},
}


def start(folder: Path) -> Path:
    """Return the start of all runs, made if it is not there."""
    imitated = folder / "start-sft"
    status = read_status(imitated / "status.json")
    if status is None or status.state != "finished":
        random_model = make_tiny_model(
            folder / "random", "qwen3_moe", heads=2, kv_heads=2, tied=False, seed=1,
            num_experts=8, num_experts_per_tok=2, moe_intermediate_size=96, initializer_range=0.05,
        )  # fmt: skip
        problems = [make_problem(1_000_000, index, max_terms=5) for index in range(EXAMPLES)]
        examples = [
            {"prompt": one.prompt, "response": sloppy_solution(one, random.Random(n), rambler_share=0.0)}
            for n, one in enumerate(problems)
        ]
        file = folder / "examples.jsonl"
        file.write_text("".join(json.dumps(each) + "\n" for each in examples))
        dapo.sft(
            {
                "run": {"dir": str(folder), "name": "start", "seed": 1, "if_exists": "backup"},
                "model": {"path": str(random_model)},
                "sft": {"train": [{"path": str(file)}], "epochs": 2, "batch_size": 32, "learning_rate": 3e-3,
                        "warmup": 10, "every": 0},
                "learner": {"betas": [0.9, 0.95], "weight_decay": 0.0},
                "logging": {"console": "quiet"},
            }
        )  # fmt: skip
    return imitated / "export"


def run(folder: Path, task: str, name: str, seed: int, settings: Settings) -> None:
    """Make one run."""
    options = {"max_terms": 5}
    recipe: dict[str, Any] = {
        "run": {"dir": str(folder), "name": name, "seed": seed},
        "model": {"path": str(start(folder.parent)), "dtype": "bfloat16"},
        "data": {
            "train": [{"task": "signed_sum", "seed": 100 + seed, "size": 4000, "options": options}],
            "validation": [{"task": "signed_sum", "name": "held_out", "seed": 2, "size": 128, "options": options}],
        },
        "rewards": [{"name": "accuracy", "kind": "exact", "pattern": r"=\s*(-?\d+)\s*$"}],
        "rollout": {"prompts_per_step": 32, "group_size": 8, "max_response_tokens": 20},
        "algorithm": {
            "old_logprobs": "learner",
            "dynamic_sampling": {"mode": "off"},
            "overlong_punishment": {"enabled": False},
        },
        "learner": {"learning_rate": 2e-4, "betas": [0.9, 0.95], "weight_decay": 0.0, "minibatch_prompts": 8,
                    "warmup": 2},
        "validation": {"every": STEPS // 2, "samples": 4, "greedy": False},
        "trainer": {"steps": STEPS},
        "checkpoint": {"every": 0},
        "logging": {"rollouts": "none", "console": "quiet"},
    }  # fmt: skip
    dapo.train(recipe, **settings)


STUDY = Study(
    file="experts_learning",
    title="Router replay in training, in bfloat16",
    said="The rows differ in `learner.router_replay`. The gap is |learner - sampler| of a token's log-probability, "
    "where the learner computes the old log-probabilities.",
    seeds=(31, 32, 33, 34, 35, 36),
    arms={"sums of up to 5 terms": ARMS},
    measures={
        "sums of up to 5 terms": [
            Measure("mean gap, nats", mean_of("train/gap_mean", 1, STEPS), 1, 5),
            Measure("largest gap, nats", mean_of("train/gap_max", 1, STEPS), 1, 3),
            Measure("clipped low, %", mean_of("train/clip_low", 1, STEPS), 100, 3),
            Measure("clipped high, %", mean_of("train/clip_high", 1, STEPS), 100, 3),
            Measure("held-out accuracy, half way, %", at("validation/accuracy", STEPS // 2), 100),
            Measure("held-out accuracy, end, %", at("validation/accuracy", STEPS), 100),
        ]
    },
    run=run,
)
"""The claims are of the mean gap and of held-out accuracy at the end."""

if __name__ == "__main__":
    main(STUDY, __doc__)
