"""Settings in which single parts of DAPO act: tasks, rows, seeds and measures, settled before the first counted run.

``parts`` and ``variants`` of ``ablation_rows.py`` compare the whole recipe. Its upper clip bound hardly acts there, so
each table here has a task in which one part does much. Bounds, rates and base models were chosen on seeds below 100.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from ablation_bases import AnyOrder, RarelyWorks
from ablation_rows import TASKS, Table, Task

Curve = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Measure:
    """One number of a run."""

    heading: str
    of: Callable[[Curve, float], float]  # of a curve and the least generated tokens that a row of its seed has
    factor: float = 1.0
    digits: int = 1
    page: bool = True  # also in the short table of docs/evidence.md


def over_steps(name: str, first: int, last: int) -> Callable[[Curve, float], float]:
    """Return the mean of what training recorded from step ``first`` to ``last``."""

    def of(curve: Curve, tokens: float) -> float:
        values = [value for value in curve["steps"][name][first - 1 : last] if value is not None]
        return float(np.mean(values)) if values else float("nan")

    return of


def at_step(name: str, step: int) -> Callable[[Curve, float], float]:
    """Return what the evaluation after ``step`` found."""
    return lambda curve, tokens: float(curve["points"][name][curve["points"]["step"].index(step)])


def at_tokens(share: float) -> Callable[[Curve, float], float]:
    """Return held-out accuracy at a share of the common generated tokens, on the line between two evaluations."""
    return lambda curve, tokens: float(
        np.interp(share * tokens, curve["points"]["tokens"], curve["points"]["accuracy"])
    )


def processor_seconds(curve: Curve, tokens: float) -> float:
    return float(curve["points"]["cpu"][-1])


BASE_SEEDS = (1, 3)
"""Of the base models of ``clip_higher``. That of seed 2 is hardly ever right when it works, so working is no better."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Focused(Table):
    """A table with measures of its own."""

    title: str
    said: str
    pairs: tuple[tuple[str, str], ...]  # the first row less the second, seed by seed
    measures: Mapping[str, Measure]
    panels: tuple[tuple[str, str, str, float], ...]  # of the figure: the axis, the curve's name, its label, its factor


def _rarely_works(seed: int) -> Task:
    return Task(
        f"Base model {seed}",
        "sums of 5 to 7 terms; the base model nearly always guesses, and works step by step in 6 to 10 % of its "
        "responses, which are right more often. 16 optimizer steps a rollout, learning rate 3e-4.",
        RarelyWorks(seed),
        {"hard": {"min_terms": 5, "max_terms": 7}},
        response=18,
        cache=4,
        steps=20,
        minibatch=1,
        group=16,
        learner={"learning_rate": 3e-4},
        held_out=64,
        every=20,
        also={"dynamic_sampling.mode": "off", "overlong_punishment.enabled": False},
        scorer="Worked",
    )


CLIP_HIGHER = Focused(
    title="Clip-higher where the upper bound acts",
    said="A rare strategy is better than the usual one. The rows differ in `clip.high` alone; `clip.low` is 0.2. "
    "Measures are of the responses that training sampled.",
    rows={str(high): {"clip.low": 0.2, "clip.high": high} for high in (0.2, 0.28, 0.4, 10)},
    tasks={f"rarely-works-{seed}": _rarely_works(seed) for seed in BASE_SEEDS},
    reference="0.2",
    pairs=(("0.28", "0.2"), ("0.4", "0.2"), ("10", "0.2")),
    seeds=tuple(range(301, 325)),
    again=tuple(range(1301, 1325)),
    measures={
        "early": Measure("accuracy, steps 1 to 8, %", over_steps("training_accuracy", 1, 8), 100),
        "late": Measure("accuracy, steps 13 to 20, %", over_steps("training_accuracy", 13, 20), 100),
        "worked": Measure("worked, steps 1 to 8, %", over_steps("worked", 1, 8), 100),
        "clip_high": Measure("clipped high, steps 1 to 8, %", over_steps("clip_high", 1, 8), 100, 2),
        "entropy": Measure("entropy, steps 1 to 8, nats", over_steps("entropy", 1, 8), 1, 3),
        "entropy_late": Measure("entropy, steps 13 to 20, nats", over_steps("entropy", 13, 20), 1, 3, page=False),
        "length": Measure("length, steps 1 to 8", over_steps("finished_length", 1, 8), page=False),
        "held_out": Measure("held-out accuracy at the end, %", at_step("accuracy", 20), 100, page=False),
    },
    panels=(
        ("step", "training_accuracy", "training accuracy, %", 100),
        ("step", "worked", "worked responses, %", 100),
        ("step", "clip_high", "clipped high, % of tokens", 100),
        ("step", "entropy", "entropy, nats", 1),
    ),
)
"""The claim is of accuracy in steps 1 to 8."""

REDUCTIONS = ("token_mean", "sequence_mean")
LENGTHS = {"overlong_filtering": False, "overlong_punishment.enabled": False}
WITH = " with filter and punishment"
TOKEN_LEVEL = Focused(
    title="Token-level loss where responses ramble",
    said="The rows weigh tokens alike (`token_mean`) or responses alike (`sequence_mean`), without overlong filtering "
    "and soft overlong punishment, and with both. Dynamic sampling is off.",
    rows={row: {"loss.reduction": row, **LENGTHS} for row in REDUCTIONS}
    | {row + WITH: {"loss.reduction": row} for row in REDUCTIONS},
    tasks={
        "rambles-far": Task(
            "A base model that rambles, up to 100 tokens",
            "sums of 3 to 6 terms and the base model of `rambles`, with a limit of 100 tokens. Eight optimizer steps a "
            "rollout, learning rate 2e-4.",
            TASKS["rambles"].base,
            TASKS["rambles"].sources,
            response=100,
            cache=50,
            minibatch=2,
            learner={"learning_rate": 2e-4},
            every=8,
            also={"dynamic_sampling.mode": "off"},
        )
    },
    reference="sequence_mean",
    pairs=(REDUCTIONS, (REDUCTIONS[0] + WITH, REDUCTIONS[1] + WITH)),
    seeds=tuple(range(401, 417)),
    again=tuple(range(1401, 1409)),
    measures={
        "held_out_8": Measure("held-out length, step 8", at_step("length", 8)),
        "held_out_40": Measure("held-out length, step 40", at_step("length", 40)),
        "length": Measure("length in training", over_steps("finished_length", 1, 40), page=False),
        "accuracy_8": Measure("held-out accuracy, step 8, %", at_step("accuracy", 8), 100, page=False),
        "accuracy_40": Measure("held-out accuracy, step 40, %", at_step("accuracy", 40), 100),
        "cut_off": Measure("cut off, step 8, %", at_step("truncated", 8), 100, page=False),
        "clip_high": Measure("clipped high, %", over_steps("clip_high", 1, 40), 100, 2, page=False),
        "entropy": Measure("entropy, steps 31 to 40, nats", over_steps("entropy", 31, 40), 1, 3, page=False),
    },
    panels=(
        ("step", "finished_length", "length in training, tokens", 1),
        ("step", "length", "held-out length, tokens", 1),
        ("step", "accuracy", "held-out accuracy, %", 100),
    ),
)
"""The claim is of the held-out length at step 8."""

COIN = Focused(
    title="Clip-higher and entropy under a reward by chance",
    said="A coin decides each reward, so nothing can be learnt, and entropy changes by the noise of the updates alone. "
    "The rows differ in `clip.high`.",
    rows={str(high): {"clip.low": 0.2, "clip.high": high} for high in (0.2, 0.28)},
    tasks={
        "coin": Task(
            "A coin as reward",
            "sums of 4 to 6 terms; the base model adds them in an order of chance. 16 optimizer steps a rollout, "
            "learning rate 3e-4.",
            AnyOrder(1),
            {"any": {"min_terms": 4, "max_terms": 6, "minus_probability": 0.5}},
            response=24,
            cache=8,
            steps=120,
            minibatch=1,
            learner={"learning_rate": 3e-4},
            held_out=16,
            every=120,
            also={"dynamic_sampling.mode": "off", "overlong_punishment.enabled": False},
            scorer="Coin",
        )
    },
    reference="0.2",
    pairs=(("0.28", "0.2"),),
    seeds=tuple(range(501, 533)),
    again=tuple(range(1501, 1517)),
    measures={
        "entropy": Measure("entropy, steps 97 to 120, nats", over_steps("entropy", 97, 120), 1, 3),
        "start": Measure("steps 1 to 8, nats", over_steps("entropy", 1, 8), 1, 3, page=False),
        "clip_high": Measure("clipped high, %", over_steps("clip_high", 1, 120), 100, 2),
        "length": Measure("length, steps 97 to 120", over_steps("finished_length", 97, 120), page=False),
        "accuracy": Measure("accuracy, steps 97 to 120, %", over_steps("training_accuracy", 97, 120), 100),
    },
    panels=(("step", "entropy", "entropy, nats", 1), ("step", "clip_high", "clipped high, % of tokens", 100)),
)
"""The claim is of entropy in steps 97 to 120."""

ONE, TWO, FOUR, SMALLER = "1 pass", "2 passes", "4 passes", "1 pass, minibatches of 2"
PASSES = Focused(
    title="Passes over a rollout",
    said="The rows differ in `learner.epochs_per_rollout`. The last row takes as many optimizer steps as four passes, "
    "each on a quarter of the prompts.",
    rows={
        ONE: {},
        TWO: {"learner.epochs_per_rollout": 2},
        FOUR: {"learner.epochs_per_rollout": 4},
        SMALLER: {"learner.minibatch_prompts": 2},
    },
    tasks={
        "quickstart": Task(
            "The quickstart",
            "sums of 3 to 8 terms with the quickstart's model, batch (32 prompts, 16 responses each), minibatches of 8 "
            "prompts and learning rate, 40 steps.",
            "builtin/signed-sum",
            {"signed_sum": {}},
            response=32,
            cache=12,
            prompts=32,
            minibatch=8,
            group=16,
            held_out=128,
            every=5,
        )
    },
    reference=ONE,
    pairs=((TWO, ONE), (FOUR, ONE), (SMALLER, ONE), (FOUR, SMALLER)),
    seeds=tuple(range(601, 606)),
    again=tuple(range(1601, 1606)),
    small=3,
    measures={
        "quarter": Measure("accuracy at 25 % of the tokens, %", at_tokens(0.25), 100),
        "half": Measure("at 50 %", at_tokens(0.5), 100, page=False),
        "all": Measure("at 100 %", at_tokens(1.0), 100),
        "clip_high": Measure("clipped high, %", over_steps("clip_high", 1, 40), 100, 2, page=False),
        "clip_low": Measure("clipped low, %", over_steps("clip_low", 1, 40), 100, 2, page=False),
        "entropy": Measure("entropy, steps 31 to 40, nats", over_steps("entropy", 31, 40), 1, 3, page=False),
        "pass": Measure("pass@8 at the end, %", at_step("pass", 40), 100, page=False),
        "length": Measure("held-out length at the end", at_step("length", 40), page=False),
        "kept": Measure("groups kept, %", over_steps("kept", 1, 40), 100, 0, page=False),
        "tokens": Measure(
            "tokens, thousands", lambda curve, tokens: curve["points"]["tokens"][-1], 1e-3, 0, page=False
        ),
        "seconds": Measure("processor seconds", processor_seconds),
    },
    panels=(
        ("tokens", "accuracy", "held-out accuracy, %", 100),
        ("step", "clip_high", "clipped high, % of tokens", 100),
        ("step", "entropy", "entropy, nats", 1),
    ),
)

FOCUSED: dict[str, Focused] = {
    "clip_higher": CLIP_HIGHER,
    "token_level": TOKEN_LEVEL,
    "coin": COIN,
    "passes": PASSES,
}
