"""Whole runs over a pool of engines, as one compares them."""

from __future__ import annotations

import re

from small_run import dapo

from dapo.observe.metrics import read_metrics, without_clock

OVER = ("rollout.engines=2", "rollout.slots=8", "rollout.turn_steps=4")
_OF_THE_ENGINES = re.compile(r"cluster/|decode_steps|prefill_tokens|slot_use")
"""What a lost engine does change: its own work, which it did again."""


def train(recipe, name, *over) -> list[dict[str, float]]:
    """The rows of a run's metrics."""
    dapo("train", recipe, *OVER, f"run.name={name}", "logging.console=quiet", *over)
    return read_metrics(recipe.parent / name / "metrics.jsonl")


def computed(rows) -> list[dict[str, float]]:
    """What does not depend on the clock, nor on the engines' own counters."""
    return [
        {key: value for key, value in without_clock(row).items() if not _OF_THE_ENGINES.search(key)} for row in rows
    ]
