"""Accuracy and verdicts by data source, where a run trains on several."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from dapo.types.batch import Group, Metrics
from dapo.types.enums import Verdict


def source_metrics(groups: Sequence[Group], sources: Sequence[str], levels: Mapping[str, int]) -> Metrics:
    """``source/<set>/...`` of the groups judged in a step.

    Args:
        groups: all of them.
        sources: names of the training sources; one alone has no metrics of its own.
        levels: of those that have levels.
    """
    out: Metrics = {f"source/{name}/level": float(level) for name, level in levels.items()}
    if len(sources) < 2:
        return out
    for name in sources:
        own = [group for group in groups if group.prompt.source == name]
        accuracies = np.concatenate([group.accuracies() for group in own]) if own else np.zeros(0)
        scored = accuracies[~np.isnan(accuracies)]
        out[f"source/{name}/groups"] = float(len(own))
        out[f"source/{name}/accuracy"] = float(scored.mean()) if len(scored) else math.nan
        for verdict in (Verdict.KEPT, Verdict.ALL_CORRECT, Verdict.ALL_WRONG):
            share = sum(group.verdict is verdict for group in own) / len(own) if own else math.nan
            out[f"source/{name}/{verdict}_share"] = share
    return out
