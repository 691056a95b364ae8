"""Tokens per second of decoding: the embedded engine, transformers' ``generate``, and what the card's memory allows."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu import bounds
from benchmarks.gpu.limits import BANDWIDTH, PEAK
from benchmarks.gpu.made import requests
from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.shapes import PUBLISHED, REHEARSED, Shape, make_loaded
from benchmarks.gpu.timing import median_seconds, peak_bytes, reset_peak, seconds, wait
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.sampling import SamplingSettings, draw
from dapo.models.attention import own_attention
from dapo.models.loaded import LoadedModel
from dapo.types.batch import SampleRequest

PROMPT, STEPS = 128, 128


def decode(room: Room, size: str) -> None:
    """256 rows at once (the aim: 70 % of the memory bound), then 32, as CUDA graphs and without; then ``generate``."""
    shape = PUBLISHED[size] if room.on_card else REHEARSED
    room.note("shape", shape.name)
    room.note("parameters", shape.parameters)
    _has_room(room, shape)
    loaded = make_loaded(shape, room.device, "bfloat16")
    bandwidth = room.found("card_limits", BANDWIDTH)
    many, few = room.sized((256, 32), (8, 2))
    rates = {}
    _drawing(room, shape, many)
    for rows in (many, few):
        rates[rows] = _embedded(room, loaded, shape, rows, bandwidth)
        if room.on_card:
            plain = _embedded(room, loaded, shape, rows, bandwidth, graphs=False)
            room.rate(f"{rows} rows: with graphs over without", rates[rows] / plain)
    theirs = _generate(room, loaded, shape, many)
    room.rate(f"embedded over generate, {many} rows", rates[many] / theirs, main=True)


def _has_room(room: Room, shape: Shape) -> None:
    """Skip a shape that the card cannot hold beside its cache and the engine's fused copies.

    Raises:
        Skipped: with both numbers.
    """
    if not room.on_card:
        return
    free = torch.cuda.mem_get_info()[0]
    needed = 2 * (2 * shape.parameters) + 512 * (PROMPT + 2 * STEPS) * bounds.key_value_bytes(shape) + 4 * 2**30
    if needed > free:
        raise Skipped(f"{shape.name} needs about {needed / 2**30:.0f} GiB, {free / 2**30:.0f} are free")


def _embedded(
    room: Room, loaded: LoadedModel, shape: Shape, rows: int, bandwidth: float | None, graphs: bool | None = None
) -> float:
    """Tokens per second of steps in which ``rows`` responses decode; their prompts are computed before.

    The same responses are made twice. The first time every shape of a step is met first: it runs as it is once, and is
    then recorded. A run pays that anew whenever its learner had the memory.
    """
    steps = room.sized(STEPS, 8)
    prompts = _prompts(shape, rows, room.sized(PROMPT, 8))
    tokens = steps + 24
    engine = EmbeddedEngine(loaded, slots=rows, longest=len(prompts[0]) + tokens, cuda_graphs=graphs)
    reset_peak(room.device)
    asked = requests(prompts, 1, tokens)
    first, done = _steps(room, engine, asked, steps)
    took, made = _steps(room, engine, asked, steps)
    recorded = engine.graphs
    engine.close()
    if not (done and made):
        raise Skipped("the time was over")
    rate = rows * made / took
    what = f"embedded ({engine.decoder.name}), {rows} rows" + (", no graphs" if graphs is False else "")
    room.rate(f"{what}: a step of the first responses, recordings included", 1000 * first / done, "ms")
    if recorded is not None:
        room.expect_true(f"{what}: decodes by graphs", recorded.broken is None, recorded.broken or "")
        room.note(f"{what}: steps that were replays, of {engine.clock}", recorded.replayed)
    main = graphs is None
    room.rate(f"{what}: decode", rate, "tokens/s", main=main)
    room.rate(f"{what}: a step", 1000 * took / made, "ms")
    if room.on_card:
        room.note(f"{what}: peak memory", peak_bytes(room.device), "B")
    if bandwidth:
        mean = len(prompts[0]) + 4 + made / 2
        bound = bounds.decode_bound(shape, rows, mean, bandwidth)
        room.rate(f"{what}: memory bound", bound, "tokens/s")
        room.rate(f"{what}: share of the memory bound (aim at 256 rows: 0.7)", rate / bound, main=main)
        if peak := room.found("card_limits", PEAK):
            floor = bounds.decode_floor(shape, rows, mean, bandwidth, peak)
            room.rate(f"{what}: share of what reads and products allow", rate / floor, main=main)
    return rate


def _steps(room: Room, engine: EmbeddedEngine, asked: list[SampleRequest], steps: int) -> tuple[float, int]:
    """Seconds of ``steps`` decode steps behind the first ones, and how many there was time for. All come back."""
    engine.submit(asked)
    for _ in range(4):  # prompts, and what is made on first use
        engine.poll(timeout=0.0)
    wait(room.device)
    began, clock = time.perf_counter(), engine.clock
    while engine.clock - clock < steps and room.left > 1.0:
        engine.poll(timeout=0.0)
    wait(room.device)
    took, made = time.perf_counter() - began, engine.clock - clock
    engine.abort()
    return took, made


def _drawing(room: Room, shape: Shape, rows: int) -> None:
    """What of a step is the drawing of tokens: it reads no weights, and grows with the vocabulary."""
    generator = torch.Generator(room.device).manual_seed(0)
    logits = torch.randn(rows, shape.vocabulary, device=room.device, generator=generator)
    uniform = torch.rand(rows, 1, dtype=torch.float64, device=room.device, generator=generator)
    took = median_seconds(partial(draw, logits, uniform, SamplingSettings()), room.device, 10)
    room.rate(f"{rows} rows: drawing a token of each", 1000 * took, "ms")


def _prompts(shape: Shape, rows: int, tokens: int) -> list[Any]:
    random = np.random.default_rng(0)
    return list(random.integers(3, shape.vocabulary, (rows, tokens)))


def _generate(room: Room, loaded: LoadedModel, shape: Shape, rows: int) -> float:
    """Tokens per second of ``generate`` behind its first token: the difference of a long and a short call."""
    ids = torch.from_numpy(np.stack(_prompts(shape, rows, room.sized(PROMPT, 8)))).to(room.device)
    model = loaded.model

    def run(tokens: int) -> float:
        def work() -> None:
            model.generate(
                ids, attention_mask=torch.ones_like(ids), do_sample=True, top_k=0, max_new_tokens=tokens,
                min_new_tokens=tokens, pad_token_id=0, eos_token_id=None,
            )  # fmt: skip

        return seconds(work, room.device)

    short, most = 2, room.sized(64, 8)
    with torch.no_grad(), own_attention(model):
        run(short)
        first = run(short)
        step = max((run(6) - first) / 4, 1e-6)
        steps = int(max(8, min(most, room.left / 2 / step))) if room.on_card else most
        took = run(short + steps) - first
    rate = rows * steps / max(took, 1e-9)
    room.rate(f"generate, {rows} rows: decode", rate, "tokens/s")
    return rate
