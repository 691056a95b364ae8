"""A comparison in words and as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from dapo.observe.text import clean, number, percent
from dapo.report.comparison import FEWEST, Comparison, Difference, Family, Measure, compare_runs, place_said
from dapo.report.page_data import FamilyView, Tone
from dapo.report.reader import RunContents

_DIGITS = 6  # of numbers for programs


def compare_families(runs: Sequence[RunContents]) -> list[FamilyView]:
    """Return a line for each recipe among the runs, each against the first; [] for fewer than two runs."""
    if len(runs) < 2:
        return []
    found = compare_runs(runs)
    alone = len(found.families) == 1  # its seeds are counted in place of a name
    return [
        FamilyView(
            family=family.key,
            name="" if alone else family.name,
            runs=family.labels,
            said=said_of(found, family),
            tone=tone_of(found, family),
        )
        for family in found.families
    ]


def said_of(found: Comparison, family: Family) -> str:
    """Return the sentences of a family: its result, its difference from the first, and its runs that are left out."""
    missing = [f"{label}: {found.left_out[label]}" for label in family.labels if label in found.left_out]
    left_out = f"Left out: {'; '.join(missing)}." if missing else ""
    if found.measure is None or not family.compared:
        return left_out if found.measure else ""
    values, form = [one.value for one in family.compared], number if found.measure.loss else percent
    spread = f", mean of {len(values)} seeds ({form(min(values))} to {form(max(values))})" if len(values) > 1 else ""
    said = f"{found.measure.name} {form(family.mean.mean)} at {place_said(found.at, found.place)}{spread}"
    if family.difference is not None:
        change = change_said(found.measure, family.difference, f" against {found.reference}")
        said += f"; {change}: {verdict_said(found, family)}"
    return f"{said}. {left_out}".rstrip()


def change_said(measure: Measure, change: Difference, against: str = "") -> str:
    """Return a difference with its interval: ``+5.0 points (95 % interval +2.5 to +7.5, paired by 5 seeds)``."""
    scale, unit, form = (1.0, " nats", ".3g") if measure.loss else (100.0, " points", ".1f")
    mean, low, high = (
        f"{value * scale:+{form}}".replace("-", "\N{MINUS SIGN}")
        for value in (change.estimate.mean, change.estimate.low, change.estimate.high)
    )
    ends = f"{100 * change.confidence:g} % interval {low} to {high}, "
    return f"{mean}{unit}{against} ({ends if math.isfinite(change.estimate.low) else ''}{change.how})"


def verdict_said(found: Comparison, family: Family) -> str:
    """Return what a difference shows, in a few words; "" for the first family."""
    change = family.difference
    if change is None:
        return ""
    if change.verdict in ("better", "worse"):
        return f"{change.verdict}, which is shown"
    if change.verdict in ("not shown", "other problems"):
        return change.verdict
    if change.seeds > 1 or math.isnan(change.estimate.low):
        return f"too few seeds ({FEWEST} needed)"
    words: dict[Tone, str] = {"good": "better, by one run each", "bad": "worse, by one run each"}
    return words.get(tone_of(found, family), "within chance")


def tone_of(found: Comparison, family: Family) -> Tone:
    """Return whether a family is better or worse than the first, by more than chance explains."""
    change = family.difference
    if change is None or found.measure is None or not (change.estimate.low > 0 or change.estimate.high < 0):
        return ""
    if change.verdict == "other problems" or (change.verdict == "too few seeds" and change.seeds > 1):
        return ""
    return "good" if (change.estimate.mean < 0) == found.measure.loss else "bad"


def as_object(found: Comparison) -> dict[str, Any]:
    """Return the comparison for programs; docs/cli.md describes it. A number that there is not is None."""
    return {
        "metric": found.measure.key if found.measure else None,
        "better": None if found.measure is None else "lower" if found.measure.loss else "higher",
        "at": found.at,
        "place": found.place,
        "confidence": found.confidence,
        "fewest_seeds": FEWEST,
        "families": [_family(family) for family in found.families],
        "left_out": found.left_out,
        "notes": found.notes,
    }


def _family(family: Family) -> dict[str, Any]:
    change = family.difference
    return {
        "name": family.name,
        "runs": [
            {
                "run": one.label,
                "folder": str(one.run.folder.path),
                "seed": one.run.seed,
                "value": _rounded(one.value),
            }
            for one in family.compared
        ],
        "mean": _rounded(family.mean.mean),
        "low": _rounded(family.mean.low),
        "high": _rounded(family.mean.high),
        "difference": change
        and {
            "mean": _rounded(change.estimate.mean),
            "low": _rounded(change.estimate.low),
            "high": _rounded(change.estimate.high),
            "confidence": change.confidence,
            "seeds": change.seeds,
            "how": change.how,
            "verdict": change.verdict,
        },
    }


def _rounded(value: float) -> float | None:
    return round(value, _DIGITS) if math.isfinite(value) else None


def table_lines(found: Comparison) -> list[str]:
    """Return the comparison for a terminal: what is compared, a line for each family, and what was left out."""
    lines = []
    if found.measure is None:
        lines += ["nothing can be compared"]
    else:
        form = number if found.measure.loss else percent
        lines += [f"{found.measure.name} ({found.measure.key}) at {place_said(found.at, found.place)}"]
        interval = f"{100 * found.confidence:g} % interval"
        rows = [("setting", "runs", "mean", interval)]
        rows += [
            (
                family.name,
                f"{len(family.compared)} of {len(family.labels)}",
                form(family.mean.mean),
                f"{form(family.mean.low)} to {form(family.mean.high)}" if math.isfinite(family.mean.low) else "",
            )
            for family in found.families
        ]
        widths = [max(len(row[n]) for row in rows) for n in range(4)]
        lines += [
            f"  {'  '.join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))}".rstrip()
            for row in rows
        ]
        changed = [family for family in found.families if family.difference]
        lines += [f"against {found.reference}"] * bool(changed)
        lines += [
            f"  {family.name}: {change_said(found.measure, family.difference)}: {verdict_said(found, family)}"
            for family in changed
            if family.difference
        ]
    lines += ["left out"] * bool(found.left_out)
    lines += [f"  {label}: {why}" for label, why in found.left_out.items()]
    return [clean(line, newlines=False) for line in [*lines, *found.notes]]
