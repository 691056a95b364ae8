"""What a judge's mistakes change of learning: a stand-in judge that is right, and ones that err in some responses.

    nice python benchmarks/judge_learning.py --work WORK           # continues where it was stopped

The judge is asked over HTTP (``kind: service``) and alone decides what is trained on. It answers the quickstart's sums;
one that errs says the opposite of the truth, always of the same responses. Held-out accuracy is exact in all arms.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from judge import serving
from paired import Measure, Settings, Study, at, main, mean_of

import dapo

STEPS = 24


def run(folder: Path, task: str, name: str, seed: int, settings: Settings) -> None:
    """Make one run, with a judge of its own."""
    with serving(errs=float(str(settings["errs"]))) as judge:
        dapo.train(recipe(folder, name, seed, f"http://127.0.0.1:{judge.server_port}/score"))


def recipe(folder: Path, name: str, seed: int, url: str) -> dict[str, Any]:
    exact = {"name": "accuracy", "kind": "exact", "pattern": r"=\s*(-?\d+)\s*$", "weight": 0}
    asked = {"name": "judge", "kind": "service", "url": url, "batch": 64}
    return {
        "run": {"dir": str(folder), "name": name, "seed": seed},
        "model": {"path": "builtin/signed-sum"},
        "data": {
            "train": [{"task": "signed_sum", "seed": 100 + seed, "size": 4000}],
            "validation": [{"task": "signed_sum", "name": "held_out", "seed": 2, "size": 128}],
        },
        "rewards": [exact, asked],
        "rollout": {"prompts_per_step": 16, "group_size": 8, "max_response_tokens": 32},
        "algorithm": {
            "dynamic_sampling": {"metric": "judge"},
            "overlong_punishment": {"cache_length": 12},
        },
        "learner": {
            "learning_rate": 5e-4,
            "betas": [0.9, 0.95],
            "weight_decay": 0.0,
            "minibatch_prompts": 4,
            "schedule_unit": "optimizer",
            "warmup": 10,
        },
        "validation": {"every": STEPS // 2, "samples": 4, "greedy": False},
        "trainer": {"steps": STEPS},
        "checkpoint": {"every": 0},
        "logging": {"rollouts": "none", "console": "quiet"},
    }


STUDY = Study(
    file="judge_learning",
    title="Learning from a judge that errs",
    said="128 held-out sums, four sampled responses each. A judge that errs says the opposite of the truth in that "
    "share of the responses.",
    seeds=(51, 52, 53, 54),
    arms={
        "the quickstart's sums": {
            "always right": {"errs": 0.0},
            "errs in one of ten": {"errs": 0.1},
            "errs in three of ten": {"errs": 0.3},
        }
    },
    measures={
        "the quickstart's sums": [
            Measure("held-out accuracy before, %", at("validation/accuracy", 0), 100),
            Measure("half way, %", at("validation/accuracy", STEPS // 2), 100),
            Measure("at the end, %", at("validation/accuracy", STEPS), 100),
            Measure("groups kept, %", mean_of("groups/kept_share", 1, STEPS), 100, 0),
        ]
    },
    run=run,
)
"""The claim is of held-out accuracy at the end."""

if __name__ == "__main__":
    main(STUDY, __doc__)
