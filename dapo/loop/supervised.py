"""Supervised training: the step of ``dapo sft``, as the loop of ``dapo.loop.trainer`` calls it.

The learner, its optimiser step and the checkpoints are those of training by reward. The loss is -log p of every token
that the assistant wrote. Each counts 1 / N (N: such tokens of the optimiser step), so the loss is the mean over tokens
whatever the micro-batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dapo.config.schema import Recipe
from dapo.data.demonstrations import Demonstration
from dapo.data.stream import EpochStream
from dapo.errors import CheckpointError
from dapo.loop.method import Counters, Work
from dapo.metrics.phases import Phases
from dapo.metrics.stats import values
from dapo.types.batch import BoolArray, Learned, LearnStep, Metrics, Prompt, Row, TokenRow
from dapo.types.evaluation import EvaluationResult
from dapo.types.evidence import HeldOutLoss
from dapo.types.protocols import Learner, Recorder

OF_THE_STEP = ("train/loss", "train/grad", "train/entropy", "train/optimizer", "train/skipped", "train/empty")
"""Beginnings of what the learner says that has a meaning without a sampler."""
MEASURED_AT_ONCE = 256
"""Held-out examples of one call to the learner."""


def rows_of(batch: Sequence[Demonstration]) -> list[Row]:
    """One optimiser step's rows, each loss token weighing 1 / N. Examples with one prompt share its computation."""
    prompts = {one.prompt.token_ids.tobytes(): n for n, one in reversed(list(enumerate(batch)))}
    count = sum(int(one.loss_mask.sum()) for one in batch)
    samples: dict[int, int] = {}
    rows = []
    for one in batch:
        group = prompts[one.prompt.token_ids.tobytes()]
        samples[group] = samples.get(group, -1) + 1
        length = len(one.token_ids)
        rows.append(
            Row(
                group=group,
                sample=samples[group],
                prompt_ids=one.prompt.token_ids.astype(np.int32),
                token_ids=one.token_ids.astype(np.int32),
                loss_mask=one.loss_mask,
                sampler_logprobs=np.zeros(length, np.float32),  # nobody sampled them, and the loss reads none
                versions=np.zeros(length, np.int32),
                loss_weight=1.0 / count,
                advantage=1.0,
            )
        )
    return rows


def steps_of(examples: int, batch_size: int, epochs: int, steps: int | None) -> int:
    """Optimiser steps of a run: the last one may be smaller."""
    whole = -(-examples * epochs // batch_size)
    return whole if steps is None else min(steps, whole)


class Supervised:
    """Take examples, learn, measure the held-out loss. Keeps ``dapo.loop.method.Method``.

    Args:
        examples: to train on.
        held_out: by set.
        learner: made for the loss -log p, at temperature 1.
        recipe: gives the batch size, the epochs and the order.
        recorder: gets the held-out loss.
        phases: measures how long each part takes.
    """

    def __init__(
        self,
        *,
        examples: Sequence[Demonstration],
        held_out: Mapping[str, Sequence[Demonstration]],
        learner: Learner,
        recipe: Recipe,
        recorder: Recorder,
        phases: Phases,
    ) -> None:
        self.held_out, self.learner, self.recorder, self.phases = held_out, learner, recorder, phases
        self.batch_size = recipe.sft.batch_size
        self._examples = examples
        # The stream hands out prompts; each says by its place which example it is.
        prompts = [replace(one.prompt, extra={"example": n}) for n, one in enumerate(examples)]
        self.stream = EpochStream(prompts, seed=recipe.run.seed, shuffle=recipe.data.shuffle, epochs=recipe.sft.epochs)
        self._before = self.stream.state()  # of the step at hand
        self._look: Callable[[], None] = lambda: None

    def start(self, look: Callable[[], None]) -> None:
        self._look = look

    def prepare(self, step: int, done: Counters, rate: Callable[[int], float]) -> Work:
        """Take the next examples; a step is one optimizer step."""
        self._before = self.stream.state()
        batch = [self._example(prompt) for prompt in self.stream.take(self.batch_size)]
        counts = {"sft/epoch": self.stream.progress, "sft/examples": len(batch), "sft/tokens": sum(map(len, batch))}
        return Work(LearnStep([rows_of(batch)], [rate(0)], version=done.training_steps), counts)

    def give_up(self, step: int, error: Exception) -> None:
        self.stream.load(self._before)

    def leave(self) -> None:
        """Do nothing: ``prepare`` waits for nothing."""

    def learn(self, work: Work, *, last: bool) -> Learned:
        with self.phases("learn"):
            return self.learner.learn(work.plan).result()

    def measure(self, work: Work, learned: Learned) -> Metrics:
        return {k: v for k, v in values(learned.stats).items() if k.startswith(OF_THE_STEP)} | work.metrics

    def publish(self, version: int) -> Metrics:
        """Do nothing: no engine generates with the weights."""
        return {}

    def evaluates_every(self, recipe: Recipe) -> int:
        return recipe.sft.every if self.held_out else 0

    def evaluate(self, step: int) -> EvaluationResult:
        """Measure the held-out loss, nats a token: of each set, and over the tokens of all."""
        metrics: Metrics = {}
        loss = tokens = 0.0
        with self.phases("evaluate"):
            for name, examples in self.held_out.items():
                own, count = self._loss(examples)
                metrics[f"validation/{name}/loss"] = own / count if count else math.nan
                loss, tokens = loss + own, tokens + count
        metrics["validation/loss"] = loss / tokens if tokens else math.nan
        self.recorder.notice(step, HeldOutLoss(metrics["validation/loss"]))
        return EvaluationResult(metrics, {})

    def awaited(self) -> None:
        return None

    def timing(self, metrics: Metrics, seconds: Mapping[str, float]) -> Metrics:
        took = seconds.get("time/learn")
        if not took or "sft/tokens" not in metrics:
            return {}
        return {"time/trained_tokens_per_second": metrics["sft/tokens"] / took}

    def state(self) -> dict[str, Any]:
        return {"examples": self.stream.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        if "examples" not in state:
            raise CheckpointError("the checkpoint is of `dapo train`, and this run is supervised")
        self.stream.load(state["examples"])

    def _example(self, prompt: Prompt) -> Demonstration:
        return self._examples[int(prompt.extra["example"])]

    def _loss(self, examples: Sequence[Demonstration]) -> tuple[float, int]:
        """Return -log p summed over tokens with loss, and their number."""
        total, count = 0.0, 0
        for start in range(0, len(examples), MEASURED_AT_ONCE):
            self._look()
            part = examples[start : start + MEASURED_AT_ONCE]
            masks: list[BoolArray] = [one.loss_mask for one in part]
            rows = [TokenRow(n, one.prompt.token_ids, one.token_ids) for n, one in enumerate(part)]
            for logprobs, mask in zip(self.learner.logprobs(rows).result(), masks, strict=True):
                total -= float(logprobs[mask].sum(dtype=np.float64))
                count += int(mask.sum())
        return total, count
