"""Several runs side by side: which are seeds of one recipe, the band they make, and names to tell them apart."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dapo.report.page_data import Band
from dapo.report.reader import RunContents
from dapo.report.thin import POINTS, SPARSE, matrix_of, plain, stretches, thin

LEFT_OUT = ("total/", "time/", "memory/")
"""Metrics without a band: sums of others, and what differs with the machine."""


def labels_of(runs: Sequence[RunContents]) -> list[str]:
    """Return a name for each run, none twice: the folder's, with the folders above it where two are alike."""
    parts = [run.folder.path.resolve().parts for run in runs]
    for depth in range(1, max((len(p) for p in parts), default=0) + 1):
        labels = [run.name if depth == 1 else "/".join(p[-depth:]) for run, p in zip(runs, parts, strict=True)]
        if len(set(labels)) == len(labels):
            return labels
    labels = []
    for run in runs:  # the same folder twice
        label, number = run.name, 1
        while label in labels:
            number += 1
            label = f"{run.name} ({number})"
        labels.append(label)
    return labels


def families(runs: Sequence[RunContents]) -> dict[str, list[RunContents]]:
    """Return runs of one recipe with different seeds, where there are two and more.

    Two runs of the same seed (one that was killed, say, and its successor) are no sample of seeds: they make no family.
    """
    found: dict[str, list[RunContents]] = defaultdict(list)
    for run in runs:
        if run.family and run.rows:
            found[run.family].append(run)
    return {
        family: members for family, members in found.items() if len({run.seed for run in members}) == len(members) > 1
    }


def bands_of(runs: Sequence[RunContents], points: int = POINTS) -> dict[str, dict[str, Band]]:
    """By family and metric: mean, least and greatest over its runs, at the steps at which all of them measured it.

    A run that ended before half of the longest one, or that never has the metric, silences no other.
    """
    found: dict[str, dict[str, Band]] = {}
    for family, members in families(runs).items():
        longest = max(run.last_step for run in members)
        members = [run for run in members if 2 * run.last_step >= longest]
        if len(members) > 1:
            found[family] = _bands(members, points)
    return found


def _bands(runs: list[RunContents], points: int) -> dict[str, Band]:
    common = sorted(set.intersection(*({row["step"] for row in run.rows} for run in runs)))
    if not common:
        return {}
    chosen = set(common)
    rows = [[row for row in run.rows if row["step"] in chosen] for run in runs]
    keys = [
        key
        for key in dict.fromkeys(key for row in itertools.chain(*rows) for key in row)
        if key != "step" and not key.startswith(LEFT_OUT)
    ]
    seeds = np.stack([matrix_of(each, keys)[1] for each in rows])  # [runs, steps, keys]
    silent = np.asarray(np.isnan(seeds).all(axis=1), np.bool_)  # [runs, keys]
    seeds[:, (np.isnan(seeds) & ~silent[:, None]).any(axis=0)] = np.nan
    sparse = [n for n, key in enumerate(keys) if key.startswith(SPARSE)]
    alone = np.asarray((~np.isnan(seeds[:, :, sparse])).any(axis=(0, 2)), np.bool_)
    starts, marks = stretches(len(common), points, alone)
    means = np.stack([thin(seed, starts)[0] for seed in seeds])  # of each run, over each stretch
    steps = np.array(common)[marks]
    bands: dict[str, Band] = {}
    for n, key in enumerate(keys):
        having = means[~silent[:, n], :, n]
        known = ~np.isnan(having[:1]).all(axis=0)
        if known.any() and len(having) > 1:
            values = having[:, known]
            bands[key] = {
                "steps": steps[known].tolist(),
                "mean": plain((values / len(values)).sum(axis=0)),
                "low": plain(values.min(axis=0)),
                "high": plain(values.max(axis=0)),
            }
    return bands
