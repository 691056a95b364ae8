"""Runs inside an environment that has TRL: whole steps of its GRPOTrainer and SFTTrainer; prints them as JSON.

The trainers are TRL's own, from their constructor to ``train()``: rollouts come in through its ``rollout_func``. Two
things are put in from outside. Where a step is not asked with TRL's shuffling, ``shuffle_sequence_dict`` gives back
what it got. Where the importance correction is asked for, the trainer is told that its rollouts are vLLM's, and the
engine is one that has no weights to take.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from datasets import Dataset
from step_questions import IMITATIONS, STEPS, TRL, Imitation, Step
from steps import (
    GROUP,
    LIMIT,
    PROMPTS,
    WORLDS,
    make_examples,
    make_rollouts,
    mask_of,
    sketch,
    text,
    weights_of,
    write_model,
)
from steps import STEPS as TRAINING_STEPS
from torch.utils.data import SequentialSampler
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer
from trl.trainer import grpo_trainer

COMMON = {
    "use_cpu": True,
    "bf16": False,
    "gradient_checkpointing": False,
    "report_to": "none",
    "save_strategy": "no",
    "logging_steps": 1,
    "disable_tqdm": True,
}
SHUFFLE = grpo_trainer.shuffle_sequence_dict


class Watch(TrainerCallback):
    """Weights after each optimiser step, and what the trainer logs of it."""

    def __init__(self) -> None:
        self.weights, self.norms = [], []

    def on_step_end(self, args, state, control, model=None, **kwargs) -> None:
        self.weights.append(weights_of(model))

    def on_log(self, args, state, control, logs=None, **kwargs) -> None:
        if "grad_norm" in logs:
            self.norms.append(float(logs["grad_norm"]))


def counting(kind: type) -> type:
    """The trainer, which also keeps the loss of every micro-batch as ``training_step`` returns it."""

    class Counting(kind):
        def training_step(self, *args, **kwargs):
            loss = super().training_step(*args, **kwargs)
            self.__dict__.setdefault("losses", []).append(float(loss))
            return loss

        def _get_train_sampler(self, *args, **kwargs):
            if kind is SFTTrainer:  # the examples in their order, as ``data.shuffle: false``
                return SequentialSampler(self.train_dataset)
            return super()._get_train_sampler(*args, **kwargs)

    return Counting


def answers(trainer: Any, watch: Watch, before: dict, *, micro_batches: int, optimizer_steps: int) -> dict:
    """By training step: means over its optimiser steps, and what has become of the weights since the start."""
    trainer.train()
    # a micro-batch's loss is its part of the optimiser step's
    losses = [sum(part) for part in _parts(trainer.losses, micro_batches)]
    mean = lambda values: [sum(part) / len(part) for part in _parts(values, optimizer_steps)]  # noqa: E731
    return {
        "loss": mean(losses),
        "grad_norm": mean(watch.norms),
        "update": [sketch(before, part[-1]) for part in _parts(watch.weights, optimizer_steps)],
    }


def _parts(values: list, size: int) -> list[list]:
    assert len(values) % size == 0, (len(values), size)
    return [values[n : n + size] for n in range(0, len(values), size)]


def replay(rollouts: list[list[dict]], factor: float) -> tuple[Dataset, Callable, Callable]:
    """Prompts, what ``rollout_func`` gives for them, and their rewards."""
    groups = [group for step in rollouts for group in step]
    data = Dataset.from_list([{"prompt": text(group["prompt"]), "group": n} for n, group in enumerate(groups)])
    following = iter(rollouts)

    def roll(prompts: list[str], trainer: Any) -> dict:
        step = next(following)
        assert prompts == [text(group["prompt"]) for group in step for _ in range(GROUP)]
        return {
            "prompt_ids": [group["prompt"] for group in step for _ in range(GROUP)],
            "completion_ids": [response for group in step for response in group["responses"]],
            "logprobs": [row for group in step for row in group["sampler_logprobs"]],
            **({"env_mask": [row for group in step for row in mask_of(group)]} if "reply" in step[0] else {}),
        }

    def reward(completion_ids: list[list[int]], group: list[int], **_: Any) -> list[float]:
        found = [factor * value for n in group[::GROUP] for value in groups[n]["rewards"]]
        assert completion_ids == [response for n in group[::GROUP] for response in groups[n]["responses"]]
        return found

    return data, roll, reward


def ask(step: Step, folder: Path, rollouts: list[list[dict]]) -> dict:
    theirs = dict(step.theirs)
    shuffled = theirs.pop("shuffled", False)
    vllm = theirs.get("vllm_importance_sampling_correction", False)
    grpo_trainer.shuffle_sequence_dict = SHUFFLE if shuffled else lambda batch: batch
    accumulated = theirs.get("gradient_accumulation_steps", 1)
    optimizer_steps = theirs.get("steps_per_generation", accumulated) // accumulated * theirs.get("num_iterations", 1)
    data, roll, reward = replay(rollouts, step.reward_factor)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    watch = Watch()
    with tempfile.TemporaryDirectory() as output:
        trainer = counting(GRPOTrainer)(
            model=model,
            reward_funcs=reward,
            args=GRPOConfig(
                output_dir=output, num_generations=GROUP, max_completion_length=LIMIT, shuffle_dataset=False,
                max_steps=TRAINING_STEPS * optimizer_steps, **COMMON, **theirs,
            ),
            train_dataset=data,
            processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
            callbacks=[watch],
            rollout_func=roll,
        )  # fmt: skip
        if vllm:
            trainer.use_vllm, trainer._last_loaded_step = True, -1
            trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        before = weights_of(model)
        return answers(trainer, watch, before, micro_batches=accumulated, optimizer_steps=optimizer_steps)


def imitate(one: Imitation, folder: Path) -> dict:
    examples = [{"prompt": e["prompt"], "completion": f" {e['response']}"} for e in make_examples()]
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    watch = Watch()
    with tempfile.TemporaryDirectory() as output:
        trainer = counting(SFTTrainer)(
            model=model,
            args=SFTConfig(output_dir=output, num_train_epochs=1, **COMMON, **one.theirs),
            train_dataset=Dataset.from_list(examples),
            processing_class=AutoTokenizer.from_pretrained(folder),
            callbacks=[watch],
        )
        before = weights_of(model)
        accumulated = one.theirs["gradient_accumulation_steps"]
        return answers(trainer, watch, before, micro_batches=accumulated, optimizer_steps=1)


def main() -> None:
    torch.set_num_threads(1)
    assert PROMPTS * GROUP == 16, "the steps are written for batches of 16 responses"
    with tempfile.TemporaryDirectory() as scratch:
        folder = write_model(Path(scratch) / "model")
        worlds = {name: make_rollouts(folder, name) for name in WORLDS}
        cases = []
        for step in STEPS[TRL].values():
            print(step.name, file=sys.stderr, flush=True)
            answer = ask(step, folder, worlds[step.world])
            cases.append({"step": step.name, "theirs": step.theirs, "answer": answer})
        for one in IMITATIONS.values():
            print(one.name, file=sys.stderr, flush=True)
            cases.append({"imitation": one.name, "theirs": one.theirs, "answer": imitate(one, folder)})
    print(json.dumps({"package": "trl", "version": version("trl"), "worlds": worlds, "cases": cases}))


if __name__ == "__main__":
    main()
