"""Results of an evaluation: the groups of every validation set, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from dapo.types.batch import Group, Metrics

ValidationSets = Mapping[str, Sequence[Group]]
"""By name of a validation set, a group for each of its problems, in order; ``Group.id`` is the problem's index.

A greedy response comes after the sampled ones.
"""

GREEDY = -1
"""Of a greedy response the ``sample`` of its key."""


@dataclass(frozen=True, slots=True)
class EvaluationProgress:
    """How far an evaluation is, in responses.

    >>> EvaluationProgress(answered=8, scored=6, total=32).total
    32
    """

    answered: int  # ended in the engine
    scored: int  # judged by every verifier, or given up
    total: int


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """Measure of an evaluation, with every response that it was computed from.

    >>> EvaluationResult({"validation/accuracy": 0.5}, sets={}).silent
    []
    """

    metrics: Metrics
    sets: ValidationSets
    reasons: Mapping[str, str] = field(default_factory=dict)  # by set: the commonest reason of those without accuracy

    @property
    def silent(self) -> list[str]:
        """Sets with responses of which not one has an accuracy."""
        scores = {name: [score for group in groups for score in group.scores_G] for name, groups in self.sets.items()}
        return [name for name, of_set in scores.items() if of_set and all(score.accuracy is None for score in of_set)]
