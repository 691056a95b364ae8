"""Results of an evaluation: every response with its score, and their metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dapo.types.batch import Metrics, Prompt, Response, Score


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One response to one held-out problem.

    >>> Evaluated("held_out", 0, -1, prompt=None, completion=None, score=Score({"accuracy": 1.0}, 1.0)).sample
    -1
    """

    dataset: str
    problem: int  # index in its data set
    sample: int  # -1: greedy
    prompt: Prompt
    completion: Response
    score: Score


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

    >>> EvaluationResult({"validation/accuracy": 0.5}, responses=[]).silent
    []
    """

    metrics: Metrics
    responses: list[Evaluated]
    reasons: Mapping[str, str] = field(default_factory=dict)  # by set: the commonest reason of those without accuracy

    @property
    def silent(self) -> list[str]:
        """Sets with responses of which not one has an accuracy."""
        known = {r.dataset: False for r in self.responses}
        known |= {r.dataset: True for r in self.responses if r.score.accuracy is not None}
        return [name for name, any_known in known.items() if not any_known]
