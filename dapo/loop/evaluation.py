"""Evaluation on held-out problems: avg@k with its interval, pass@k, maj@k, lengths; greedy and sampled.

Evaluation uses the engine between steps, with group ids and seeds of its own: whether a run is evaluated or not,
its training weights are the same bits. The same seeds every time make two evaluations of a run comparable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dapo.algorithms.statistics import majority_correct, mean_interval, pass_at_k
from dapo.contracts.enums import FinishReason
from dapo.contracts.protocols import Engine, Scorer
from dapo.contracts.types import Completion, IntArray, Key, Metrics, Prompt, SampleRequest, SamplingParams, Score
from dapo.errors import EngineError
from dapo.loop.outcomes import ENGINE
from dapo.loop.seeds import EVALUATION, derive_seed

# Group ids of evaluation start here, far above any that training can reach.
FIRST_EVALUATION_GROUP = 1 << 40


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One response to one held-out problem."""

    dataset: str
    problem: int  # index in its data set
    sample: int  # -1: greedy
    prompt: Prompt
    completion: Completion
    score: Score


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    metrics: Metrics
    responses: list[Evaluated]


class Evaluator:
    """Evaluates the engine's present weights on named sets of prompts."""

    def __init__(
        self,
        *,
        engine: Engine,
        scorer: Scorer,
        prompts: Mapping[str, Sequence[Prompt]],
        sampling: SamplingParams,
        samples: int,
        greedy: bool,
        seed: int,
        decode: Callable[[Sequence[IntArray]], list[str]],
    ) -> None:
        self.engine, self.scorer, self.prompts = engine, scorer, prompts
        self.sampling, self.samples, self.greedy, self.seed = sampling, samples, greedy, seed
        self.decode = decode

    def evaluate(self) -> EvaluationResult:
        """Sample (and decode greedily) every problem of every set. The engine must be idle."""
        metrics: Metrics = {}
        responses: list[Evaluated] = []
        for number, (name, prompts) in enumerate(self.prompts.items()):
            of_set = self._responses(number, name, prompts)
            metrics |= {f"validation/{name}/{key}": value for key, value in self._summary(of_set).items()}
            responses += of_set
        return EvaluationResult(self._overall(metrics) | metrics, responses)

    def _responses(self, number: int, name: str, prompts: Sequence[Prompt]) -> list[Evaluated]:
        first = FIRST_EVALUATION_GROUP * (1 + number)
        requests = []
        for index, prompt in enumerate(prompts):
            for sample in range(self.samples + self.greedy):
                sampled = sample < self.samples
                requests.append(
                    SampleRequest(
                        key=(first + index, sample),
                        prompt_ids=prompt.token_ids,
                        sampling=self.sampling if sampled else replace(self.sampling, temperature=0.0),
                        seed=derive_seed(self.seed, EVALUATION, number, index, sample),
                        priority=index,
                    )
                )
        completions = self._complete(requests)
        scores = self._score({key: (prompts[key[0] - first], c) for key, c in completions.items()})
        return [
            Evaluated(
                name,
                key[0] - first,
                key[1] if key[1] < self.samples else -1,
                prompts[key[0] - first],
                completions[key],
                scores[key],
            )
            for key in sorted(completions)
        ]

    def _complete(self, requests: Sequence[SampleRequest]) -> dict[Key, Completion]:
        self.engine.submit(requests)
        out: dict[Key, Completion] = {}
        while len(out) < len(requests):
            events = self.engine.poll()
            if not events:
                raise EngineError(
                    f"the engine lost {len(requests) - len(out)} of the evaluation's {len(requests)} requests"
                )
            stripped = [e.token_ids[:-1] if e.finish is FinishReason.STOP else e.token_ids for e in events]
            for event, text in zip(events, self.decode(stripped), strict=True):
                out[event.key] = Completion(event.token_ids, event.logprobs, event.versions, event.finish, text)
        return out

    def _score(self, pairs: Mapping[Key, tuple[Prompt, Completion]]) -> dict[Key, Score]:
        scores = {
            key: Score(reason=f"{ENGINE}failed") for key, (_, c) in pairs.items() if c.finish is FinishReason.FAILED
        }
        for key, (prompt, completion) in pairs.items():
            if key not in scores:
                self.scorer.submit(key, prompt, completion)
        while len(scores) < len(pairs):
            scores.update(self.scorer.poll(None))
        return scores

    def _summary(self, responses: Sequence[Evaluated]) -> Metrics:
        """Metrics of one data set. Unscored responses are left out of every mean and counted."""
        sampled = [r for r in responses if r.sample >= 0]
        greedy = [r for r in responses if r.sample < 0 and r.score.scored]
        problems = sorted({r.problem for r in responses})
        by_problem = [[r for r in sampled if r.problem == p and r.score.scored] for p in problems]
        by_problem = [rows for rows in by_problem if rows]
        means = np.array([np.mean([r.score.values["accuracy"] for r in rows]) for rows in by_problem])
        interval = mean_interval(list(means), bounds=(0.0, 1.0)) if len(means) else None
        out: Metrics = {
            "accuracy": interval.mean if interval else math.nan,
            "accuracy_low": interval.low if interval else math.nan,
            "accuracy_high": interval.high if interval else math.nan,
            "length_mean": _mean([len(r.completion) for r in sampled]),
            "truncated_share": _mean([r.completion.truncated for r in sampled]),
            "unscored": sum(not r.score.scored for r in responses),
            "problems": len(problems),
        }
        correct = [sum(r.score.values["accuracy"] >= 1.0 for r in rows) for rows in by_problem]
        k = 1
        while k <= self.samples:
            usable = [(len(rows), c) for rows, c in zip(by_problem, correct, strict=True) if len(rows) >= k]
            out[f"pass@{k}"] = _mean([pass_at_k(n, c, k) for n, c in usable])
            k = k * 2 if k * 2 <= self.samples or k == self.samples else self.samples
        voting = [rows for rows in by_problem if any(r.score.answer is not None for r in rows)]
        if voting and self.samples > 1:
            out[f"maj@{self.samples}"] = sum(_majority(rows) for rows in voting) / len(by_problem)
        if self.greedy:
            out["greedy_accuracy"] = _mean([r.score.values["accuracy"] for r in greedy])
            out["greedy_length_mean"] = _mean([len(r.completion) for r in greedy])
            out["greedy_truncated_share"] = _mean([r.completion.truncated for r in greedy])
        return out

    def _overall(self, metrics: Metrics) -> Metrics:
        """Means over the sets (each set counts once), under ``validation/<key>``."""
        names = list(self.prompts)
        out: Metrics = {}
        for key in dict.fromkeys(key.removeprefix(f"validation/{name}/") for name in names for key in metrics):
            values = [metrics[f"validation/{name}/{key}"] for name in names if f"validation/{name}/{key}" in metrics]
            if values:
                out[f"validation/{key}"] = _mean(values)
        # The sets are independent: the variance of their mean is the sum of their variances over n squared.
        half = [_of(metrics, n, "accuracy_high") - _of(metrics, n, "accuracy") for n in names]
        spread = math.sqrt(sum(h * h for h in half)) / max(1, len(names))
        if len(names) > 1:
            out["validation/accuracy_low"] = out["validation/accuracy"] - spread
            out["validation/accuracy_high"] = out["validation/accuracy"] + spread
        return out


def _of(metrics: Metrics, name: str, key: str) -> float:
    return metrics[f"validation/{name}/{key}"]


def _majority(rows: Sequence[Evaluated]) -> float:
    return majority_correct([r.score.answer for r in rows], [r.score.values["accuracy"] >= 1.0 for r in rows])


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(np.asarray(values, dtype=np.float64))) if len(values) else float("nan")
