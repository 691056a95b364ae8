"""Compare a bfloat16 engine with a float32 learner of one mixture of experts, with free and with repeated routes.

python benchmarks/router_replay.py            # half a minute; writes benchmarks/results/router_replay.md

Models are random. The embedded engine samples in bfloat16 and records the experts of every token; the learner computes
the log-probabilities of the same tokens in float32, freely and with ``learner.router_replay: sampler``. A gap is
|learner - engine| of a token, in nats. "Tokens elsewhere" went to other experts in at least one layer.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from machine import describe_machine, refuse_changes

from dapo.algorithms.objective import clip_objective
from dapo.config import schema
from dapo.learner.step import PolicyStep
from dapo.models.load import load_model
from dapo.models.loaded import LoadedModel
from dapo.models.packing import pack
from dapo.models.policy import Policy
from dapo.models.tiny import make_tiny_model
from dapo.rollout.embedded import EmbeddedEngine
from dapo.types.batch import FloatArray, Key, Row, SampleEvent, SampleRequest, SamplingParams

OUT = Path(__file__).parent / "results" / "router_replay.md"
SMALL = {"num_experts_per_tok": 2, "initializer_range": 0.2}
LARGE = {"layers": 8, "hidden": 128, "num_experts": 64, "num_experts_per_tok": 8, "initializer_range": 0.06}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "Qwen3-MoE, 2 layers, 8 experts": ("qwen3_moe", SMALL | {"num_experts": 8, "moe_intermediate_size": 32}),
    "Mixtral, 2 layers, 8 experts": ("mixtral", SMALL | {"num_local_experts": 8, "ffn": 32}),
    "OLMoE, 2 layers, 8 experts": ("olmoe", SMALL | {"num_experts": 8, "ffn": 32}),
    "Qwen3-MoE, 8 layers, 64 experts": ("qwen3_moe", LARGE | {"moe_intermediate_size": 48}),
}
PROMPTS, SIZE, TOKENS = 8, 4, 48


@dataclass(frozen=True, slots=True)
class Found:
    """Gaps of one model, of all seeds together."""

    name: str
    free: FloatArray
    repeated: FloatArray
    elsewhere: float  # share of tokens


def measured(name: str, seeds: Sequence[int]) -> Found:
    """Sample and compute the same tokens in both precisions."""
    architecture, config = MODELS[name]
    free, repeated, elsewhere = [], [], []
    for seed in seeds:
        with tempfile.TemporaryDirectory() as folder:
            make_tiny_model(folder, architecture, kv_heads=2, tied=False, seed=seed, **config)
            rows = sampled(load_model(folder, dtype=torch.bfloat16, device="cpu"), seed)
            loaded = load_model(folder, device="cpu")
        free += gaps(loaded, rows, "off")
        repeated += gaps(loaded, rows, "sampler")
        elsewhere.append(share_elsewhere(loaded, rows))
    return Found(name, np.concatenate(free), np.concatenate(repeated), float(np.mean(elsewhere)))


def sampled(loaded: LoadedModel, seed: int) -> list[Row]:
    """Return rows with the routes and log-probabilities of the engine."""
    engine, random = EmbeddedEngine(loaded, record_routes=True), np.random.default_rng(seed)
    prompts = [random.integers(3, 78, int(length)) for length in random.integers(4, 12, PROMPTS)]
    requests = [
        SampleRequest(Key("train", group, sample), prompt, SamplingParams(TOKENS), seed=1000 * group + sample)
        for group, prompt in enumerate(prompts)
        for sample in range(SIZE)
    ]
    engine.submit(requests)
    ended: list[SampleEvent] = []
    while len(ended) < len(requests):
        ended += engine.poll()
    return [
        Row(
            event.key.group,
            event.key.sample,
            prompts[event.key.group],
            event.token_ids,
            np.ones(len(event.token_ids), np.bool_),
            event.logprobs,
            event.versions,
            loss_weight=1.0,
            advantage=1.0,
            extra=event.extra,
        )
        for event in sorted(ended, key=lambda event: event.key)
    ]


def gaps(loaded: LoadedModel, rows: Sequence[Row], replay: Literal["off", "sampler"]) -> list[FloatArray]:
    """Return the gap of every token of each row."""
    settings = schema.LearnerSection(router_replay=replay)
    step = PolicyStep(loaded, clip_objective(low=0.2, high=0.28), settings, 1.0)
    found = step.logprobs(rows, learning=True)
    return [np.abs(own - row.sampler_logprobs) for own, row in zip(found, rows, strict=True)]


def share_elsewhere(loaded: LoadedModel, rows: Sequence[Row]) -> float:
    """Return the share of tokens that the learner, choosing freely, sends to other experts than the engine did."""
    assert loaded.routing is not None
    changed = []
    for row in rows:
        with torch.no_grad(), loaded.routing.following() as made:
            Policy(loaded)(pack([row], loaded.device), 1.0, "none")
        own, given = made.routes().numpy(), row.extra["routes"][:-1]
        changed.append((np.sort(own) != np.sort(given)).any(axis=(1, 2)))
    return float(np.concatenate(changed).mean())


def table(found: Sequence[Found], seeds: int) -> str:
    """Return the page of results."""
    machine = describe_machine()
    lines = [
        "# Router replay: a bfloat16 engine against a float32 learner",
        "",
        f"{machine['cpu']}, commit {machine['commit']}: `{machine['command']}`. Random models, {seeds} seeds of "
        f"{PROMPTS * SIZE} responses of {TOKENS} tokens. Gaps are |learner - engine| of a token's log-probability, in "
        "nats.",
        "",
        "| model | tokens elsewhere | mean gap: free | repeated | largest gap: free | repeated |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    lines += [
        f"| {one.name} | {one.elsewhere:.1%} | {one.free.mean():.4f} | {one.repeated.mean():.4f} | "
        f"{one.free.max():.2f} | {one.repeated.max():.2f} |"
        for one in found
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all models and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    refuse_changes(given.out)
    torch.set_num_threads(1)
    text = table([measured(name, range(given.seeds)) for name in MODELS], given.seeds)
    given.out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
