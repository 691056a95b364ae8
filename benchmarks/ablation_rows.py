"""What the ablation runs: tasks, rows and seeds, all settled before the first run that counts.

A row is a set of settings under ``algorithm`` on top of one recipe, which is the same for all rows of a task. The
ladder begins with GRPO and switches one part on after the other, in the order of the paper's table 1; each row of the
second half takes one part out of the whole. Everything else (+1/-1 rewards, advantages, optimiser) stays as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ablation_bases import Base

from dapo.config import LoadedRecipe, recipe_from_dict
from dapo.models.warmup import WarmupSettings

SEEDS = tuple(range(101, 117))
"""Of the order of prompts and of what is sampled. Tasks and settings were chosen with seeds below 100."""
SMALL, SMALL_VARIANTS = 8, 4  # of them, with --small: for the parts, and for the variants
AGAIN = tuple(range(1701, 1709))
"""Of a repetition, listed before it ran: no other use was made of them."""

Settings = Mapping[str, Any]

PARTS: dict[str, tuple[Settings, Settings]] = {
    "overlong filtering": ({"overlong_filtering": False}, {"overlong_filtering": True}),
    "clip-higher": ({"clip.high": 0.2}, {"clip.high": 0.28}),
    "soft overlong punishment": ({"overlong_punishment.enabled": False}, {"overlong_punishment.enabled": True}),
    "token-level loss": ({"loss.reduction": "sequence_mean"}, {"loss.reduction": "token_mean"}),
    "dynamic sampling": ({"dynamic_sampling.mode": "off"}, {"dynamic_sampling.mode": "filter"}),
}
"""Each part of DAPO in the paper's order: its settings where it is off, and where it is on."""
GRPO, FULL = "GRPO", "DAPO"


def without(part: str) -> str:
    """The row of the whole recipe less ``part``. Less dynamic sampling it is the last but one of the ladder."""
    return rung(len(PARTS) - 1) if part == list(PARTS)[-1] else f"DAPO less {part}"


def rung(number: int) -> str:
    """The ladder's row with the first ``number`` parts."""
    return GRPO if not number else FULL if number == len(PARTS) else f"+ {list(PARTS)[number - 1]}"


def part_rows() -> dict[str, Settings]:
    """Settings by the row's name: the ladder, then the whole less one part each."""
    names = list(PARTS)
    rows: dict[str, Settings] = {}
    for number in range(len(names) + 1):
        rows[rung(number)] = _merged({name: n < number for n, name in enumerate(names)})
    for part in names[:-1]:
        rows[without(part)] = _merged({name: name != part for name in names})
    return rows


def _merged(on: Mapping[str, bool]) -> Settings:
    return {key: value for part, is_on in on.items() for key, value in PARTS[part][is_on].items()}


SAMPLING = "dynamic_sampling"
BESIDE = {"rollout.turn_steps": 8, "rollout.overlap_turns": 2}
"""With generation beside learning: two turns of eight decode steps while the learner works, whatever the clock says, so
that such a run is a function of its recipe too."""
VARIANTS: dict[str, Settings] = {
    FULL: {},
    "GSPO": {"loss.ratio": "sequence", "loss.reduction": "sequence_mean", "clip.low": 3e-4, "clip.high": 4e-4},
    "CISPO": {"loss.kind": "cispo", "loss.cap": 5.0},
    "Dr. GRPO": {"loss.reduction": "constant", "advantage.scale": "none"},
    "KL 0.01": {"kl_coefficient": 0.01},
    "TIS": {"old_logprobs": "learner", "correction.kind": "truncate"},
    "discard": {f"{SAMPLING}.surplus": "discard", f"{SAMPLING}.unfinished": "discard"},
    "lookahead 0": {f"{SAMPLING}.lookahead": 0.0},
    "lookahead 1": {f"{SAMPLING}.lookahead": 1.0},
    "lookahead 2": {f"{SAMPLING}.lookahead": 2.0},
    "S = 1": BESIDE | {"rollout.max_staleness": 1},
    "S = 2": BESIDE | {"rollout.max_staleness": 2},
    "S = 4": BESIDE | {"rollout.max_staleness": 4},
}
"""Each changes DAPO's whole recipe in one respect. DAPO itself carries over, has a lookahead of 0.5 and S = 0."""


@dataclass(frozen=True, slots=True)
class Task:
    """Problems, a base model, and the sizes of a run."""

    title: str
    said: str
    base: Base
    sources: Mapping[str, Settings]  # options of signed_sum by the source's name, with its weight
    response: int  # tokens at most
    cache: int  # of them, over which the soft punishment grows
    steps: int = 40
    prompts: int = 16
    minibatch: int = 4
    learner: Settings = field(default_factory=dict)
    held_out: int = 96  # problems, over all sources
    group: int = 8
    every: int = 10  # steps between two evaluations
    also: Settings = field(default_factory=dict)  # of all rows, as a row's settings
    scorer: str | None = None  # a class of ablation_scorers.py; None: the recipe's reward


TASKS = {
    "rare": Task(
        "Rare success",
        "sums of 6 to 9 terms, each subtracted where the total allows it: the base model is right in one response of "
        "twenty. Eight optimiser steps a rollout.",
        "builtin/signed-sum",
        {"hard": {"min_terms": 6, "max_terms": 9, "minus_probability": 1.0}},
        response=32,
        cache=12,
        minibatch=2,
    ),
    "rambles": Task(
        "A base model that rambles",
        "sums of 3 to 6 terms; six in ten of the demonstrations that the base model imitates start over again and "
        "again, so a quarter of its responses are cut off at 48 tokens.",
        WarmupSettings(examples=24_000, max_terms=6, rambler_share=0.6, restart_probability=0.92, max_words=120),
        {"short": {"min_terms": 3, "max_terms": 6}},
        response=48,
        cache=24,
    ),
    "mixed": Task(
        "Solved or hopeless",
        "two fifths of the problems are solved (3 terms, none subtracted), two fifths hopeless (9 terms, all "
        "subtracted), a fifth lies between (4 to 6 terms).",
        "builtin/signed-sum",
        {
            "solved": {"min_terms": 3, "max_terms": 3, "minus_probability": 0.0, "weight": 2.0},
            "between": {"min_terms": 4, "max_terms": 6, "minus_probability": 0.5, "weight": 1.0},
            "hopeless": {"min_terms": 9, "max_terms": 9, "minus_probability": 1.0, "weight": 2.0},
        },
        response=32,
        cache=12,
        held_out=120,
    ),
}


@dataclass(frozen=True, slots=True)
class Table:
    """Rows that are compared with each other, the tasks that they run on, and the seeds."""

    rows: Mapping[str, Settings]
    tasks: Mapping[str, Task]
    reference: str  # its row comes with every choice of rows
    seeds: tuple[int, ...] = SEEDS
    small: int = SMALL  # of the seeds, with --small
    again: tuple[int, ...] = AGAIN  # the seeds of a repetition, listed before it ran


def recipe_of(task: Task, settings: Settings, seed: int, model: str, folder: str, steps: int = 0) -> LoadedRecipe:
    """Return the recipe of one run; settings without ``rollout.`` or ``learner.`` are those of ``algorithm``."""
    given: dict[str, Any] = {
        "run": {"dir": folder, "name": "run", "seed": seed},
        "model": {"path": model},
        "data": {"train": _sources(task, held_out=False), "validation": _sources(task, held_out=True)},
        "rewards": [{"name": "accuracy", "kind": "exact", "pattern": r"=\s*(-?\d+)\s*$"}],
        "rollout": {
            "prompts_per_step": task.prompts,
            "group_size": task.group,
            "max_response_tokens": task.response,
        },
        "algorithm": {"overlong_punishment": {"cache_length": task.cache}},
        "learner": {
            "learning_rate": 5e-4,
            "betas": [0.9, 0.95],
            "weight_decay": 0.0,
            "minibatch_prompts": task.minibatch,
            "schedule_unit": "optimizer",
            "warmup": 10,
            **task.learner,
        },
        "validation": {"every": task.every, "samples": 8, "greedy": False},
        "trainer": {"steps": steps or task.steps},
        "checkpoint": {"every": 0},
        "logging": {"rollouts": "none", "tokens": 0, "spans": False, "console": "quiet", "samples_every": 0},
    }
    if task.scorer is not None:
        given["scorer"] = f"ablation_scorers:{task.scorer}"
        del given["rewards"]
    keys = {
        key if key.startswith(("rollout.", "learner.")) else f"algorithm.{key}": value
        for key, value in {**task.also, **settings}.items()
    }
    return recipe_from_dict(given, [f"{key}={json.dumps(value)}" for key, value in keys.items()])


def _sources(task: Task, held_out: bool) -> list[dict[str, Any]]:
    found = []
    for name, options in task.sources.items():
        source = {"task": "signed_sum", "name": name, "seed": 2 if held_out else 1}
        source["size"] = task.held_out // len(task.sources) if held_out else 4000
        if not held_out and "weight" in options:
            source["weight"] = options["weight"]
        found.append(source | {"options": {key: value for key, value in options.items() if key != "weight"}})
    return found
