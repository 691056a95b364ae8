"""Held-out accuracy over a run: evaluations, and the difference of two of them, problem by problem."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from dapo.algorithms.statistics import Estimate, mean_of_estimates, paired_interval, pass_at_k

SAME = 0.9
"""Share of the problems that two evaluations have in common from which they are compared in pairs."""


class Problem(NamedTuple):
    """Identity of a held-out problem, in whatever run."""

    set: str
    prompt_id: str  # content hash
    answer: str  # gold
    place: int  # among those of equal content


class Solved(NamedTuple):
    """How a problem was answered: the sampled responses whose accuracy is known."""

    number: int  # of the problem in its set
    accuracy: float  # mean
    responses: int
    right: int  # of accuracy 1
    columns: Mapping[str, str] = MappingProxyType({})  # of the data, see ``dapo.observe.columns``


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The sampled responses of one evaluation, counted.

    >>> HeldOut({Problem("held_out", "id", "7", 0): Solved(0, 0.5, 2, 1)}, responses=2, truncated=0, read=2).right
    1
    """

    problems: Mapping[Problem, Solved]
    responses: int  # scored or not
    truncated: int
    read: int  # those in which the verifier found an answer

    @property
    def known(self) -> int:
        """Responses whose accuracy is known."""
        return sum(solved.responses for solved in self.problems.values())

    @property
    def right(self) -> int:
        return sum(solved.right for solved in self.problems.values())

    @property
    def accuracy(self) -> float:
        """Mean over the known responses; 0 where there is none."""
        return sum(solved.accuracy * solved.responses for solved in self.problems.values()) / max(1, self.known)


@dataclass(frozen=True, slots=True)
class AccuracyPoint:
    """A held-out accuracy with its 95 % interval (None where it was not recorded)."""

    step: int
    accuracy: float
    interval: tuple[float, float] | None = None
    read: Callable[[], HeldOut | None] = field(default=lambda: None, compare=False, repr=False)  # its problems

    @property
    def half(self) -> float:
        """Half of the interval."""
        return max(0.0, self.interval[1] - self.interval[0]) / 2 if self.interval else 0.0


def accuracy_of(
    row: Mapping[str, float | None], read: Callable[[int], HeldOut | None] = lambda step: None
) -> AccuracyPoint | None:
    """Return the held-out accuracy of a row; None where it has none. ``read`` returns the problems of a step."""
    accuracy = row.get("validation/accuracy")
    if accuracy is None:
        return None
    low, high, step = row.get("validation/accuracy_low"), row.get("validation/accuracy_high"), int(row.get("step") or 0)
    interval = None if low is None or high is None else (float(low), float(high))
    return AccuracyPoint(step, float(accuracy), interval, lambda: read(step))


# ---------------------------------------------------------------------------------------------------- two of them


def chance_between(before: AccuracyPoint, after: AccuracyPoint) -> float:
    """Return the largest change of accuracy that chance explains.

    Two evaluations of the same problems are compared in pairs; of others, or of a run without files of its evaluations,
    the halves of both intervals are added as those of independent ones.
    """
    change = change_between(before, after)
    return math.hypot(before.half, after.half) if change is None else chance_of(change)


def change_between(before: AccuracyPoint, after: AccuracyPoint) -> Estimate | None:
    """Return the change of accuracy in pairs; None where the problems are not known, or others."""
    ours, theirs = before.read(), after.read()
    return None if ours is None or theirs is None else difference(ours, theirs)


def chance_of(change: Estimate) -> float:
    """Return the distance from a change to the end of its interval on the side of 0: a larger one excludes 0."""
    above, below = change.high - change.mean, change.mean - change.low
    return below if change.mean > 0 else above if change.mean < 0 else max(above, below)


def difference(
    before: HeldOut, after: HeldOut, of: Callable[[Solved], float] = lambda solved: solved.accuracy
) -> Estimate | None:
    """Return the change of a number of each problem, with its interval; None where they asked other problems.

    What makes a problem easy or hard cancels in pairs, so the interval is narrower than that of two independent
    evaluations. Each set counts once, as in the accuracy itself.
    """
    found = differences(before, after, of)
    sizes = [Counter(problem.set for problem in one.problems) for one in (before, after)]
    if not found or any(name not in found or found[name][1] < SAME * n for size in sizes for name, n in size.items()):
        return None
    return mean_of_estimates([estimate for estimate, _ in found.values()])


def differences(
    before: HeldOut, after: HeldOut, of: Callable[[Solved], float] = lambda solved: solved.accuracy
) -> dict[str, tuple[Estimate, int]]:
    """Return by set the change of a number of each problem, and how many problems both have with a known accuracy."""
    pairs: dict[str, list[tuple[float, float]]] = {}
    for problem, solved in after.problems.items():
        if problem in before.problems:
            pairs.setdefault(problem.set, []).append((of(solved), of(before.problems[problem])))
    return {
        name: (paired_interval([now for now, _ in of_set], [then for _, then in of_set]), len(of_set))
        for name, of_set in pairs.items()
    }


def pass_difference(before: HeldOut, after: HeldOut, k: int) -> Estimate | None:
    """Return the change of pass@k, of the problems with k known responses and more, likewise."""
    enough = [
        HeldOut({p: s for p, s in one.problems.items() if s.responses >= k}, one.responses, one.truncated, one.read)
        for one in (before, after)
    ]
    return difference(enough[0], enough[1], lambda solved: pass_at_k(solved.responses, solved.right, k))


class Moved(NamedTuple):
    """A problem that was won or given up, and how it was answered in the early and in the late evaluations."""

    problem: Problem
    early: Solved
    late: Solved

    @property
    def change(self) -> float:
        """Accuracy won; below 0: lost."""
        return self.late.accuracy - self.early.accuracy

    @property
    def by_chance(self) -> float:
        """Probability that all right responses fall into that part, were they as likely in the other (Fisher's exact
        test, one-sided)."""
        right, own = max((self.early.right, self.early.responses), (self.late.right, self.late.responses))
        return math.comb(own, right) / math.comb(self.early.responses + self.late.responses, right)


def moved(early: Sequence[HeldOut], late: Sequence[HeldOut]) -> tuple[list[Moved], list[Moved]]:
    """Return the problems solved early and never late, and those solved late and never early; the greatest change
    first.

    Only problems that were scored in all of these evaluations count.
    """
    first, last = _joined(early), _joined(late)
    both = [Moved(problem, solved, last[problem]) for problem, solved in first.items() if problem in last]
    lost = [one for one in both if one.early.right and not one.late.right]
    won = [one for one in both if one.late.right and not one.early.right]
    return sorted(lost, key=lambda one: one.change), sorted(won, key=lambda one: -one.change)


def _joined(several: Sequence[HeldOut]) -> dict[Problem, Solved]:
    """Return the problems that all of them scored, with their responses taken together."""
    joined: dict[Problem, Solved] = {}
    for problem in several[0].problems if several else ():
        parts = [one.problems[problem] for one in several if problem in one.problems]
        if len(parts) == len(several):
            responses = sum(part.responses for part in parts)
            mean = sum(part.accuracy * part.responses for part in parts) / responses
            joined[problem] = Solved(parts[0].number, mean, responses, sum(part.right for part in parts))
    return joined
