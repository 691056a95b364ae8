"""Evaluation on held-out problems: avg@k with its interval, pass@k, maj@k, lengths; greedy and sampled.

Evaluation uses the engine between steps, with group ids and seeds of its own: whether a run is evaluated or not,
its training weights are the same bits. The same seeds every time make two evaluations of a run comparable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from dapo.contracts.enums import FinishReason
from dapo.contracts.evaluation import Evaluated, EvaluationResult
from dapo.contracts.protocols import Engine, Scorer
from dapo.contracts.types import (
    Completion,
    EvaluationProgress,
    IntArray,
    Key,
    Prompt,
    SampleRequest,
    SamplingParams,
    Score,
)
from dapo.errors import EngineError, RewardError
from dapo.loop.evaluation_metrics import kind_of, reason_of, result_of
from dapo.loop.outcomes import ENGINE
from dapo.loop.seeds import EVALUATION, derive_seed

log = logging.getLogger(__name__)

# Group ids of evaluation start here, far above any that training can reach.
FIRST_EVALUATION_GROUP = 1 << 40


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
        watch: Callable[[EvaluationProgress], None] | None = None,
    ) -> None:
        """``watch`` is called whenever a response ended or was scored."""
        self.engine, self.scorer, self.prompts = engine, scorer, prompts
        self.sampling, self.samples, self.greedy, self.seed = sampling, samples, greedy, seed
        self.decode, self.watch = decode, watch
        self._told: set[tuple[str, bool]] = set()  # failures of verifiers that were told: kind, accuracy known
        self._answered = self._scored = 0  # responses of the evaluation that goes on

    def evaluate(self) -> EvaluationResult:
        """Sample (and decode greedily) every problem of every set. The engine must be idle.

        Raises:
            EngineError: a request never came back.
            RewardError: a score never came back.
        """
        self._answered = self._scored = 0
        by_set = {
            name: self._responses(number, name, prompts) for number, (name, prompts) in enumerate(self.prompts.items())
        }
        for responses in by_set.values():
            self._warn(responses)
        return result_of(by_set, self.samples, self.greedy)

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
        completions, scores = self._complete(requests, {r.key: prompts[r.key[0] - first] for r in requests})
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

    def _complete(
        self, requests: Sequence[SampleRequest], prompts: Mapping[Key, Prompt]
    ) -> tuple[dict[Key, Completion], dict[Key, Score]]:
        """Verifiers work on what has ended while the engine makes the rest."""
        self.engine.submit(requests)
        completions: dict[Key, Completion] = {}
        scores: dict[Key, Score] = {}
        while len(completions) < len(requests):
            events = self.engine.poll()
            if not events:
                raise EngineError(
                    f"the engine lost {len(requests) - len(completions)} of the evaluation's {len(requests)} requests"
                )
            stripped = [e.token_ids[:-1] if e.finish is FinishReason.STOP else e.token_ids for e in events]
            for event, text in zip(events, self.decode(stripped), strict=True):
                done = Completion(event.token_ids, event.logprobs, event.versions, event.finish, text)
                completions[event.key] = done
                if done.finish is FinishReason.FAILED:
                    scores[event.key] = Score(reason=f"{ENGINE}{event.reason or 'failed'}")
                else:
                    self.scorer.submit(event.key, prompts[event.key], done)
            scores.update(self.scorer.poll(0))
            self._tell(len(completions), len(scores))
        while len(scores) < len(requests):
            arrived = self.scorer.poll(None)
            if not arrived:
                lost = [key for key in completions if key not in scores]
                raise RewardError(
                    f"the scores of {len(lost)} of the evaluation's {len(requests)} responses never came back; "
                    f"the first is that of problem {prompts[lost[0]].problem[:80]!r}"
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

    def _warn(self, responses: Sequence[Evaluated]) -> None:
        """The first failure of each kind is told at once, and once in a run."""
        for response in responses:
            score, known = response.score, response.score.accuracy is not None
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
                response.dataset,
                response.problem,
                reason_of(score),
                what,
                "failed_rewards" if known else "unscored",
            )
