"""What the pace of replies changes of learning through turns: lag, carrying unfinished episodes over, and overlap.

    nice python benchmarks/environment_pace.py --work WORK         # continues where it was stopped

The tasks are those of ``environments.py``: the guessing game from random weights, and products by a calculator from
imitated examples, shorter and with 64 slots, fewer than there are episodes. The arms of a seed begin with the same
weights and see the same problems in the same order. A guess is one token, which comes with the pass over its prompt and
takes no decode step, so ``lag`` changes nothing of the game, and its arms are of products alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from environments import game, products
from paired import Measure, Settings, Study, at, main, mean_of

from dapo.observe.metrics import Row

CARRY, LAG = "algorithm.dynamic_sampling", "environment.lag"
BOTH: dict[str, Settings] = {
    "lag 2": {LAG: 2},
    "nothing carried over": {LAG: 2, f"{CARRY}.unfinished": "discard", f"{CARRY}.surplus": "discard"},
    "overlap, staleness 1": {LAG: 2, "rollout.max_staleness": 1},
}
LAGS: dict[str, Settings] = {"lag 0": {LAG: 0}, "lag 16": {LAG: 16}}
STEPS = {"game": 60, "products": 16}
ALL: Settings = {
    "rollout.slots": 64,
    "logging.console": "quiet",
    "logging.rollouts": "none",
    "validation.samples": 2,
}


def run(folder: Path, task: str, name: str, seed: int, settings: Settings) -> None:
    """Make one run."""
    every = STEPS[task] // 4
    changes = {**ALL, "trainer.steps": STEPS[task], "validation.every": every, **settings}
    (game if task == "game" else products)(folder, name, seed, changes)


def measures(steps: int) -> list[Measure]:
    """Return what is read of a run of so many steps."""
    return [
        Measure("held-out accuracy, half way, %", at("validation/accuracy", steps // 2), 100),
        Measure("held-out accuracy, end, %", at("validation/accuracy", steps), 100),
        Measure("training accuracy, all steps, %", mean_of("reward/accuracy", 1, steps), 100),
        Measure("decode steps a training step", mean_of("sampling/decode_steps", 1, steps), 1, 0),
        Measure("generated over trained tokens", generated_over_trained, 1, 2),
        Measure("age of tokens, versions", mean_of("policy/staleness_mean", 1, steps), 1, 2),
    ]


def generated_over_trained(rows: Sequence[Row]) -> float:
    """Return generated tokens for each trained one, over the whole run."""
    made, used = (sum(row.get(f"sampling/{key}_tokens") or 0.0 for row in rows) for key in ("generated", "trained"))
    return made / used


STUDY = Study(
    file="environment_pace",
    title="Turns: lag, carry-over and overlap",
    said="`environment.lag` is the number of engine steps after which a reply takes effect. *Nothing carried over*: "
    "what is unfinished or left over at the end of a step is discarded. *Overlap*: episodes go on while the learner "
    "works, in processes of their own.",
    seeds=(21, 22, 23, 24, 25),
    arms={"game": BOTH, "products": BOTH | LAGS},
    measures={task: measures(steps) for task, steps in STEPS.items()},
    run=run,
)
"""The claim is of held-out accuracy at the end."""

if __name__ == "__main__":
    main(STUDY, __doc__)
