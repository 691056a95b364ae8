"""Columns of the data with few values, and held-out accuracy by these values."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dapo.algorithms.statistics import Estimate, paired_interval
from dapo.observe.held_out import AccuracyPoint, HeldOut, Problem
from dapo.observe.text import clean, percent, shorten, utf8
from dapo.types.batch import Prompt
from dapo.words import counted

MOST_COLUMNS, MOST_VALUES, LONGEST, LARGEST = 6, 12, 40, 10**6
"""Columns of a data source, values of a column, characters of a value, and the largest whole number."""
LEAST_PROBLEMS = 4
"""Problems a value in the mean: of fewer no change is sure."""
LISTED = 3


def columns_of(prompts: Iterable[Prompt]) -> list[dict[str, str]]:
    """Return for each prompt its values of the columns that divide the prompts of its source into a few parts.

    A column counts if all of its values are short texts, booleans or whole numbers, if there are 2 to 12 of them with 4
    problems each in the mean, and if it does not repeat the answer. Columns of an object have its name before a dot.
    Missing values are left out.
    """
    rows = [(prompt.source, prompt.answer, dict(_flat(prompt.extra))) for prompt in prompts]
    values: dict[tuple[str, str], Counter[str | None]] = defaultdict(Counter)
    repeats: Counter[tuple[str, str]] = Counter()  # how often the value is the answer
    for source, answer, row in rows:
        for name, value in row.items():
            values[source, name][value] += 1
            repeats[source, name] += value is not None and _as_answer(value) == _as_answer(answer)
    chosen: dict[str, list[str]] = defaultdict(list)
    for (source, name), found in values.items():
        few = 2 <= len(found) <= MOST_VALUES and found.total() >= LEAST_PROBLEMS * len(found)
        if few and None not in found and repeats[source, name] < found.total():
            chosen[source].append(name)
    return [{name: v for name in chosen[source][:MOST_COLUMNS] if (v := row.get(name))} for source, _, row in rows]


def _flat(record: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str | None]]:
    """Yield names and values that are not missing; a value is None if its column cannot count."""
    for key, value in record.items():
        name = f"{before}{utf8(str(key))}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}.")
        elif (text := _short(value)) != "":
            yield name, text


def _short(value: object) -> str | None:
    """Return a value as a text, "" if it is missing; None if it is of another kind, or long."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return str(int(value)) if abs(value) <= LARGEST and value == int(value) else None
    return utf8(value.strip()) if isinstance(value, str) and len(value) <= LONGEST else None


def _as_answer(text: str) -> str:
    """Return a text in a form that is equal for "7" and "7.0", for "True" and "true", and for "B" and " b"."""
    try:
        return repr(float(text))
    except ValueError:
        return text.strip().casefold()


# ---------------------------------------------------------------------------------------------------- evaluations


class Value(NamedTuple):
    """A value of a column, in one validation set."""

    set: str
    column: str
    value: str

    def __str__(self) -> str:
        return shorten(clean(f"{self.column} = {self.value}", newlines=False), 60)


class Changed(NamedTuple):
    """Accuracy on the problems of a value in two evaluations."""

    value: Value
    problems: int  # that both have
    before: float
    after: float
    change: Estimate  # in pairs; its interval allows for the number of values

    @property
    def fell(self) -> bool:
        """Whether chance does not explain a fall."""
        return self.change.high < 0


def accuracy_by_value(held_out: HeldOut) -> dict[Value, float]:
    """Return the accuracy on the problems of each value."""
    return {
        value: sum(held_out.problems[problem].accuracy for problem in problems) / len(problems)
        for value, problems in _by_value(held_out, held_out.problems).items()
    }


def changes_by_value(evaluations: Sequence[AccuracyPoint]) -> list[Changed]:
    """Return the change of accuracy by value, from the first evaluation to the last; [] where that is not known.

    Of n values each has an interval of confidence 1 - 0.05 / n: where nothing changed, at most 1 run in 20 finds a
    change in any of them (Bonferroni).
    """
    before, after = (evaluations[0].read(), evaluations[-1].read()) if len(evaluations) > 1 else (None, None)
    if before is None or after is None:
        return []
    parts = _by_value(after, [problem for problem in after.problems if problem in before.problems])
    found = []
    for value, problems in parts.items():
        then, now = ([one.problems[problem].accuracy for problem in problems] for one in (before, after))
        change = paired_interval(now, then, 1 - 0.05 / len(parts))
        found.append(Changed(value, len(problems), sum(then) / len(then), sum(now) / len(now), change))
    return found


def _by_value(held_out: HeldOut, problems: Iterable[Problem]) -> dict[Value, list[Problem]]:
    """Return the problems of each value, in order: texts by the alphabet, numbers by size."""
    found: dict[Value, list[Problem]] = defaultdict(list)
    for problem in problems:
        for name, value in held_out.problems[problem].columns.items():
            found[Value(problem.set, name, value)].append(problem)
    order = {value: (*value[:2], len(value.value) * value.value.isdecimal(), value.value) for value in found}
    return {value: found[value] for value in sorted(found, key=order.__getitem__)}


def fallen_said(changes: Sequence[Changed], evaluations: Sequence[AccuracyPoint]) -> str:
    """Return a sentence about the values on which accuracy fell; "" where there is none."""
    worst = sorted((one for one in changes if one.fell), key=lambda one: one.change.mean)
    if not worst:
        return ""
    parts = [
        f"where {one.value}, from {percent(one.before)} to {percent(one.after)} ({counted(one.problems, 'problem')} of "
        f"{shorten(clean(one.value.set, newlines=False), 40)}; by {-100 * one.change.high:.1f} to "
        f"{-100 * one.change.low:.1f} points)"
        for one in worst[:LISTED]
    ]
    if len(worst) > LISTED:
        parts.append(f"and {counted(len(worst) - LISTED, 'more value')}")
    first, last = evaluations[0].step, evaluations[-1].step
    return f"Held-out accuracy fell from step {first} to step {last} {'; '.join(parts)}."
