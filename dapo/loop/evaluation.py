"""Evaluation on held-out problems: avg@k with its interval, pass@k, maj@k, lengths; greedy and sampled.

Evaluation has a lane and seeds of its own: whether a run is evaluated or not, its training weights are the same bits.
Exception: with ``rollout.max_staleness`` and without ``rollout.overlap_turns`` a clock decides how far training's
responses are, and they go on during an evaluation. The same seeds every time make two evaluations comparable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dapo.errors import EngineError, RewardError
from dapo.loop.evaluation_metrics import kind_of, reason_of, result_of
from dapo.loop.sampling.rollouts import Rollouts
from dapo.types.batch import (
    Group,
    Key,
    Prompt,
    Response,
    SampleRequest,
    SamplingParams,
    Score,
)
from dapo.types.evaluation import GREEDY, EvaluationProgress, EvaluationResult
from dapo.types.seeds import EVALUATION, derive_seed

log = logging.getLogger(__name__)


class Evaluator:
    """Evaluates the engine's present weights on named sets of prompts."""

    def __init__(
        self,
        *,
        rollouts: Rollouts,
        prompts: Mapping[str, Sequence[Prompt]],
        sampling: SamplingParams,
        samples: int,
        greedy: bool,
        seed: int,
        watch: Callable[[EvaluationProgress], None] | None = None,
    ) -> None:
        """``watch`` is called whenever a response ended or was scored."""
        self.rollouts, self.prompts = rollouts, prompts
        self.sampling, self.samples, self.greedy, self.seed = sampling, samples, greedy, seed
        self._samples = [*range(samples), *([GREEDY] if greedy else [])]  # of a problem, as their keys have them
        self.watch = watch
        self._told: set[tuple[str, bool]] = set()  # failures of verifiers that were told: kind, accuracy known
        self._answered = self._scored = 0  # responses of the evaluation that goes on

    def evaluate(self) -> EvaluationResult:
        """Sample (and decode greedily) every problem of every set.

        Raises:
            EngineError: a request never came back.
            RewardError: a score never came back.
        """
        self._answered = self._scored = 0
        sets: dict[str, list[Group]] = {}
        first = 0  # group of a set's first problem
        for number, (name, prompts) in enumerate(self.prompts.items()):
            sets[name] = self._groups(number, first, prompts)
            first += len(prompts)
        for name, groups in sets.items():
            self._warn(name, groups)
        return result_of(sets, self.samples, self.greedy)

    def _groups(self, number: int, first: int, prompts: Sequence[Prompt]) -> list[Group]:
        keys = [[Key("evaluate", first + index, sample) for sample in self._samples] for index in range(len(prompts))]
        requests = [
            SampleRequest(
                key=key,
                prompt_ids=prompts[index].token_ids,
                sampling=replace(self.sampling, temperature=0.0) if key.sample == GREEDY else self.sampling,
                seed=derive_seed(self.seed, EVALUATION, number, index, n),
                priority=index,
            )
            for index, of_problem in enumerate(keys)
            for n, key in enumerate(of_problem)
        ]
        completions, scores = self._complete(requests, {r.key: prompts[r.key.group - first] for r in requests})
        return [
            Group(index, prompts[index], [completions[key] for key in of_problem], [scores[key] for key in of_problem])
            for index, of_problem in enumerate(keys)
        ]

    def _complete(
        self, requests: Sequence[SampleRequest], prompts: Mapping[Key, Prompt]
    ) -> tuple[dict[Key, Response], dict[Key, Score]]:
        """Complete the requests; verifiers score what has ended while the engine makes the rest."""
        self.rollouts.submit(requests, prompts.__getitem__)
        completions: dict[Key, Response] = {}
        scores: dict[Key, Score] = {}
        while len(completions) < len(requests):
            self.rollouts.pump()
            for response in self.rollouts.ended("evaluate"):
                completions[response.key] = response
                keys = [response.key]
                if self.rollouts.by_group:  # the greedy response is one of its problem's group
                    keys = [response.key._replace(sample=sample) for sample in self._samples]
                if all(key in completions for key in keys):
                    self.rollouts.judge(prompts[response.key], [(key, completions[key]) for key in keys])
            if lost := self.rollouts.lost("evaluate"):
                raise EngineError(f"the engine lost {len(lost)} of the evaluation's {len(requests)} requests")
            scores.update(self.rollouts.scores("evaluate", 0))
            self._tell(len(completions), len(scores))
        while len(scores) < len(requests):
            arrived = self.rollouts.scores("evaluate")
            if not arrived:
                missing = [key for key in completions if key not in scores]
                raise RewardError(
                    f"the scores of {len(missing)} of the evaluation's {len(requests)} responses never came back; "
                    f"the first is that of problem {prompts[missing[0]].problem[:80]!r}"
                )
            scores.update(arrived)
            self._tell(len(completions), len(scores))
        self._answered += len(requests)
        self._scored += len(requests)
        return completions, scores

    def _tell(self, answered: int, scored: int) -> None:
        """``answered`` and ``scored``: of the set at hand."""
        if self.watch is not None:
            total = sum(map(len, self.prompts.values())) * (self.samples + self.greedy)
            self.watch(EvaluationProgress(self._answered + answered, self._scored + scored, total))

    def _warn(self, name: str, groups: Sequence[Group]) -> None:
        """Warn of the first failure of each kind at once, and once in a run."""
        for problem, score in ((group.id, score) for group in groups for score in group.scores_G):
            known = score.accuracy is not None
            kind = (kind_of(score), known)
            if score.scored or kind in self._told:
                continue
            self._told.add(kind)
            what = (
                "another reward than the accuracy failed; the held-out accuracy does not depend on it"
                if known
                else "its accuracy is unknown, and left out of the held-out accuracy"
            )
            log.warning(
                "held-out set %s, problem %d: %s: %s. More failures of this kind are only counted "
                "(validation/%s in metrics.jsonl, `unscored` in samples.jsonl).",
                name,
                problem,
                reason_of(score),
                what,
                "failed_rewards" if known else "unscored",
            )
