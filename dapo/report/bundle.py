"""From runs to the ``PageData`` that a page shows."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from dapo.metrics.charts import charts_of
from dapo.metrics.glossary import lookup
from dapo.observe.machine import dapo_version
from dapo.report.choose import choose_rollouts, live_rollouts
from dapo.report.compare import bands_of, labels_of
from dapo.report.comparison_words import compare_families
from dapo.report.machines import without_repeats
from dapo.report.outcome import sentences_of, status_of, tiles_of
from dapo.report.page_data import Definition, PageData, RecipeView, RunView
from dapo.report.reader import RunContents
from dapo.report.rules import advice_of
from dapo.report.settings_table import made_of
from dapo.report.thin import Budget, curves_of
from dapo.report.trace import time_of

__all__ = ["Budget", "bundle_of", "run_view"]

SHARED_RUNS = 3
"""From more runs than this on, each has fewer points: the page holds them all."""


def bundle_of(runs: Sequence[RunContents], *, live: bool, budget: Budget | None = None) -> PageData:
    """Everything a page shows at first.

    Args:
        runs: in the order of the page.
        live: for the server: of the rollouts only the newest step, the others are asked for.
        budget: of the whole page; it is shared among the runs.
    """
    budget = budget or Budget()
    share = max(1.0, len(runs) / SHARED_RUNS)
    each = Budget(max(60, int(budget.points / share)), budget.rollout_bytes // max(1, len(runs)))
    views = [run_view(run, label, live=live, budget=each) for run, label in zip(runs, labels_of(runs), strict=True)]
    bands = bands_of(runs, each.points)
    drawn = [key for view in views for key, values in view["curves"]["values"].items() if set(values) != {None}]
    keys = {key for view in views for key in view["curves"]["values"]}
    keys |= {tile["key"] for view in views for tile in view["tiles"]}
    keys |= {key for view in views for advice in view["advice"] for key in advice["keys"]}
    return {
        "version": dapo_version(),
        "made": time.time(),
        "live": live,
        "runs": views,
        "families": compare_families(runs),
        "bands": bands,
        "charts": charts_of(drawn),
        "glossary": definitions(sorted(keys)),
    }


def run_view(run: RunContents, label: str, *, live: bool, budget: Budget) -> RunView:
    """One run of a bundle, under a label that no other run of it has."""
    advice = advice_of(run)
    rollouts, notes = (live_rollouts(run), []) if live else choose_rollouts(run, advice, budget.rollout_bytes)
    return {
        "name": run.name,
        "label": label,
        "folder": str(run.folder.path),
        "supervised": run.supervised,
        "family": run.family or label,
        "seed": run.seed,
        "status": status_of(run),
        "sentences": sentences_of(run, advice),
        "tiles": tiles_of(run),
        "advice": advice,
        "curves": curves_of(run.rows, budget.points),
        "recipe": _recipe(run),
        "machines": without_repeats(run.machines),
        "processes": run.processes,
        "time": time_of(run),
        "rollouts": rollouts,
        "notes": [*run.notes, *notes],
    }


def definitions(keys: Iterable[str]) -> dict[str, Definition]:
    """Return the glossary's lines of metrics; unknown ones are left out."""
    found: dict[str, Definition] = {}
    for key in keys:
        if metric := lookup(key):
            found[key] = {"unit": metric.unit, "meaning": metric.meaning, "better": metric.better or ""}
    return found


def _recipe(run: RunContents) -> RecipeView | None:
    if not run.resolved:
        return None
    preset = run.recipe.preset if run.recipe else ""
    return {"preset": preset, "made_of": made_of(run.recipe), "resolved": run.resolved, "difference": run.difference}
