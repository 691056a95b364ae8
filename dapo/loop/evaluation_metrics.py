"""Metrics of an evaluation: pure functions from scored responses to metrics.

The accuracy is that of the reward called accuracy alone: another reward that fails on a response takes nothing away
from it. A response whose accuracy is unknown is left out of the means and counted, and the accuracy that would hold if
all of them were wrong is recorded with the mean.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from dapo.algorithms.statistics import (
    Estimate,
    majority_correct,
    mean_interval,
    mean_of_estimates,
    pass_at_k,
)
from dapo.types.batch import Metrics, Score
from dapo.types.evaluation import Evaluated, EvaluationResult

UNKNOWN = Estimate(math.nan, math.nan, math.nan, math.nan)
_COUNTS = ("unscored", "failed_rewards", "responses", "problems")
"""Keys whose value over all sets is the sum and not the mean."""


def result_of(by_set: Mapping[str, Sequence[Evaluated]], samples: int, greedy: bool) -> EvaluationResult:
    """Metrics of every set under ``validation/SET/``, and over the sets under ``validation/``.

    Args:
        by_set: responses by name of their set.
        samples: sampled responses per problem, k.
        greedy: whether each problem has a greedy response too.
    """
    sets: dict[str, Metrics] = {}
    accuracies: dict[str, Estimate] = {}
    reasons: dict[str, str] = {}
    for name, responses in by_set.items():
        accuracies[name] = accuracy_of(responses)
        sets[name] = _summary(responses, accuracies[name], samples, greedy)
        missing = Counter(reason_of(r.score) for r in responses if r.score.accuracy is None)
        if missing:
            reasons[name] = missing.most_common(1)[0][0]
    metrics = {f"validation/{key}": value for key, value in _overall(list(sets.values())).items()}
    if accuracies:
        metrics |= {f"validation/{key}": value for key, value in _interval(mean_of_estimates([*accuracies.values()]))}
    metrics |= {f"validation/{name}/{key}": value for name, of_set in sets.items() for key, value in of_set.items()}
    return EvaluationResult(metrics, [r for responses in by_set.values() for r in responses], reasons)


def by_set_of(responses: Sequence[Evaluated]) -> dict[str, list[Evaluated]]:
    """Responses by name of their set, in order of appearance."""
    sets: dict[str, list[Evaluated]] = {}
    for response in responses:
        sets.setdefault(response.dataset, []).append(response)
    return sets


def reason_of(score: Score) -> str:
    """Return the first line of a verifier's error, cut to a length that a line can hold."""
    return ((score.reason or "").strip() or "no reason given").splitlines()[0][:200]


def kind_of(score: Score) -> str:
    """Return the reason's text before the first colon, as a metric's name can hold it."""
    return reason_of(score).partition(":")[0].replace("/", " ") or "no reason given"


def accuracy_of(responses: Sequence[Evaluated]) -> Estimate:
    """avg@k of the sampled responses whose accuracy is known; nan where there is none."""
    by_problem = _known_by_problem(responses)
    return mean_interval(by_problem, bounds=(0.0, 1.0)) if by_problem else UNKNOWN


def _known_by_problem(responses: Sequence[Evaluated]) -> list[list[float]]:
    """Accuracies of each problem's sampled responses, where they are known; problems without one are not there."""
    by_problem: dict[int, list[float]] = {}
    for response in responses:
        accuracy = response.score.accuracy
        if response.sample >= 0 and accuracy is not None:
            by_problem.setdefault(response.problem, []).append(accuracy)
    return list(by_problem.values())


def _interval(accuracy: Estimate) -> list[tuple[str, float]]:
    return [("accuracy", accuracy.mean), ("accuracy_low", accuracy.low), ("accuracy_high", accuracy.high)]


def _summary(responses: Sequence[Evaluated], accuracy: Estimate, samples: int, greedy: bool) -> Metrics:
    """Metrics of one data set."""
    sampled = [r for r in responses if r.sample >= 0]
    missing = [r for r in responses if r.score.accuracy is None]
    out: Metrics = {
        **dict(_interval(accuracy)),
        "accuracy_unscored_wrong": _worst(sampled),
        "length_mean": _mean([r.completion.model_tokens for r in sampled]),
        "truncated_share": _mean([r.completion.truncated for r in sampled]),
        "unscored": len(missing),
        "failed_rewards": sum(not r.score.scored for r in responses) - len(missing),
        "responses": len(responses),
        "problems": len({r.problem for r in responses}),
    }
    kinds = Counter(kind_of(r.score) for r in missing)
    out |= {f"unscored_{kind}": count for kind, count in kinds.items()}
    known: dict[int, list[Evaluated]] = {}
    for response in sampled:
        if response.score.accuracy is not None:
            known.setdefault(response.problem, []).append(response)
    correct = [(len(rows), sum(_correct(r) for r in rows)) for rows in known.values()]
    for k in _widths(samples):
        out[f"pass@{k}"] = _mean([pass_at_k(n, c, k) for n, c in correct if n >= k])
    voting = [rows for rows in known.values() if any(r.score.answer is not None for r in rows)]
    if voting and samples > 1:
        out[f"maj@{samples}"] = math.fsum(_majority(rows) for rows in voting) / len(known)
    if greedy:
        of_greedy = [r for r in responses if r.sample < 0]
        out["greedy_accuracy"] = _mean([r.score.accuracy for r in of_greedy if r.score.accuracy is not None])
        out["greedy_length_mean"] = _mean([r.completion.model_tokens for r in of_greedy])
        out["greedy_truncated_share"] = _mean([r.completion.truncated for r in of_greedy])
    return out


def _worst(sampled: Sequence[Evaluated]) -> float:
    """Mean over all problems of each problem's mean, every response without an accuracy counted as wrong."""
    by_problem: dict[int, list[float]] = {}
    for response in sampled:
        by_problem.setdefault(response.problem, []).append(response.score.accuracy or 0.0)
    return _mean([_mean(values) for values in by_problem.values()])


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


def _correct(response: Evaluated) -> bool:
    return (response.score.accuracy or 0.0) >= 1.0


def _majority(rows: Sequence[Evaluated]) -> float:
    return majority_correct([r.score.answer for r in rows], [_correct(r) for r in rows])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.asarray(values, dtype=np.float64))) if len(values) else math.nan
