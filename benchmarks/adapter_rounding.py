"""How much of an adapter's change reaches an engine in bfloat16: merged into the weights, and as an adapter.

    python benchmarks/adapter_rounding.py [--steps 1 10 100] [--rate 1e-4] [--seeds 3]

A random Llama in bfloat16 trains an adapter of rank 16 on random tokens with the learner's optimizer. Its weights have
a standard deviation of 0.02. After some steps the log-probabilities of these tokens are computed in float64, so that
only the rounding of what is published is seen: with the float32 A and B (the truth), with A and B as they are
published, and with the merged weights. "Lost" is the root mean square of the error over that of the change.
"""

from __future__ import annotations

import argparse
import copy
import tempfile
from typing import Any

import torch
from machine import describe_machine
from torch import Tensor

from dapo.config.schema import LearnerSection, Lora
from dapo.learner.optimizer import Optimizer
from dapo.models.adapter import adapter_parts, merge_error, published, switched_off
from dapo.models.load import load_model
from dapo.models.tiny import make_tiny_model

SIZES = {"hidden": 512, "layers": 4, "heads": 8, "ffn": 1536, "vocabulary": 512, "initializer_range": 0.02}


def logprobs(model: Any, tokens: Tensor) -> Tensor:
    """Return the log-probability of each token but the first of each row."""
    logits = model(input_ids=tokens, use_cache=False).logits[:, :-1]
    return torch.log_softmax(logits, -1).gather(2, tokens[:, 1:, None])[..., 0]


@torch.no_grad()
def lost(model: Any, optimizer: Optimizer, tokens: Tensor) -> tuple[float, float, float]:
    """Return the shares of the change that are lost: of weights merged, of log-probabilities merged and apart."""
    exact = copy.deepcopy(model).double()
    named = dict(exact.named_parameters())
    parts = adapter_parts(model)
    with switched_off(exact):
        before = logprobs(exact, tokens)
        for name, tensor in published(model).items():
            named[next(n for n in named if n.replace(".base_layer.", ".") == name)].copy_(tensor)
        merged = logprobs(exact, tokens) - before
    exact = copy.deepcopy(model).double()
    apart = logprobs(exact, tokens) - before  # scale 1: the model's own A and B are the parts
    assert all(
        torch.equal(parts[f"base_model.model.{n.replace('.default', '')}"], p)
        for n, p in model.named_parameters()
        if p.requires_grad
    )
    named = dict(exact.named_parameters())
    for name, master in optimizer.masters.items():
        named[name].copy_(master)
    truth = logprobs(exact, tokens) - before
    return merge_error(model), *(float((way - truth).norm() / truth.norm()) for way in (merged, apart))


def measure(seed: int, rate: float, steps: list[int]) -> dict[int, tuple[float, float, float]]:
    with tempfile.TemporaryDirectory() as folder:
        path = make_tiny_model(folder, "llama", dtype=torch.bfloat16, seed=seed, **SIZES)
        loaded = load_model(
            path, dtype="bfloat16", device="cpu", attention_mode="padded", lora=Lora(rank=16), seed=seed
        )
    tokens = torch.randint(0, SIZES["vocabulary"], (8, 32), generator=torch.Generator().manual_seed(seed))
    optimizer = Optimizer(dict(loaded.model.named_parameters()), LearnerSection(learning_rate=rate, weight_decay=0.0))
    found = {}
    for step in range(1, max(steps) + 1):
        (-logprobs(loaded.model, tokens).float().mean()).backward()
        optimizer.accumulate()
        optimizer.step(rate)
        if step in steps:
            found[step] = lost(loaded.model, optimizer, tokens)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 10, 100], help="optimizer steps to look after")
    parser.add_argument("--rate", type=float, default=1e-4, help="learning rate")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    runs = [measure(seed, given.rate, given.steps) for seed in range(given.seeds)]
    machine = describe_machine()
    print(f"{machine['cpu']}, commit {machine['commit']}: `{machine['command']}`\n")
    print(
        "| optimizer steps | lost of the merged weights' change | lost of log-probabilities, merged | as an adapter |"
    )
    print("| --- | --- | --- | --- |")
    for step in given.steps:
        each = zip(*(run[step] for run in runs), strict=True)
        print(f"| {step} | {' | '.join(' '.join(f'{value:.3f}' for value in values) for values in each)} |")


if __name__ == "__main__":
    main()
