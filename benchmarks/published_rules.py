"""Dynamic sampling by the rules that other trainers publish, over our ``Engine`` and ``Scorer``.

Written from their documentation and settings to be measured against, in ``dynamic_sampling.py``; nothing here is their
code. All of them work in whole rounds: submit every response of a number of prompts, wait for the longest, score
everything, then look at the groups. Prompts come from one stream and group ids are issued in its order, so that a group
has the same prompt, the same random numbers and, under fixed weights, the same verdict as in ``StreamingCollector``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from dapo.algorithms.algorithm import Algorithm
from dapo.types.batch import (
    Group,
    IntArray,
    Key,
    Response,
    SampleRequest,
    SamplingParams,
    Score,
    StepBatch,
)
from dapo.types.enums import Disposition, FinishReason, Verdict
from dapo.types.protocols import Engine, PromptStream, Scorer
from dapo.types.seeds import TRAINING, derive_seed


@dataclass(slots=True)
class Rounds:
    """Generates whole rounds of groups; what every rule below is made of."""

    engine: Engine
    scorer: Scorer
    stream: PromptStream
    algorithm: Algorithm
    sampling: SamplingParams
    group_size: int
    run_seed: int
    decode: Callable[[Sequence[IntArray]], list[str]]
    next_group: int = 0

    def generate(self, prompts: int, step: int) -> list[Group]:
        """The judged groups of the next ``prompts`` prompts, once the longest response has ended and all are scored.

        Raises:
            RuntimeError: the data has ended.
        """
        taken = self.stream.take(prompts)
        if len(taken) < prompts:
            raise RuntimeError(f"the data ended: {len(taken)} prompts left for a round of {prompts}")
        groups = {
            self.next_group + i: Group(self.next_group + i, prompt, [], [], born=step) for i, prompt in enumerate(taken)
        }
        self.next_group += prompts
        completions = self._complete(groups)
        scores = self._score(groups, completions)
        for group in groups.values():
            keys = [Key("train", group.id, index) for index in range(self.group_size)]
            group.completions_G, group.scores_G = [completions[k] for k in keys], [scores[k] for k in keys]
            group.verdict, group.disposition = self.algorithm.verdict(group), Disposition.DISCARDED
        return list(groups.values())

    def _complete(self, groups: dict[int, Group]) -> dict[Key, Response]:
        self.engine.submit(
            [
                SampleRequest(
                    key=Key("train", group.id, index),
                    prompt_ids=group.prompt.token_ids,
                    sampling=self.sampling,
                    seed=derive_seed(self.run_seed, TRAINING, group.id, index),
                    priority=group.id,
                )
                for group in groups.values()
                for index in range(self.group_size)
            ]
        )
        events: list[Response] = []
        while len(events) < len(groups) * self.group_size:  # the barrier
            events += self.engine.poll()
        # the stop token is no part of the text
        texts = self.decode([e.token_ids[:-1] if e.finish is FinishReason.STOP else e.token_ids for e in events])
        return {event.key: replace(event, text=text) for event, text in zip(events, texts, strict=True)}

    def _score(self, groups: dict[int, Group], completions: dict[Key, Response]) -> dict[Key, Score]:
        for key, completion in completions.items():
            self.scorer.submit(key, groups[key.group].prompt, completion)
        scores: dict[Key, Score] = {}
        while len(scores) < len(completions):
            scores.update(self.scorer.poll(None))
        return scores


@dataclass(slots=True)
class RoundsUntilFull:
    """Rounds of ``round_prompts`` until P groups are kept; the batch is the first P, what is over is thrown away.

    ``round_prompts`` = P: SkyRL's ``filter``, and NeMo RL and verl as they come. 3 P: verl's published DAPO scripts
    (``gen_batch_size``), NeMo RL with ``batch_multiplier`` 3. Every step starts from nothing.
    """

    rounds: Rounds
    prompts_per_step: int
    round_prompts: int
    max_rounds: int | None = 30  # SkyRL's default; verl's scripts and NeMo RL have 10

    def collect(self, step: int) -> StepBatch:
        """The batch of training step ``step``.

        Raises:
            RuntimeError: ``max_rounds`` were not enough, or the data has ended.
        """
        finished: list[Group] = []
        done = 0
        while len(kept := _kept(finished)) < self.prompts_per_step:
            if done == self.max_rounds:
                raise RuntimeError(f"{len(kept)} groups kept after {done} rounds, {self.prompts_per_step} needed")
            finished += self.rounds.generate(self.round_prompts, step)
            done += 1
        return _batch(step, kept[: self.prompts_per_step], finished)


@dataclass(slots=True)
class LimitedResampling:
    """A round of P; while fewer than P groups are kept, another, ``max_resample_times`` at most (ms-swift).

    Kept groups add up over the rounds. The round that uses up the limit is generated and never looked at: the step then
    trains its first round as it came, rejected groups included, and everything kept from later rounds is thrown away.
    (ms-swift draws resamples from a second pass over the data with its own order; here they come from the one stream.)
    """

    rounds: Rounds
    prompts_per_step: int
    max_resample_times: int = 3

    def collect(self, step: int) -> StepBatch:
        """The batch of training step ``step``: P kept groups, or the first round unfiltered.

        Raises:
            RuntimeError: the data has ended.
        """
        first = self.rounds.generate(self.prompts_per_step, step)
        finished = list(first)
        for _ in range(self.max_resample_times):
            if len(kept := _kept(finished)) >= self.prompts_per_step:
                return _batch(step, kept[: self.prompts_per_step], finished)
            finished += self.rounds.generate(self.prompts_per_step, step)
        return _batch(step, first, finished)


def _kept(groups: Sequence[Group]) -> list[Group]:
    return [group for group in groups if group.verdict is Verdict.KEPT]


def _batch(step: int, groups: list[Group], finished: list[Group]) -> StepBatch:
    for group in groups:
        group.disposition = Disposition.TRAINED if group.verdict is Verdict.KEPT else Disposition.FILLED
    return StepBatch(step=step, groups_P=groups, finished=finished)
