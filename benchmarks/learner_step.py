"""CPU seconds of the four optimiser steps of one training step: the learner against a plain padded implementation.

    python benchmarks/learner_step.py [--case quickstart] [--repeat 5] [--profile]

Both sides take the same rows, weights and AdamW settings, in one process on one thread, in turn. The plain side is what
one writes first: right-padded rows of prompt + response through the model's own attention, logits of every position,
the clipped surrogate, no entropy. Memory is the largest total of live tensors, from torch's profiler.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import statistics
import tempfile
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from dapo.algorithms.objective import clip_objective
from dapo.config import schema
from dapo.learner.driver import LearnerDriver
from dapo.learner.hosts import WorkerHere
from dapo.learner.step import PolicyStep
from dapo.learner.worker import Worker
from dapo.models.load import load_model
from dapo.models.loaded import LoadedModel
from dapo.models.tiny import make_tiny_model
from dapo.types.batch import LearnStep, Row

GROUPS, GROUP_SIZE, MINIBATCHES, PROMPT = 32, 16, 4, 9


@dataclass(frozen=True)
class Case:
    hidden: int
    layers: int
    mean: float  # response tokens
    limit: int
    sigma: float  # of the log-normal lengths
    precision: str = "highest"


CASES = {
    "quickstart": Case(64, 2, 11, 32, 0.4),
    "tail": Case(64, 2, 15, 256, 1.0),
    "long-tail": Case(64, 2, 60, 256, 1.0),
    "3m": Case(256, 4, 11, 32, 0.4),
    "3m-tail": Case(256, 4, 15, 256, 1.0),
    "3m-tail-medium": Case(256, 4, 15, 256, 1.0, "medium"),
}


def make_rows(case: Case, seed: int = 0) -> list[Row]:
    """One training step: groups of responses with log-normal lengths."""
    random = np.random.default_rng(seed)
    rows = []
    for group in range(GROUPS):
        prompt = random.integers(3, 78, PROMPT)
        for _ in range(GROUP_SIZE):
            drawn = random.lognormal(np.log(case.mean) - case.sigma**2 / 2, case.sigma)
            length = int(np.clip(round(drawn), 2, case.limit))
            rows.append(
                Row(
                    group=group,
                    sample=0,
                    prompt_ids=prompt,
                    token_ids=random.integers(3, 78, length),
                    loss_mask=np.ones(length, np.bool_),
                    sampler_logprobs=np.full(length, -4.4, dtype=np.float32),
                    versions=np.zeros(length, np.int32),
                    loss_weight=0.0,
                    advantage=float(random.normal()),
                )
            )
    return rows


def minibatches(rows: list[Row]) -> list[list[Row]]:
    """Whole groups, with token_mean weights."""
    size = len(rows) // MINIBATCHES
    batches = [rows[start : start + size] for start in range(0, len(rows), size)]
    totals = [sum(len(row.token_ids) for row in batch) for batch in batches]
    return [
        [replace(row, loss_weight=1 / total) for row in batch] for batch, total in zip(batches, totals, strict=True)
    ]


class Plain:
    """The padded implementation that one writes first."""

    def __init__(self, loaded: LoadedModel) -> None:
        self.loaded = loaded
        self.adamw = torch.optim.AdamW(loaded.model.parameters(), lr=1e-5)

    def update(self, rows: list[Row]) -> None:
        longest = max(len(row.prompt_ids) + len(row.token_ids) for row in rows)
        shape = (len(rows), longest)
        ids, mask = torch.zeros(shape, dtype=torch.long), torch.zeros(shape, dtype=torch.long)
        weights, advantages, old = torch.zeros(shape), torch.zeros(shape), torch.zeros(shape)
        for index, row in enumerate(rows):
            start, stop = len(row.prompt_ids), len(row.prompt_ids) + len(row.token_ids)
            ids[index, :stop] = torch.from_numpy(np.concatenate([row.prompt_ids, row.token_ids]))
            mask[index, :stop] = 1
            advantages[index, start:stop] = row.advantage
            for target, values in ((weights, row.loss_weights()), (old, row.sampler_logprobs)):
                target[index, start:stop] = torch.from_numpy(values)
        logits = self.loaded.model(input_ids=ids, attention_mask=mask, use_cache=False).logits
        logprobs = logits[:, :-1].float().log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        ratio = (logprobs - old[:, 1:]).exp()
        surrogate = torch.minimum(ratio * advantages[:, 1:], ratio.clamp(0.8, 1.28) * advantages[:, 1:])
        (-(surrogate * weights[:, 1:]).sum()).backward()
        torch.nn.utils.clip_grad_norm_(self.loaded.model.parameters(), 1.0)
        self.adamw.step()
        self.adamw.zero_grad()


class Ours:
    """The learner, one optimiser step a call, so that memory is measured alike."""

    def __init__(self, folder: str) -> None:
        loaded = load_model(folder, attention_mode="packed")
        worker = Worker(PolicyStep(loaded, clip_objective(low=0.2, high=0.28), schema.LearnerSection(), 1.0))
        self.learner = LearnerDriver(WorkerHere(worker))

    def update(self, rows: list[Row]) -> None:
        self.learner.learn(LearnStep([rows], [1e-5], 0))


def cpu_seconds(side: Ours | Plain, batches: list[list[Row]]) -> float:
    """Process time of one training step's updates."""
    started = time.process_time()
    for batch in batches:
        side.update(batch)
    return time.process_time() - started


def peak_mib(side: Ours | Plain, batch: list[Row]) -> float:
    """Largest total of tensors allocated during one optimiser step, above what was there before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        side.update(batch)
    level = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            level += event.nbytes()
            peak = max(peak, level)
    return peak / 2**20


def compare(name: str, case: Case, repeat: int) -> None:
    torch.set_float32_matmul_precision(case.precision)
    batches = minibatches(make_rows(case))
    with tempfile.TemporaryDirectory() as folder:
        make_tiny_model(folder, hidden=case.hidden, layers=case.layers, ffn=3 * case.hidden)
        ours = Ours(folder)
        plain = Plain(load_model(folder, attention_mode="padded"))
    memory = [peak_mib(side, batches[0]) for side in (ours, plain)]
    times: list[list[float]] = [[], []]
    for _ in range(repeat):
        for side, found in zip((ours, plain), times, strict=True):
            found.append(cpu_seconds(side, batches))
    ratios = [slow / fast for fast, slow in zip(*times, strict=True)]
    tokens = sum(len(row.token_ids) for batch in batches for row in batch)
    best = [min(found) for found in times]
    print(
        f"{name:15} {tokens:6d} tokens"
        f"  ours {best[0]:6.3f} s {tokens / best[0] / 1e3:5.1f} k tok/s {memory[0]:6.1f} MiB"
        f"  plain {best[1]:6.3f} s {memory[1]:6.1f} MiB"
        f"  ratio {statistics.median(ratios):5.2f} ({min(ratios):.2f} .. {max(ratios):.2f})"
    )


def profile(case: Case) -> None:
    """The learner's operators by their own time."""
    torch.set_float32_matmul_precision(case.precision)
    batches = minibatches(make_rows(case))
    with tempfile.TemporaryDirectory() as folder:
        make_tiny_model(folder, hidden=case.hidden, layers=case.layers, ffn=3 * case.hidden)
        ours = Ours(folder)
    cpu_seconds(ours, batches)
    with torch.profiler.profile() as found:
        cpu_seconds(ours, batches)
    print(found.key_averages().table(sort_by="self_cpu_time_total", row_limit=30, max_name_column_width=60))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=[*CASES, "all"], default="all")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--profile", action="store_true", help="print the learner's operators instead")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, case in CASES.items():
        if arguments.case in (name, "all"):
            if arguments.profile:
                profile(case)
            else:
                compare(name, case, arguments.repeat)


if __name__ == "__main__":
    main()
