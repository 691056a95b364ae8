"""Several runs against one another: how good each recipe was over its seeds, and by how much recipes differ.

``compare_runs`` computes; ``dapo compare`` prints its result as a table or as JSON, reports and pages as sentences.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

from dapo.algorithms.statistics import Estimate
from dapo.config.faults import nearest
from dapo.errors import RecipeError
from dapo.observe.held_out import AccuracyPoint, chance_between, change_between
from dapo.observe.metrics import Row
from dapo.report.compare import labels_of
from dapo.report.family import family_of
from dapo.report.family_names import names_of, settings_of
from dapo.report.reader import RunContents
from dapo.report.rules.course import Facts
from dapo.report.seeds import difference_of_means, mean_over_seeds
from dapo.report.status import outcome_of
from dapo.words import counted

FEWEST = 5
"""Seeds of each family from which on a difference is called shown, or not shown: an interval from fewer rests on the
assumption that seeds are normally distributed, which runs that collapse are not."""
LAST = 5
"""Steps at the end whose mean is compared where no held-out problems were asked."""
LONGER = 1.1
"""Times the compared tokens from which on a run is called longer: equal steps never generate equal tokens."""
TOKENS = "counters/generated_tokens"
OF_PROBLEMS = 0.95
"""Confidence of the interval of two single runs, which is over their problems."""
_PROBLEMS = ("data.validation", "sft.validation", "validation.limit")
_SAMPLING = ("validation.temperature", "validation.top_p")
"""Settings of an evaluation: which problems are asked, and how they are answered."""

At = Literal["steps", "tokens"]
Verdict = Literal["better", "worse", "not shown", "too few seeds", "other problems"]


class Measure(NamedTuple):
    """A compared metric, its name in a sentence, and whether a smaller value is better."""

    key: str
    name: str
    loss: bool = False


MEASURES = (
    Measure("validation/accuracy", "held-out accuracy"),
    Measure("validation/loss", "held-out loss", loss=True),
    Measure("reward/accuracy", "training accuracy"),
)


class Point(NamedTuple):
    """A value of the measure."""

    place: float  # training steps or generated tokens so far
    value: float
    step: int


@dataclass(slots=True, eq=False)
class Course:
    """The measure over a run."""

    run: RunContents
    label: str
    pair: Hashable  # equal for runs that differ in the setting of their families alone
    points: list[Point] = field(default_factory=list)
    places: frozenset[float] = frozenset()  # of the points
    value: float = math.nan  # at the place of the comparison
    step: int = 0  # of the last evaluation that is in the value

    def take(self, points: list[Point]) -> None:
        """Take the values of the measure."""
        self.points, self.places = points, frozenset(point.place for point in points)

    @property
    def reached(self) -> float:
        """The place of its last value; 0 for none after training began."""
        return self.points[-1].place if self.points else 0.0


@dataclass(frozen=True, slots=True)
class Difference:
    """A family minus the reference."""

    estimate: Estimate  # its ends are nan where there is no interval
    confidence: float
    seeds: int  # pairs, or runs of the smaller family
    how: str  # what the interval is made of
    verdict: Verdict


@dataclass(slots=True)
class Family:
    """Runs of one setting."""

    key: str
    name: str
    labels: list[str]  # of all its runs
    compared: list[Course]  # of these, what has a value
    mean: Estimate
    difference: Difference | None = None


@dataclass(slots=True)
class Comparison:
    """Families at one place of their training; the first with a value is what the others are compared with."""

    measure: Measure | None  # None: no two runs have a value of the same metric
    at: At
    place: float  # training steps or generated tokens
    confidence: float
    families: list[Family]
    left_out: dict[str, str]  # by label: why the run is not compared
    notes: list[str]

    @property
    def reference(self) -> str:
        """Name of the family that the others are compared with; "" for none."""
        return next((family.name for family in self.families if family.compared), "")


def compare_runs(
    runs: Sequence[RunContents], *, by: str = "", at: At = "steps", place: float | None = None, confidence: float = 0.95
) -> Comparison:
    """Compare families of runs at equal training steps or equal generated tokens.

    Args:
        runs: as read; two folders of one run are two runs.
        by: a setting: runs with equal values of it are a family. "": runs that differ in seeds and names alone are.
        at: what is equal.
        place: training steps or generated tokens; None: where runs x steps (or tokens) is largest, so that a run that
            ended early is left out rather than all others cut.
        confidence: of the intervals.

    Raises:
        RecipeError: no run has the setting.
    """
    left_out: dict[str, str] = {}
    groups = _families(runs, by, left_out)
    measure = _measure_of(groups, at)
    for course in _all(groups):
        course.take(_points(course.run, measure, at) if measure else [])
    _leave_out_repeats(groups, left_out)
    compared = [[course for course in group if course.label not in left_out] for group in groups.values()]
    named = [[(one.run, one.label) for one in kept] for kept in compared]
    names = list(groups) if by else names_of(named)
    place = _place_of(compared, at) if place is None else place
    families = []
    for name, (key, group), members in zip(names, groups.items(), compared, strict=True):
        values = [course for course in members if measure and _covers(course, at, place)]
        for course in members:
            if measure and course in values:
                _measure(course, measure, place)
            else:
                left_out[course.label] = _why_not(course, measure, at, place)
        mean = mean_over_seeds([one.value for one in values], confidence)
        if measure and not measure.loss:  # an accuracy; of a single run the ends are and stay nan
            mean = replace(mean, low=max(mean.low, 0.0), high=min(mean.high, 1.0))
        families.append(Family(key, name, [course.label for course in group], values, mean))
    having = [family for family in families if family.compared]
    for family in having[1:]:
        assert measure is not None  # or there would be no values
        family.difference = _difference(having[0], family, measure, confidence, by)
    notes = [*_notes([course for family in having for course in family.compared], at, place)]
    if measure and measure.key != "reward/accuracy":
        notes += _other_problems(having)
    return Comparison(measure, at, place, confidence, families, left_out, notes)


# ------------------------------------------------------------------------------------------------------- families


def _families(runs: Sequence[RunContents], by: str, left_out: dict[str, str]) -> dict[str, list[Course]]:
    """Return the runs by family, in the order in which they were given."""
    labels = labels_of(runs)
    groups: dict[str, list[Course]] = {}
    known = not by
    for run, label in zip(runs, labels, strict=True):
        seed = _seeds(run, label)
        if not by:
            groups.setdefault(run.family or label, []).append(Course(run, label, seed))
            continue
        if run.recipe is None:
            left_out[label] = "its recipe cannot be read, or is of another version"
            continue
        settings = settings_of(run.recipe)
        known = known or by in settings
        value = settings.pop(by, "none")
        groups.setdefault(f"{by}={value}", []).append(Course(run, label, (family_of(dict(settings)), seed)))
    if not known:
        near = [name for name in nearest(by) if name != by] or ["learner.learning_rate"]  # a section has its own name
        raise RecipeError(f"--by {by}: no recipe of these runs has such a setting; expected one such as {near[0]}")
    if len(groups) == 1 and not by and len({course.pair for course in _all(groups)}) < len(runs):
        return {course.label: [course] for course in _all(groups)}  # the same run twice: on two machines, say
    return groups


def _seeds(run: RunContents, label: str) -> Hashable:
    """Return the seeds of a run: its own, and those of generated problems. Unknown ones equal no other's."""
    sources = [*run.recipe.data.train, *run.recipe.data.validation] if run.recipe else []
    return label if run.seed is None else (run.seed, frozenset(source.seed for source in sources))


def _all(groups: dict[str, list[Course]]) -> Iterator[Course]:
    for group in groups.values():
        yield from group


def _leave_out_repeats(groups: dict[str, list[Course]], left_out: dict[str, str]) -> None:
    """Keep of the runs of one family and seed the one that got furthest."""
    for group in groups.values():
        best: dict[Hashable, Course] = {}
        for course in sorted(group, key=lambda one: one.reached, reverse=True):
            first = best.setdefault(course.pair, course)
            if first is not course:
                left_out[course.label] = f"it has the seed of {first.label}, which got further or as far"


# -------------------------------------------------------------------------------------------- what is compared, where


def _measure_of(groups: dict[str, list[Course]], at: At) -> Measure | None:
    """Return the first metric that two families have after training began; of a single family, two runs."""
    for measure in MEASURES:
        having = [[c for c in group if _points(c.run, measure, at)] for group in groups.values()]
        if sum(map(bool, having)) > 1 or (len(groups) == 1 and len(having[0]) > 1):
            return measure
    return None


def _points(run: RunContents, measure: Measure, at: At) -> list[Point]:
    """Return the values of a run in order; [] where none is from after the beginning of training."""
    rows = [row for row in run.rows if row.get(measure.key) is not None]
    found = [Point(place, row[measure.key], int(row["step"])) for row in rows if (place := _place(row, at)) is not None]
    return found if found and found[-1].place > 0 else []


def _place(row: Row, at: At) -> float | None:
    place: float | None = row["step"] if at == "steps" or not row["step"] else row.get(TOKENS)
    return place


def _place_of(families: Sequence[Sequence[Course]], at: At) -> float:
    """Return where most families have a value, and among such places the one with the largest runs x place."""
    places = {place for family in families for course in family for place in course.places}

    def worth(place: float) -> tuple[float, ...]:
        having = [sum(_covers(course, at, place) for course in family) for family in families]
        return sum(map(bool, having)), sum(having) * place, sum(having)

    return max(sorted(places), key=worth, default=0.0)


def _covers(course: Course, at: At, place: float) -> bool:
    if at == "steps":
        return place in course.places
    return bool(course.points) and course.points[0].place <= place <= course.reached


def _measure(course: Course, measure: Measure, place: float) -> None:
    """Set the value of a run at a place.

    An accuracy in training is the mean of the last steps. Between two evaluations, which equal tokens rarely meet, the
    value lies on the line between theirs.
    """
    before = [point for point in course.points if point.place <= place]
    after = [point for point in course.points if point.place > place]
    last = before[-1]
    course.value, course.step = last.value, last.step
    if measure.key == "reward/accuracy":
        values = [point.value for point in before[-LAST:]]
        course.value = math.fsum(one / len(values) for one in values)
    elif after and last.place < place:
        share = (place - last.place) / (after[0].place - last.place)
        course.value = (1 - share) * last.value + share * after[0].value


def _why_not(course: Course, measure: Measure | None, at: At, place: float) -> str:
    """Return why a run has no value at the place of the comparison."""
    state = outcome_of(course.run).state
    stands = "" if state in ("finished", "unknown") else f" ({state})"
    rows = course.run.rows
    if measure is None:
        own = next((one for one in MEASURES if _points(course.run, one, "steps")), None)
        if own is None:
            return f"it has no accuracy or loss after step 0{stands}"
        counts = at == "steps" or _points(course.run, own, at)
        return f"no other setting has its {own.name}{stands}" if counts else f"it counts no generated tokens{stands}"
    having = [int(row["step"]) for row in rows if row.get(measure.key) is not None]
    if not having:
        return f"it has no {measure.name}{stands}"
    if not course.points and at == "tokens" and having[-1]:
        return f"it counts no generated tokens{stands}"
    if having[-1] == 0 or course.reached < place:
        return f"its last {measure.name} is of step {having[-1]}{stands}"
    return f"it has no {measure.name} at {place_said(at, place)}{stands}"


def place_said(at: At, place: float) -> str:
    return f"step {place:,.0f}" if at == "steps" else f"{place:,.0f} generated tokens"


def _notes(compared: Sequence[Course], at: At, place: float) -> Iterator[str]:
    """Yield which runs went further, and which still run."""
    worth = place * (LONGER if at == "tokens" else 1)
    further = [f"{one.label} to {place_said(at, one.reached)}" for one in compared if one.reached > worth]
    if further:
        yield f"longer: {', '.join(further)}"
    running = [one.label for one in compared if outcome_of(one.run).state == "running"]
    if running:
        yield f"still running: {', '.join(running)}"


def _other_problems(families: Sequence[Family]) -> Iterator[str]:
    """Yield that families were evaluated otherwise than the first; a difference on other problems shows nothing."""
    recipes = [family.compared[0].run.recipe for family in families]
    settings = [{} if recipe is None else settings_of(recipe) for recipe in recipes]
    changed = [
        {path for path in own.keys() | settings[0].keys() if own.get(path) != settings[0].get(path)}
        if own and settings[0]
        else set()
        for own in settings
    ]
    for family, paths in zip(families, changed, strict=True):
        if family.difference is not None and any(path.startswith(_PROBLEMS) for path in paths):
            family.difference = replace(family.difference, verdict="other problems")
    if any(path.startswith((*_PROBLEMS, *_SAMPLING)) for paths in changed for path in paths):
        yield "evaluated on other problems or in another way: data.validation, or validation.limit, temperature, top_p"


# ---------------------------------------------------------------------------------------------------- differences


def _difference(first: Family, other: Family, measure: Measure, confidence: float, by: str) -> Difference | None:
    """Return a difference in pairs of equal seeds, else of means, else of two evaluations; None for none of these."""
    before = {one.pair: one.value for one in first.compared}
    after = {one.pair: one.value for one in other.compared}
    fewer = min(len(before), len(after))
    pairs = [after[pair] - before[pair] for pair in before if pair in after]
    if len(pairs) > 1 and (len(pairs) >= FEWEST or 2 * len(pairs) > fewer):
        found, seeds = mean_over_seeds(pairs, confidence), len(pairs)
        how = f"{seeds} pairs of runs alike but for {by}" if by else f"paired by {counted(seeds, 'seed')}"
    elif fewer > 1:
        found = difference_of_means(list(before.values()), list(after.values()), confidence)
        seeds, how = fewer, "over unequal seeds"
    elif len(before) == len(after) == 1 and measure.key == "validation/accuracy":
        return _of_two_runs(first.compared[0], other.compared[0], bool(pairs))
    elif len(before) == len(after):
        return None
    else:
        seeds, how = 1, "no interval: one side is a single run"
        found = Estimate(other.mean.mean - first.mean.mean, math.nan, math.nan, math.nan)
    return Difference(found, confidence, seeds, how, _verdict(found, seeds, measure))


def _verdict(found: Estimate, seeds: int, measure: Measure) -> Verdict:
    if seeds < FEWEST:
        return "too few seeds"
    if found.low <= 0 <= found.high:
        return "not shown"
    return "better" if (found.mean < 0) == measure.loss else "worse"


def _of_two_runs(first: Course, other: Course, same_seed: bool) -> Difference | None:
    """Return the difference of two single runs, with the interval over their problems."""
    one, two = _evaluation(first), _evaluation(other)
    half, mean = chance_between(one, two), other.value - first.value
    if not half:
        return None
    how = "of the problems asked" if change_between(one, two) is None else "in pairs of the problems asked"
    how = how if same_seed else f"{how}; seeds differ, too"
    return Difference(Estimate(mean, mean - half, mean + half, math.nan), OF_PROBLEMS, 1, how, "too few seeds")


def _evaluation(course: Course) -> AccuracyPoint:
    """Return the evaluation of a value, with its interval; of a value between two, the earlier one."""
    return [one for one in Facts(course.run).evaluations if one.step == course.step][-1]
