"""The embedded engine against the learner and against transformers' ``generate``."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from benchmarks.gpu.made import (
    Reference,
    finish,
    load_small,
    make_learner,
    relative_error,
    requests,
    rounded_steps,
    row_of,
)
from benchmarks.gpu.room import Room, Skipped
from benchmarks.gpu.timing import median_seconds, peak_bytes, reset_peak
from dapo.engines.cache import SlotCache
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.pools import CacheShape, Prefilled
from dapo.engines.sampling import FEW, SamplingSettings, draw
from dapo.engines.slots import slot_bytes
from dapo.models.attention import own_attention
from dapo.models.loaded import LoadedModel
from dapo.types.batch import Response, SampleRequest

_GAPS = {"bfloat16": (0.05, 0.5), "float32": (1e-4, 1e-2)}  # nats: mean, largest


def _prompts(room: Room, vocabulary: int, count: int = 4) -> list[Any]:
    random = np.random.default_rng(0)
    return [random.integers(3, vocabulary, int(random.integers(3, room.sized(60, 8)))) for _ in range(count)]


def _gaps(room: Room, loaded: LoadedModel, tokens: int) -> torch.Tensor:
    """|engine - learner| of every sampled token, nats."""
    engine = EmbeddedEngine(loaded)
    room.note("decoder", engine.decoder.name)
    asked = requests(_prompts(room, 200), room.sized(16, 4), tokens)
    engine.submit(asked)
    rows = [row_of(request, event) for request, event in zip(asked, finish(engine), strict=True)]
    engine.close()
    own = make_learner(loaded).logprobs(rows).result()
    return torch.cat([torch.from_numpy(abs(a - r.sampler_logprobs)) for a, r in zip(own, rows, strict=True)])


def engine_logprobs(room: Room) -> None:
    """What the sampler says of its tokens and what the learner says: the ratio of an untouched policy is 1."""
    for dtype, architecture in (("bfloat16", "qwen2"), ("bfloat16", "qwen3"), ("float32", "qwen2")):
        gaps = _gaps(room, load_small(room, dtype, architecture), room.sized(160, 24))
        mean, largest = _GAPS[dtype]
        what = f"{architecture}, {dtype}: engine against learner"
        room.expect(f"{what}, mean", float(gaps.mean()), at_most=mean, unit="nats")
        room.expect(f"{what}, largest", float(gaps.max()), at_most=largest, unit="nats")


def biased_keys(room: Room) -> None:
    """Scores far from zero, as real Qwen2 models have them: rounding them to bfloat16 costs what their size says.

    Biases of q and k lie along the slowest rotation, so that every score is offset by about the same.
    """
    for offset in room.sized((0, 19, 75, 169), (0, 75)):
        error = _attention_error(room, offset)
        room.expect(f"offset {offset}: attention of a decode step, relative error", error, at_most=0.01)
        # 0.02: with larger weights the model itself rounds by 0.4 nats at these offsets, and says nothing of the engine
        loaded = load_small(
            room, "bfloat16", layers=room.sized(12, 2), seed=offset, initializer_range=room.sized(0.02, 0.08)
        )
        size = loaded.model.config.hidden_size // loaded.model.config.num_attention_heads
        bias = math.sqrt(offset * math.sqrt(size))
        with torch.no_grad():
            for layer in loaded.model.model.layers:
                for projection in (layer.self_attn.q_proj, layer.self_attn.k_proj):
                    projection.bias.zero_().view(-1, size)[:, size // 2 - 1] = bias
        prompts = [p % 200 for p in _prompts(room, 200)]
        noise = _own_noise(room, loaded, prompts)
        room.note(f"offset {offset}: the model's own bfloat16 noise", noise, "nats")
        gaps = _gaps(room, loaded, room.sized(96, 16))
        bound = max(0.05, 2 * noise)
        room.expect(f"offset {offset}: engine against learner, mean", float(gaps.mean()), at_most=bound, unit="nats")


def _attention_error(room: Room, offset: int) -> float:
    """Of attention in the cache whose scores lie about ``offset``, against float64.

    Scores that are rounded to bfloat16 on the way are off by 0.06 at 19 and by 0.5 at 169, and so are the weights.
    """
    device, rows, tokens, kv_heads, d = torch.device(room.device), 4, 40, 2, 64
    generator = torch.Generator(device).manual_seed(offset)
    past, query, now = (
        torch.randn(*sizes, d, device=device, generator=generator)
        for sizes in ((1, 2, rows, kv_heads, tokens), (rows, 4 * kv_heads), (rows, 2 * kv_heads))
    )
    query *= d**-0.5
    for part in (past[:, 0], query, now[:, :kv_heads]):
        part[..., -1] = math.sqrt(offset)
    past, query, now = (x.to(torch.bfloat16) for x in (past, query, now))
    cache = SlotCache(CacheShape(1, kv_heads, d, torch.bfloat16, device), rows)
    seats = np.arange(rows)
    cache.insert(seats, np.full(rows, tokens), Prefilled(past, past.new_empty(rows, 1)), seats)
    batch = cache.layout()
    at = torch.from_numpy(batch.seats).to(device)
    found = batch.attend(0, query[at], now[at])
    keys, values = (
        torch.cat([past[0, n], now[:, n * kv_heads : (n + 1) * kv_heads, None]], 2).double() for n in (0, 1)
    )
    weights = torch.einsum("rhgd,rhtd->rhgt", query.double().view(rows, kv_heads, -1, d), keys).softmax(-1)
    wanted = torch.einsum("rhgt,rhtd->rhgd", weights, values).reshape(rows, -1)
    return relative_error(found, wanted[at])


def _own_noise(room: Room, loaded: LoadedModel, prompts: list[Any]) -> float:
    """Mean |bfloat16 - float32| of the model's own log-probabilities on random tokens."""
    reference = Reference(loaded)
    random = np.random.default_rng(1)
    ids = torch.from_numpy(random.integers(3, 200, (2, room.sized(96, 16)))).to(room.device)
    with torch.no_grad(), own_attention(loaded.model):
        own = loaded.model(input_ids=ids, use_cache=False).logits.float().log_softmax(-1)
        right = reference.model(input_ids=ids, use_cache=False).logits.log_softmax(-1)
    at = ids[:, 1:, None]
    return float((own[:, :-1].gather(-1, at) - right[:, :-1].gather(-1, at)).abs().mean())


def greedy(room: Room) -> None:
    """The likeliest token at every step: in float32 the very tokens, in bfloat16 up to ties that rounding decides."""
    tokens = room.sized(64, 16)
    for dtype in ("float32", "bfloat16"):
        loaded = load_small(room, dtype)
        engine = EmbeddedEngine(loaded)
        asked = requests(_prompts(room, 200, 8), 1, tokens, temperature=0.0)
        engine.submit(asked)
        events = finish(engine)
        engine.close()
        equal, worst = 0, 0.0
        for request, event in zip(asked, events, strict=True):
            theirs = _generate(loaded, request.prompt_ids, tokens)
            differing = np.flatnonzero(theirs != event.token_ids)
            equal += not len(differing)
            if len(differing):
                worst = max(worst, _margin(loaded, request.prompt_ids, theirs, event.token_ids, int(differing[0])))
        room.note(f"{dtype}: responses equal to generate's, of {len(asked)}", equal)
        bound = 1e-3 if dtype == "float32" else 0.25
        room.expect(f"{dtype}: where they part, generate's margin between both", worst, at_most=bound, unit="nats")


def _generate(loaded: LoadedModel, prompt: Any, tokens: int) -> Any:
    model = loaded.model
    ids = torch.from_numpy(prompt)[None].to(loaded.device)
    with torch.no_grad(), own_attention(model):
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=tokens, pad_token_id=0,
            eos_token_id=None,
        )  # fmt: skip
    return out[0, len(prompt) :].cpu().numpy()


def _margin(loaded: LoadedModel, prompt: Any, theirs: Any, ours: Any, at: int) -> float:
    """How much likelier the model itself finds ``theirs[at]`` than ``ours[at]``, nats."""
    ids = torch.from_numpy(np.concatenate([prompt, theirs[:at]]))[None].to(loaded.device)
    with torch.no_grad(), own_attention(loaded.model):
        logits = loaded.model(input_ids=ids, use_cache=False).logits[0, -1].float()
    return abs(float(logits[int(theirs[at])] - logits[int(ours[at])]))


def samples(room: Room) -> None:
    """First tokens of many responses to a prompt, against the model's softmax: neither too far nor too near."""
    words = room.sized(4096, 256)  # on a card drawn in four parts
    loaded = load_small(room, "float32", vocabulary=words, initializer_range=room.sized(0.15, 0.4))  # far from uniform
    count = room.sized(16384, 4096)
    engine = EmbeddedEngine(loaded)
    prompt = np.arange(3, 12)
    asked = requests([prompt], count, 1)
    engine.submit(asked)
    drawn = np.array([event.token_ids[0] for event in finish(engine)])
    engine.close()
    with torch.no_grad(), own_attention(loaded.model):
        ids = torch.from_numpy(prompt)[None].to(room.device)
        probabilities = loaded.model(input_ids=ids, use_cache=False).logits[0, -1].double().softmax(-1).cpu().numpy()
    room.expect("p of chi-square, two-sided", two_sided(drawn, probabilities), at_least=1e-4)


def two_sided(drawn: Any, probabilities: Any) -> float:
    """2 min(p, 1 - p) of the chi-square test; tokens that are expected fewer than eight times are taken together."""
    expected = probabilities * len(drawn)
    counted = np.bincount(drawn, minlength=len(probabilities)).astype(np.float64)
    often = expected >= 8
    expected, counted = (np.append(x[often], x[~often].sum()) for x in (expected, counted))
    if expected[-1] < 8:  # what is left is too rare for a cell of its own
        expected, counted = (np.append(x[:-2], x[-2:].sum()) for x in (expected, counted))
    statistic = ((counted - expected) ** 2 / expected).sum()
    half = torch.tensor([(len(expected) - 1) / 2, statistic / 2], dtype=torch.float64)
    above = float(torch.special.gammaincc(half[0], half[1]))
    return 2 * min(above, 1 - above)


def publish_keep(room: Room) -> None:
    """New weights while responses are under way: these go on, and say which weights made which token."""
    loaded = load_small(room, "float32")
    learner, engine = make_learner(loaded), EmbeddedEngine(loaded)
    engine.load(learner.publish(0))
    asked = requests(_prompts(room, 200), 4, room.sized(48, 12))
    short = requests(_prompts(room, 200, 1), 1, 4)[0]
    engine.submit([*asked, _named(short, 99)])
    events = engine.poll()  # until the short one has ended
    with torch.no_grad():
        for parameter in loaded.model.parameters():
            parameter.mul_(1.01)
    engine.load(learner.publish(1), in_flight="keep")
    events += finish(engine)
    whole = [event for event in events if event.key.group != 99]
    room.expect("responses that came back, share", len(whole) / len(asked), at_least=1.0, at_most=1.0)
    ordered = all((np.diff(e.versions) >= 0).all() and {*e.versions.tolist()} == {0, 1} for e in whole)
    room.expect_true("each began under version 0 and ended under version 1", ordered)
    gaps = _gaps(room, loaded, 16)
    bound = _GAPS["float32"][0]
    room.expect("after it, engine against learner, mean", float(gaps.mean()), at_most=bound, unit="nats")
    learner.close()


def _named(request: Any, group: int) -> Any:
    return replace(request, key=request.key._replace(group=group))


def matmul_precision(room: Room) -> None:
    """``high`` and ``medium`` let a card round float32 products to TF32: the engine has to start all the same."""
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "high", "medium"):
            torch.set_float32_matmul_precision(precision)
            loaded = load_small(room, "float32", attention_mode="auto")
            room.note(f"{precision}: packed rows", loaded.packed)
            gaps = _gaps(room, loaded, room.sized(64, 12))
            bound = _GAPS["float32"][0] if precision == "highest" else 0.05
            room.expect(f"{precision}: engine against learner, mean", float(gaps.mean()), at_most=bound, unit="nats")
    finally:
        torch.set_float32_matmul_precision(before)


def cache_memory(room: Room) -> None:
    """Responses of 1,100 tokens in the slots that the engine chooses: what its cache holds and needs to grow."""
    tokens = room.sized(1100, 70)
    loaded = load_small(room, "bfloat16", layers=room.sized(24, 2), hidden=room.sized(896, 64),
                        heads=room.sized(14, 4), ffn=room.sized(512, 96))  # fmt: skip
    prompts = _prompts(room, 200)
    engine = EmbeddedEngine(loaded, longest=max(map(len, prompts)) + tokens)
    room.note("slots", engine.capacity)
    held = torch.cuda.memory_allocated() if room.on_card else 0
    free = torch.cuda.mem_get_info()[0] if room.on_card else 0
    reset_peak(room.device)
    engine.submit(requests(prompts, -(-room.sized(engine.capacity, 8) // 4), tokens))
    events = finish(engine)
    made = sum(len(event.token_ids) for event in events)
    room.expect("tokens made, of those asked for", made / (len(events) * tokens), at_least=1.0, at_most=1.0)
    if room.on_card:
        peak = peak_bytes(room.device) - held
        needed = len(events) * (tokens + 60) * 2 * 24 * 2 * 64 * 2
        room.note("keys and values of all responses at their full length", needed, "B")
        room.note("peak of the cache", peak, "B")
        room.expect("peak over the memory that was free", peak / free, at_most=0.9)
        room.expect("peak over what the responses hold", peak / needed, at_most=2.0)
        shape = CacheShape(24, 2, 64, torch.bfloat16, loaded.device)
        budget = engine.capacity * slot_bytes(shape, 4096, max(map(len, prompts)) + tokens)
        room.expect("peak over the bytes that were counted before", peak / budget, at_most=1.1)
        if engine.graphs is not None:
            room.note("recordings", engine.graphs.recorded)
        engine.sleep()
        room.expect("held after sleep", torch.cuda.memory_allocated() - held, at_most=2**28, unit="B")
    engine.close()


def graphs(room: Room) -> None:
    """Steps by CUDA graphs against the very steps that they repeat, and against steps of live rows alone."""
    for dtype in ("float32", "bfloat16"):
        loaded = load_small(room, dtype)
        asked = [
            replace(
                one, sampling=replace(one.sampling, max_tokens=room.sized(40, 6) + 17 * number % room.sized(200, 20))
            )
            for number, one in enumerate(requests(_prompts(room, 200, 9), room.sized(5, 2), 1))
        ]
        plain, _ = _responses(loaded, asked, graphs=False)
        with rounded_steps():
            rounded, _ = _responses(loaded, asked)
        exact = dtype == "float32"
        equal = 1.0 if exact else 0.0  # rounding of bfloat16 parts them, and every token behind it is another one
        _alike(room, f"{dtype}: rows rounded up against live ones alone", rounded, plain, equal)
        if room.on_card:
            replayed, engine = _responses(loaded, asked, graphs=True)
            _alike(room, f"{dtype}: replays against the steps themselves", replayed, rounded, 1.0 if exact else 0.5)
            assert engine.graphs is not None
            room.note(f"{dtype}: recordings", engine.graphs.recorded)
            share = engine.graphs.replayed / engine.clock
            room.expect(f"{dtype}: share of steps that are replays", share, at_least=0.5, at_most=1.0)


def _responses(
    loaded: LoadedModel, asked: list[SampleRequest], graphs: bool | None = None
) -> tuple[list[Response], EmbeddedEngine]:
    longest = max(len(one.prompt_ids) + one.sampling.max_tokens for one in asked)
    engine = EmbeddedEngine(loaded, slots=32, longest=longest, cuda_graphs=graphs)
    engine.submit(asked)
    events = finish(engine)
    engine.close()
    return events, engine


def _alike(room: Room, what: str, found: list[Response], wanted: list[Response], equal: float) -> None:
    """Share of responses with the very same tokens, and their log-probabilities up to where they part."""
    same = [a.token_ids.tolist() == b.token_ids.tolist() for a, b in zip(found, wanted, strict=True)]
    room.expect(f"{what}: responses with the same tokens, share", sum(same) / len(same), at_least=equal)
    gaps = []
    for a, b in zip(found, wanted, strict=True):
        alike = int(np.argmin(np.append(a.token_ids == b.token_ids, False)))
        gaps.append(np.abs(a.logprobs[:alike] - b.logprobs[:alike]))
    mean = float(np.concatenate(gaps).mean())
    room.expect(f"{what}: mean gap up to there", mean, at_most=1e-4 if equal == 1.0 else 0.05, unit="nats")


def truncation(room: Room) -> None:
    """Top-p and top-k over a large vocabulary: from a few candidates, and from the order of all words."""
    rows, words = room.sized((256, 152_064), (3, 20_000))
    generator = torch.Generator(room.device).manual_seed(0)
    logits = torch.randn(rows, words, device=room.device, generator=generator) * 4
    uniform = torch.rand(rows, 1, dtype=torch.float64, device=room.device, generator=generator)
    for setting in (SamplingSettings(1.0, 0.7), SamplingSettings(0.8, 0.95, 50), SamplingSettings(1.0, 1.0, 20)):
        whole = draw(logits, uniform, setting)
        few = draw(logits, uniform, setting, FEW)
        name = f"top_p {setting.top_p:g}, top_k {setting.top_k}"
        settled = few[1].isfinite()[:, 0]
        room.expect(f"{name}: rows that {FEW} candidates settle, share", float(settled.float().mean()), at_least=0.99)
        equal = torch.equal(whole[0][settled], few[0][settled]) and torch.equal(whole[1][settled], few[1][settled])
        room.expect_true(f"{name}: tokens and log-probabilities of the order of all, to the bit", equal)
        took = [median_seconds(partial(draw, logits, uniform, setting, few), room.device, 5) for few in (None, FEW)]
        room.rate(f"{name}: drawing by the order of all", 1000 * took[0], "ms")
        room.note(f"{name}: over drawing from candidates", took[0] / took[1])


def synchronisations(room: Room) -> None:
    """How often one decode step makes the host wait for the card, as it is and as a replay."""
    if not room.on_card:
        raise Skipped("a CPU has nothing to wait for")
    loaded = load_small(room, "bfloat16")
    for by_graphs in (False, True):
        waits = _waits(loaded, by_graphs)
        what = f"synchronisations of a decode step whose rows stay, {'as a replay' if by_graphs else 'as it is'}"
        room.expect(what, waits, at_most=1.0, at_least=1.0)


def _waits(loaded: LoadedModel, by_graphs: bool) -> float:
    """For each step of eight; the first ones warm up and record."""
    engine = EmbeddedEngine(loaded, cuda_graphs=by_graphs)
    engine.submit(requests([np.arange(3, 12)] * 4, 16, 40))
    for _ in range(4):
        engine.poll(timeout=0.0)
    steps, before = 8, engine.clock
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            for _ in range(steps):
                engine.poll(timeout=0.0)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    finish(engine)
    made = min(steps, engine.clock - before) or 1
    return sum("synchroniz" in str(warning.message) for warning in seen) / made
