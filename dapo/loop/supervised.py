"""Supervised training: the loop of ``dapo sft``. The learner, its optimiser step and the checkpoints are those of
training by reward; the loss is -log p of every token that the assistant wrote, and each counts 1 / N (N: such tokens of
the optimiser step), so that it is the mean over tokens whatever the micro-batches and ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from dapo.checkpoint.store import CheckpointStore
from dapo.checkpoint.tree import as_damage
from dapo.config.schema import Recipe
from dapo.data.demonstrations import Demonstration
from dapo.data.stream import EpochStream
from dapo.errors import CheckpointError
from dapo.loop.best import follow
from dapo.loop.boundary import begin_boundary, load_learner, open_state
from dapo.loop.counters import Counters, StepDone
from dapo.loop.saving import Saver
from dapo.loop.schedule import Schedule
from dapo.loop.stopping import Deadline, Stopping
from dapo.metrics.phases import Phases
from dapo.metrics.stats import values
from dapo.observe.spans import peak_rss_mib
from dapo.types.batch import BoolArray, LearnStep, Metrics, Prompt, Row, SavedFile, TokenRow
from dapo.types.evidence import HeldOutLoss
from dapo.types.protocols import Handle, Learner, Recorder

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


class SupervisedTrainer:
    """Runs the loop over a stream of examples and a learner.

    Args:
        examples: to train on.
        held_out: by set.
        learner: made for the loss -log p, at temperature 1.
        recipe: its ``trainer.steps`` are those of this run.
        fingerprint: of the model.
        facts: what a checkpoint shall say of its run.
    """

    def __init__(
        self,
        *,
        examples: Sequence[Demonstration],
        held_out: Mapping[str, Sequence[Demonstration]],
        learner: Learner,
        schedule: Schedule,
        checkpoints: CheckpointStore,
        recorder: Recorder,
        recipe: Recipe,
        fingerprint: dict[str, Any],
        phases: Phases,
        deadline: Deadline,
        facts: Mapping[str, Any],
    ) -> None:
        self.held_out, self.learner, self.schedule = held_out, learner, schedule
        self.recorder, self.recipe, self.phases = recorder, recipe, phases
        self.fingerprint, self.facts, self.steps = fingerprint, dict(facts), recipe.trainer.steps
        self.counters = Counters()
        sft, early, kept = recipe.sft, recipe.trainer.early_stop, recipe.checkpoint
        self._examples = examples
        # The stream hands out prompts; each says by its place which example it is.
        prompts = [replace(one.prompt, extra={"example": n}) for n, one in enumerate(examples)]
        self.stream = EpochStream(prompts, seed=recipe.run.seed, shuffle=recipe.data.shuffle, epochs=sft.epochs)
        self.saver = Saver(checkpoints, recorder, phases, follow(kept.best, kept.best_is))
        self.stopping = Stopping(
            recorder, checkpoints, deadline, follow(early.metric, early.best_is, early.min_change), early.patience
        )
        self._measured_at = -1

    @property
    def finished(self) -> bool:
        """The run is at its end: nothing is left for a resume to do."""
        return self.stopping.finished(self.steps - self.counters.training_steps)

    def each_step(self) -> Iterator[StepDone]:
        """Train, a step at a time: each is recorded and, where it is due, saved when it is given out. Whoever leaves in
        the middle closes the iterator: the state is then saved."""
        self.phases.take()
        self.stopping.start()
        self.saver.start()
        with self.stopping.interrupts:
            if self.counters.training_steps == 0 and (metrics := self._measured(0)):
                self._record(0, metrics)
            try:
                while self.counters.training_steps < self.steps and not self.stopping.due(self.saver.longest):
                    yield self._step()
            except GeneratorExit:
                self.stopping.stop("its caller")
            step = self.counters.training_steps
            if self.stopping.early and self._measured_at != step and (metrics := self._measured(step)):
                self._record(step, metrics)
            if self.saver.wants(step):
                self.save()
            self.saver.finish()

    def _step(self) -> StepDone:
        step = self.phases.step = self.counters.training_steps + 1
        batch = [self._example(prompt) for prompt in self.stream.take(self.recipe.sft.batch_size)]
        rate = self.schedule.at(step - 1, step - 1)
        with self.phases("learn"):
            learned = self.learner.learn(LearnStep([rows_of(batch)], [rate], version=step - 1)).result()
        self.counters.training_steps += 1
        self.counters.optimizer_steps += 1
        self.counters.trained_tokens += sum(int(one.loss_mask.sum()) for one in batch)
        metrics: Metrics = {k: v for k, v in values(learned.stats).items() if k.startswith(OF_THE_STEP)}
        metrics |= {
            "train/learning_rate": rate,
            "sft/epoch": self.stream.progress,
            "sft/examples": len(batch),
            "sft/tokens": sum(map(len, batch)),
            "counters/training_steps": self.counters.training_steps,
            "counters/optimizer_steps": self.counters.optimizer_steps,
            "counters/trained_tokens": self.counters.trained_tokens,
        }
        every = self.recipe.sft.every
        if every and (step % every == 0 or step == self.steps):
            metrics |= self._measured(step)
        self._record(step, metrics)
        self.saver.step_done(step, self.recipe.checkpoint, self._write)
        return StepDone(step, metrics, [])

    def _example(self, prompt: Prompt) -> Demonstration:
        return self._examples[int(prompt.extra["example"])]

    def _measured(self, step: int) -> Metrics:
        """Held-out loss, nats a token: of each set, and over the tokens of all."""
        if not (self.held_out and self.recipe.sft.every):
            return {}
        metrics: Metrics = {}
        loss = tokens = 0.0
        with self.phases("evaluate"):
            for name, examples in self.held_out.items():
                own, count = self._loss(examples)
                metrics[f"validation/{name}/loss"] = own / count if count else math.nan
                loss, tokens = loss + own, tokens + count
        metrics["validation/loss"] = loss / tokens if tokens else math.nan
        self._measured_at = step
        self.recorder.notice(step, HeldOutLoss(metrics["validation/loss"]))
        return metrics

    def _loss(self, examples: Sequence[Demonstration]) -> tuple[float, int]:
        """-log p summed over tokens with loss, and their number."""
        total, count = 0.0, 0
        for start in range(0, len(examples), MEASURED_AT_ONCE):
            part = examples[start : start + MEASURED_AT_ONCE]
            masks: list[BoolArray] = [one.loss_mask for one in part]
            rows = [TokenRow(n, one.prompt.token_ids, one.token_ids) for n, one in enumerate(part)]
            for logprobs, mask in zip(self.learner.logprobs(rows).result(), masks, strict=True):
                total -= float(logprobs[mask].sum(dtype=np.float64))
                count += int(mask.sum())
        return total, count

    def _record(self, step: int, metrics: Metrics) -> None:
        seconds = self.phases.take()
        metrics |= seconds | {"memory/peak_rss_mib": peak_rss_mib()} | self.phases.peaks()
        if "sft/tokens" in metrics and (took := seconds.get("time/learn")):
            metrics["time/trained_tokens_per_second"] = metrics["sft/tokens"] / took
        with self.phases("report"):
            self.recorder.step(step, metrics, [], [])
        self.saver.seen(step, metrics)
        self.stopping.seen(step, metrics)

    # ------------------------------------------------------------------ save

    def save(self) -> Path:
        """Write a checkpoint of the step that is done; returns its folder."""
        return self.saver.save(self.counters.training_steps, self._write)

    def _write(self, folder: Path) -> Handle[list[SavedFile]]:
        state = {
            "fingerprint": self.fingerprint,
            "facts": self.facts,
            "counters": asdict(self.counters),
            "examples": self.stream.state(),
            "best": self.saver.state(),
            "early_stop": self.stopping.state(),
            "measured_at": self._measured_at,
            "recorder": self.recorder.state(),
        }
        return begin_boundary(folder, self.learner, state)

    def load(self, folder: Path) -> dict[str, Any]:
        """Continue from a checkpoint folder; returns what it says of its run (``recorder``, ``facts``).

        Raises:
            CheckpointError: it is damaged, of another model, or of training by reward.
            DataError: the examples are not those that it was saved with.
        """
        state, counters = open_state(folder, self.fingerprint)
        if "examples" not in state:
            raise CheckpointError(f"checkpoint {folder} is of `dapo train`, and this run is supervised")
        with as_damage(folder):
            self.stream.load(state["examples"])
            self.saver.load(state["best"])
            self.stopping.load(state["early_stop"])
            self._measured_at = int(state["measured_at"])
            saved = {"recorder": dict(state["recorder"]), "facts": dict(state["facts"])}
        load_learner(folder, self.learner)
        self.counters = counters
        self.phases.step = counters.training_steps
        return saved
