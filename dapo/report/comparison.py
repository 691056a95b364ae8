"""Several runs against one another: how good each recipe was over its seeds, and by how much recipes differ."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from dapo.observe.held_out import AccuracyPoint, chance_between, change_between
from dapo.observe.text import number, percent
from dapo.report.compare import labels_of
from dapo.report.family import shared
from dapo.report.page_data import FamilyView, Tone
from dapo.report.reader import RunContents
from dapo.report.rules.course import Facts
from dapo.words import counted

NAMED = 2
"""Settings that name a family; further ones are counted."""
LONGEST = 40
"""Characters of a setting's value in such a name."""
LAST = 5
"""Steps at the end whose mean is compared where no held-out problems were asked."""
_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


class _Measure(NamedTuple):
    """A compared metric, its name in a sentence, and whether a smaller value is better."""

    key: str
    name: str
    loss: bool = False


_MEASURES = (
    _Measure("validation/accuracy", "held-out accuracy"),
    _Measure("validation/loss", "held-out loss", loss=True),
    _Measure("reward/accuracy", "training accuracy"),
)


class MeanDifference(NamedTuple):
    """A difference of two means and half of its 95 % interval; ``how`` says what the interval is made of."""

    mean: float
    half: float
    how: str


def compare_families(runs: Sequence[RunContents]) -> list[FamilyView]:
    """Return a line for each recipe among the runs, each against the first; [] for fewer than two runs."""
    if len(runs) < 2:
        return []
    labels = labels_of(runs)
    groups: dict[str, list[int]] = {}
    for i, run in enumerate(runs):
        groups.setdefault(run.family or labels[i], []).append(i)
    for family, members in list(groups.items()):
        if len({runs[i].seed for i in members}) < len(members):  # the same seed twice is no sample of seeds
            del groups[family]
            groups |= {labels[i]: [i] for i in members}
    names = name_families([[runs[i] for i in members] for members in groups.values()])
    measure, step = _measure_of(runs)
    values = [{runs[i].seed: _value(runs[i], measure, step) for i in members} for members in groups.values()]
    views: list[FamilyView] = []
    for n, (family, members) in enumerate(groups.items()):
        name = names[n] or (labels[members[0]] if len(groups) > 1 or len(members) == 1 else "")
        said: str = ""
        tone: Tone = ""
        if measure is not None:
            first = [runs[i] for i in next(iter(groups.values()))]
            found = None if n == 0 else _difference(values[0], values[n], first, [runs[i] for i in members], measure)
            said, tone = _said(measure, step, list(values[n].values()), found, views[0]["name"] if views else "")
        views.append(FamilyView(family=family, name=name, runs=[labels[i] for i in members], said=said, tone=tone))
    return views


def name_families(families: Sequence[Sequence[RunContents]]) -> list[str]:
    """Return what tells each family from the others, such as ``learner.learning_rate=2e-06``; "" where nothing does.

    Args:
        families: the runs of each.
    """
    first = [members[0] for members in families]
    if len(first) < 2 or any(run.recipe is None for run in first):
        return [""] * len(first)
    settings = [_flat(shared(run.recipe.model_dump(mode="json"))) for run in first if run.recipe is not None]
    paths = [path for path in dict.fromkeys(path for one in settings for path in one) if _differs(path, settings)]
    if "preset" in paths:  # a preset stands for all that it sets
        given = {path for run in first for path, _, _ in run.difference}
        paths = ["preset", *(path for path in paths if path in given)]
    more = f" and {counted(len(paths) - NAMED, 'more setting')}" if len(paths) > NAMED else ""
    short = {path: _ending(path, {other for one in settings for other in one}) for path in paths[:NAMED]}
    return [", ".join(f"{short[path]}={_cut(one.get(path, 'none'))}" for path in short) + more for one in settings]


def _cut(value: str) -> str:
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 1].rstrip()}…"


def _ending(path: str, paths: Collection[str]) -> str:
    """Return the shortest ending of a path, of two parts at least, that no other path has: legends are narrow."""
    parts = path.split(".")
    for start in range(len(parts) - 2, 0, -1):
        ending = ".".join(parts[start:])
        if parts[start].isdigit():  # a place in a list says nothing without the list's name
            continue
        if sum(other == ending or other.endswith(f".{ending}") for other in paths) == 1:
            return ending
    return path


def _flat(value: Any, path: str = "") -> dict[str, str]:
    """Return the leaves of a recipe by path, each as it could be written in one."""
    parts: dict[str, Any] = value if isinstance(value, dict) else {}
    if isinstance(value, list) and any(isinstance(part, dict) for part in value):
        parts = {str(place): part for place, part in enumerate(value)}
    if not parts and value != {}:
        return {path: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)}
    found: dict[str, str] = {}
    for key, part in parts.items():
        found |= _flat(part, f"{path}.{key}" if path else str(key))
    return found


def _differs(path: str, settings: Sequence[Mapping[str, str]]) -> bool:
    return len({one.get(path) for one in settings}) > 1


def _measure_of(runs: Sequence[RunContents]) -> tuple[_Measure | None, int]:
    """Return what all runs measured, and the last step at which all did."""
    for measure in _MEASURES:
        common = set.intersection(
            *({int(r["step"]) for r in run.rows if r.get(measure.key) is not None} for run in runs)
        )
        if common:
            return measure, max(common)
    return None, 0


def _value(run: RunContents, measure: _Measure | None, step: int) -> float:
    if measure is None:
        return math.nan
    known = [row[measure.key] for row in run.rows if row["step"] <= step and row.get(measure.key) is not None]
    last = known[-LAST:] if measure.key == "reward/accuracy" else known[-1:]
    return math.fsum(value / len(last) for value in last)


def _difference(
    before: Mapping[int | None, float],
    after: Mapping[int | None, float],
    first: Sequence[RunContents],
    second: Sequence[RunContents],
    measure: _Measure,
) -> MeanDifference | None:
    """Return the difference of two families: by pairs of equal seeds, else of their means, else of two evaluations."""
    seeds = [seed for seed in before if seed is not None and seed in after]
    if len(seeds) > 1:
        return _of_pairs([after[seed] - before[seed] for seed in seeds])
    if len(before) > 1 and len(after) > 1:
        return _of_means(list(before.values()), list(after.values()))
    if len(before) == len(after) == 1 and measure.key == "validation/accuracy":
        (a,), (b,) = before.values(), after.values()
        one, other = _evaluation(first[0], a), _evaluation(second[0], b)
        half = chance_between(one, other)
        how = "of the problems asked" if change_between(one, other) is None else "in pairs of the problems asked"
        return MeanDifference(b - a, half, how if seeds else f"{how}; seeds differ, too") if half else None
    return None


def _of_pairs(differences: Sequence[float]) -> MeanDifference:
    mean, spread = _mean_and_deviation(differences)
    half = _student(len(differences) - 1) * spread / math.sqrt(len(differences))
    return MeanDifference(mean, half, f"paired by {counted(len(differences), 'seed')}")


def _of_means(before: Sequence[float], after: Sequence[float]) -> MeanDifference:
    """Return Welch's interval of the difference of two means."""
    (a, spread_a), (b, spread_b) = _mean_and_deviation(before), _mean_and_deviation(after)
    parts = spread_a**2 / len(before), spread_b**2 / len(after)
    weight = parts[0] ** 2 / (len(before) - 1) + parts[1] ** 2 / (len(after) - 1)
    freedom = math.floor(sum(parts) ** 2 / weight) if weight else min(len(before), len(after)) - 1
    return MeanDifference(b - a, _student(freedom) * math.sqrt(sum(parts)), "over unequal seeds")


def _mean_and_deviation(values: Sequence[float]) -> tuple[float, float]:
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _student(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t."""
    return _STUDENT[max(1, freedom) - 1] if freedom <= len(_STUDENT) else 1.96 + 2.46 / freedom


def _evaluation(run: RunContents, accuracy: float) -> AccuracyPoint:
    """Return the run's last evaluation of that accuracy, with its interval."""
    found = [evaluation for evaluation in Facts(run).evaluations if evaluation.accuracy == accuracy]
    return found[-1] if found else AccuracyPoint(0, accuracy)


def _said(
    measure: _Measure, step: int, values: Sequence[float], found: MeanDifference | None, reference: str
) -> tuple[str, Tone]:
    """Return the sentence of a family, and its tone."""
    mean = math.fsum(value / len(values) for value in values)
    form = number if measure.loss else percent
    over = f", mean of {len(values)} seeds ({form(min(values))} to {form(max(values))})" if len(values) > 1 else ""
    said = f"{measure.name} {form(mean)} at step {step}{over}"
    if found is None:
        return f"{said}.", ""
    scale, unit, signed = (1.0, " nats", _nats) if measure.loss else (100.0, " points", _points)
    low, high = found.mean - found.half, found.mean + found.half
    ends = f"{signed(low * scale)} to {signed(high * scale)}"
    by = f"{signed(found.mean * scale)}{unit} against {reference} (95 % interval {ends}, {found.how})"
    if low <= 0 <= high:
        return f"{said}; {by}: within chance.", ""
    better = (found.mean < 0) == measure.loss
    return f"{said}; {by}: {'better' if better else 'worse'}.", "good" if better else "bad"


def _nats(value: float) -> str:
    return f"{value:+.3g}".replace("-", "\N{MINUS SIGN}")


def _points(value: float) -> str:
    return f"{value:+.1f}".replace("-", "\N{MINUS SIGN}")
