"""Checks of when a run ends and which checkpoint it keeps for its metric."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal

from dapo.config.check_data import source_name
from dapo.config.check_sft import sft_source_name
from dapo.config.faults import Broken
from dapo.config.schema import Recipe
from dapo.metrics.glossary import GLOSSARY, lookup

_OF_A_SET = "validation/<set>/"
Direction = Literal["auto", "highest", "lowest"]


def is_highest(metric: str, direction: Direction) -> bool:
    """Whether more of a metric is better; ``auto``: as its line in the glossary says (``check_stopping`` refuses one
    that says nothing)."""
    if direction != "auto":
        return direction == "highest"
    line = lookup(metric)
    return line is None or line.better != "lower"


def check_stopping(r: Recipe) -> Broken:
    """Yield metrics to wait for that no line of this run will hold."""
    early = r.trainer.early_stop
    for key, metric, direction in (
        ("checkpoint.best", r.checkpoint.best, r.checkpoint.best_is),
        ("trainer.early_stop.metric", early.metric, early.best_is),
    ):
        if metric is not None:
            yield from _metric(r, key, metric, direction)
    if r.checkpoint.dir is not None and not r.checkpoint.dir.strip():
        yield "checkpoint.dir", "expected the path of a folder, or null for RUN/checkpoints"


def _sets(r: Recipe) -> list[str]:
    """Held-out sets of this run."""
    if r.run.stage == "sft":
        return [sft_source_name(source) for source in r.sft.validation]
    return [source_name(source) for source in r.data.validation]


def _near(r: Recipe, metric: str) -> str:
    """Return similar metrics in words; "" for none."""
    names = {"<set>": _sets(r), "<name>": [reward.name for reward in r.rewards], "<k>": [str(r.validation.samples)]}
    found = list(GLOSSARY)
    for mark, own in names.items():
        found = [key.replace(mark, name) for key in found for name in (own if mark in key else [""])]
    near = get_close_matches(metric, found, 1, 0.7)
    return f"did you mean `{near[0]}`? " if near else ""


def _metric(r: Recipe, key: str, metric: str, direction: Direction) -> Broken:
    line = lookup(metric)
    section = key.rpartition(".")[0]
    if line is None:
        move = "`dapo explain validation/accuracy` explains one, docs/metrics.md has all"
        yield key, f"is no metric; {_near(r, metric)}{move}"
    elif line.better is None and direction == "auto":
        yield key, f"is neither good nor bad by itself: say which is better, {section}.best_is=highest or lowest"
    elif metric.endswith("/loss") and metric.startswith("validation/") and r.run.stage == "train":
        yield key, "is measured by `dapo sft` alone; training by reward has validation/accuracy"
    elif metric.startswith("validation/") and r.run.stage == "train" and not (r.data.validation and r.validation.every):
        yield key, "needs held-out problems (data.validation) and evaluations (validation.every): no step will have it"
    elif r.run.stage == "sft" and not metric.endswith("/loss"):
        return  # `check_sft` says more
    elif line.key.startswith(_OF_A_SET) and not any(metric.startswith(f"validation/{name}/") for name in _sets(r)):
        sets = ", ".join(_sets(r)) or "none"
        yield key, f"names no held-out set of this run; {_near(r, metric)}its sets: {sets}"
