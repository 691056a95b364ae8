"""Metrics of an evaluation: pure functions from scored responses to metrics.

The accuracy is that of the reward called accuracy alone: another reward that fails on a response takes nothing away
from it. A response whose accuracy is unknown is left out of the means and counted, and the accuracy that would hold if
all of them were wrong is recorded with the mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from dapo.algorithms.statistics import (
    Estimate,
    majority_correct,
    mean_interval,
    mean_of_estimates,
    pass_at_k,
)
from dapo.types.batch import Group, Metrics, Response, Score
from dapo.types.evaluation import GREEDY, EvaluationResult, ValidationSets

UNKNOWN = Estimate(math.nan, math.nan, math.nan, math.nan)
_COUNTS = ("unscored", "failed_rewards", "responses", "problems")
"""Keys whose value over all sets is the sum and not the mean."""


def result_of(sets: ValidationSets, samples: int, greedy: bool) -> EvaluationResult:
    """Metrics of every set under ``validation/SET/``, and over the sets under ``validation/``.

    Args:
        sets: groups by name of their set.
        samples: sampled responses per problem, k.
        greedy: whether each problem has a greedy response too.
    """
    by_set: dict[str, Metrics] = {}
    accuracies: dict[str, Estimate] = {}
    reasons: dict[str, str] = {}
    for name, groups in sets.items():
        accuracies[name] = accuracy_of(groups)
        by_set[name] = _summary(groups, accuracies[name], samples, greedy)
        missing = Counter(reason_of(s) for group in groups for s in group.scores_G if s.accuracy is None)
        if missing:
            reasons[name] = missing.most_common(1)[0][0]
    metrics = {f"validation/{key}": value for key, value in _overall(list(by_set.values())).items()}
    if accuracies:
        metrics |= {f"validation/{key}": value for key, value in _interval(mean_of_estimates([*accuracies.values()]))}
    metrics |= {f"validation/{name}/{key}": value for name, of_set in by_set.items() for key, value in of_set.items()}
    return EvaluationResult(metrics, sets, reasons)


def reason_of(score: Score) -> str:
    """Return the first line of a verifier's error, cut to a length that a line can hold."""
    return ((score.reason or "").strip() or "no reason given").splitlines()[0][:200]


def kind_of(score: Score) -> str:
    """Return the reason's text before the first colon, as a metric's name can hold it."""
    return reason_of(score).partition(":")[0].replace("/", " ") or "no reason given"


def accuracy_of(groups: Sequence[Group]) -> Estimate:
    """avg@k of the sampled responses whose accuracy is known; nan where there is none."""
    known = [[score.accuracy or 0.0 for score in scores] for scores in _known(groups)]
    return mean_interval(known, bounds=(0.0, 1.0)) if known else UNKNOWN


def _pairs(groups: Sequence[Group], greedy: bool = False) -> list[list[tuple[Response, Score]]]:
    """Return of each problem the sampled responses with their scores, or the greedy one."""
    by_problem = [[pair for pair in group.pairs() if (pair[0].key.sample == GREEDY) is greedy] for group in groups]
    return [pairs for pairs in by_problem if pairs]


def _known(groups: Sequence[Group]) -> list[list[Score]]:
    """Return of each problem the scores of sampled responses whose accuracy is known; problems without one are not
    there."""
    by_problem = [[score for _, score in pairs if score.accuracy is not None] for pairs in _pairs(groups)]
    return [scores for scores in by_problem if scores]


def _interval(accuracy: Estimate) -> list[tuple[str, float]]:
    return [("accuracy", accuracy.mean), ("accuracy_low", accuracy.low), ("accuracy_high", accuracy.high)]


def _summary(groups: Sequence[Group], accuracy: Estimate, samples: int, greedy: bool) -> Metrics:
    """Metrics of one data set."""
    by_problem, known = _pairs(groups), _known(groups)
    scores = [score for group in groups for score in group.scores_G]
    missing = [score for score in scores if score.accuracy is None]
    out: Metrics = {
        **dict(_interval(accuracy)),
        # of each problem the mean, every response without an accuracy counted as wrong
        "accuracy_unscored_wrong": _mean([_mean([s.accuracy or 0.0 for _, s in pairs]) for pairs in by_problem]),
        **_sizes("", by_problem),
        "unscored": len(missing),
        "failed_rewards": sum(not score.scored for score in scores) - len(missing),
        "responses": len(scores),
        "problems": len(groups),
    }
    kinds = Counter(map(kind_of, missing))
    out |= {f"unscored_{kind}": count for kind, count in kinds.items()}
    correct = [(len(of_problem), sum(map(_correct, of_problem))) for of_problem in known]
    for k in _widths(samples):
        out[f"pass@{k}"] = _mean([pass_at_k(n, c, k) for n, c in correct if n >= k])
    voting = [of_problem for of_problem in known if any(score.answer is not None for score in of_problem)]
    if voting and samples > 1:
        out[f"maj@{samples}"] = math.fsum(_majority(of_problem) for of_problem in voting) / len(known)
    if greedy:
        of_greedy = _pairs(groups, greedy=True)
        accuracies = [score.accuracy for pairs in of_greedy for _, score in pairs]
        out["greedy_accuracy"] = _mean([accuracy for accuracy in accuracies if accuracy is not None])
        out |= _sizes("greedy_", of_greedy)
    return out


def _sizes(before: str, by_problem: Sequence[Sequence[tuple[Response, Score]]]) -> Metrics:
    responses = [response for pairs in by_problem for response, _ in pairs]
    return {
        f"{before}length_mean": _mean([response.model_tokens for response in responses]),
        f"{before}truncated_share": _mean([response.truncated for response in responses]),
    }


def _overall(sets: Sequence[Metrics]) -> Metrics:
    """Over the sets, each of which counts once: means, and sums of what counts something."""
    out: Metrics = {}
    for key in dict.fromkeys(key for of_set in sets for key in of_set):
        values = [of_set[key] for of_set in sets if key in of_set]
        counts = key in _COUNTS or key.startswith("unscored_")
        out[key] = sum(values) if counts else _mean(values)
    return out


def _widths(samples: int) -> list[int]:
    """1, 2, 4, ... up to ``samples``, and ``samples`` itself."""
    return [*(1 << n for n in range(samples.bit_length()) if 1 << n < samples), samples]


def _correct(score: Score) -> bool:
    return (score.accuracy or 0.0) >= 1.0


def _majority(scores: Sequence[Score]) -> float:
    return majority_correct([score.answer for score in scores], list(map(_correct, scores)))


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.asarray(values, dtype=np.float64))) if len(values) else math.nan
