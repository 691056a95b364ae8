"""What an agent's hint is worth to training: ``examples/agent.py``, beside a control whose hint is always the same.

    nice python benchmarks/agents_learning.py --work WORK          # continues where it was stopped

The agent is written with the ``openai`` package and speaks to the run's own endpoint. The model is the quickstart's.
The arms of a seed begin with the same weights and see the same problems in the same order.
"""

from __future__ import annotations

import sys
from pathlib import Path

from paired import Measure, Settings, Study, at, main, mean_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # the example is a module of the repository

from examples.agent import play

STEPS = 20
CAP = "algorithm.dynamic_sampling.cap"  # the control solves few sums: a step then trains on the groups that there are


def run(folder: Path, task: str, name: str, seed: int, settings: Settings) -> None:
    """Make one run."""
    own = {"run.dir": str(folder), "data.train.0.seed": 100 + seed, "logging.console": "quiet"}
    play(name, seed, STEPS, {**own, f"{CAP}.groups": 6, f"{CAP}.then": "train_partial", **settings})


STUDY = Study(
    file="agents_learning",
    title="Learning as an agent",
    said="Two tries at a sum of up to 4 terms, 64 held-out problems, four episodes each. After a wrong try the agent "
    "says how far off it was; the control's hint is always `+1`.",
    seeds=(41, 42, 43, 44),
    arms={
        "sums by an agent": {
            "control": {"environment.args.mute": True},
            "the agent hints": {"environment.args.mute": False},
        }
    },
    measures={
        "sums by an agent": [
            Measure("held-out accuracy before, %", at("validation/accuracy", 0), 100),
            Measure("half way, %", at("validation/accuracy", STEPS // 2), 100),
            Measure("at the end, %", at("validation/accuracy", STEPS), 100),
            Measure("turns of an episode at the end", mean_of("environment/turns_mean", STEPS - 3, STEPS), 1, 2),
        ]
    },
    run=run,
)
"""The claim is of held-out accuracy at the end."""

if __name__ == "__main__":
    main(STUDY, __doc__)
