"""Tokens per CPU-second of the embedded engine against transformers' ``generate``, alternating in one run.

Both make the same number of tokens for the same prompts: every response has a length drawn in advance. ``generate``
runs all responses as one batch, as TRL's GRPOTrainer does; the engine gets them in groups of 16.

    python benchmarks/engine_decode.py [--case short tail wide] [--rounds 5] [--precision highest] [--profile]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from dapo.models.loaded import LoadedModel
from dapo.rollout.embedded import EmbeddedEngine
from dapo.types.batch import SampleRequest, SamplingParams

GROUP = 16
CASES: dict[str, dict[str, Any]] = {
    "short": {"hidden": 64, "layers": 2, "ffn": 192, "vocabulary": 80, "responses": 512, "mean": 11, "limit": 32},
    "tail": {"hidden": 64, "layers": 2, "ffn": 192, "vocabulary": 80, "responses": 512, "mean": 15, "limit": 256},
    "wide": {"hidden": 256, "layers": 4, "ffn": 768, "vocabulary": 1024, "responses": 256, "mean": 66, "limit": 256},
}


def make_model(case: dict[str, Any]) -> LoadedModel:
    """A random Llama of the quickstart's shape."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=case["vocabulary"],
        hidden_size=case["hidden"],
        num_hidden_layers=case["layers"],
        num_attention_heads=4,
        intermediate_size=case["ffn"],
        tie_word_embeddings=True,
        initializer_range=0.08,
        max_position_embeddings=2048,
    )
    model = LlamaForCausalLM(config).eval()
    return LoadedModel(model, None, (1,), 0, torch.device("cpu"), torch.float32, packed=False, name="benchmark")


def make_lengths(case: dict[str, Any], random: np.random.Generator) -> np.ndarray:
    """Response lengths: log-normal; ``tail`` is a short bulk with 4 % of long ramblers."""
    count, mean, limit = case["responses"], case["mean"], case["limit"]
    if limit > 10 * mean:
        bulk = random.lognormal(np.log(8.5), 0.45, count)
        lengths = np.where(random.random(count) < 0.04, random.uniform(40, 1.3 * limit, count), bulk)
    else:
        spread = 0.9 if limit > 100 else 0.5
        lengths = random.lognormal(np.log(mean) - spread**2 / 2, spread, count)
    return np.clip(lengths, 1, limit).astype(np.int64)


def make_requests(case: dict[str, Any], seed: int) -> list[SampleRequest]:
    random = np.random.default_rng(seed)
    lengths = make_lengths(case, random)
    prompts = [random.integers(3, case["vocabulary"], random.integers(5, 14)) for _ in range(len(lengths) // GROUP)]
    return [
        SampleRequest(
            (i // GROUP, i % GROUP), prompts[i // GROUP], SamplingParams(max_tokens=int(n)), seed=1000 * seed + i
        )
        for i, n in enumerate(lengths)
    ]


def run_engine(engine: EmbeddedEngine, requests: list[SampleRequest]) -> int:
    engine.submit(requests)
    tokens = 0
    while events := engine.poll():
        tokens += sum(len(event.token_ids) for event in events)
    return tokens


def run_generate(model: Any, requests: list[SampleRequest]) -> int:
    """One left-padded batch through ``generate``; returns the tokens that were asked for."""
    width = max(len(r.prompt_ids) for r in requests)
    ids = torch.zeros(len(requests), width, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, r in enumerate(requests):
        ids[row, width - len(r.prompt_ids) :] = torch.from_numpy(r.prompt_ids)
        mask[row, width - len(r.prompt_ids) :] = 1
    limits = torch.tensor([r.sampling.max_tokens for r in requests])

    def done(tokens: torch.Tensor, scores: Any) -> torch.Tensor:
        return tokens.shape[1] - width >= limits

    model.generate(
        ids, attention_mask=mask, do_sample=True, top_k=0, max_new_tokens=int(limits.max()), stopping_criteria=[done],
        pad_token_id=0, eos_token_id=None,
    )  # fmt: skip
    return int(limits.sum())


def rate(work: Callable[[list[SampleRequest]], int], requests: list[SampleRequest]) -> float:
    """Tokens per CPU-second."""
    start = time.process_time()
    tokens = work(requests)
    return tokens / (time.process_time() - start)


def profile(engine: EmbeddedEngine, requests: list[SampleRequest]) -> None:
    """Where the time goes: torch operations by self time, and python by function."""
    import cProfile
    import pstats

    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as trace

    with trace(activities=[ProfilerActivity.CPU]) as recorded:
        run_engine(engine, requests)
    print(recorded.key_averages().table(sort_by="self_cpu_time_total", row_limit=18, max_name_column_width=36))
    python = cProfile.Profile()
    python.runcall(run_engine, engine, requests)
    pstats.Stats(python).sort_stats("tottime").print_stats(22)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--slots", type=int)
    parser.add_argument("--precision", choices=["highest", "high", "medium"], default="highest")
    parser.add_argument("--alone", action="store_true", help="leave generate out")
    parser.add_argument("--profile", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_float32_matmul_precision(options.precision)
    for name in options.case:
        case = CASES[name]
        loaded = make_model(case)
        engine = EmbeddedEngine(loaded, slots=options.slots)
        run_engine(engine, make_requests(case, 0))
        ours, theirs = [], []
        for seed in range(1, options.rounds + 1):
            requests = make_requests(case, seed)
            ours.append(rate(lambda r, e=engine: run_engine(e, r), requests))
            if not options.alone:
                theirs.append(rate(lambda r, m=loaded.model: run_generate(m, r), requests))
        lengths = np.array([r.sampling.max_tokens for r in requests])
        line = (
            f"{name}: mean {lengths.mean():.1f}, max {lengths.max()}, {len(lengths)} responses, {engine.capacity} slots"
            f" | engine {max(ours) / 1e3:.1f} k tok/s (median {statistics.median(ours) / 1e3:.1f})"
        )
        if theirs:
            ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
            line += (
                f" | generate {max(theirs) / 1e3:.2f} (median {statistics.median(theirs) / 1e3:.2f})"
                f" | ratio median {statistics.median(ratios):.1f}, {min(ratios):.1f} to {max(ratios):.1f}"
            )
        print(line, flush=True)
        if options.profile:
            profile(engine, make_requests(case, options.rounds + 1))


if __name__ == "__main__":
    main()
