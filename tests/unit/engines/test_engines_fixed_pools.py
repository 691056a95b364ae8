"""The cache of a device with a budget, on a CPU: memory taken once, given back in sleep, and counted."""

from __future__ import annotations

import types
from functools import partial

import numpy as np
import pytest
import torch
from engine_requests import prompt, request

from dapo.engines import embedded, pools, slots
from dapo.engines.cache import SlotCache
from dapo.engines.embedded import EmbeddedEngine
from dapo.engines.pools import CacheShape, Prefilled, fixed_bytes, pool_limits
from dapo.errors import EngineError

SHAPE = CacheShape(layers=2, kv_heads=2, head_dim=4, dtype=torch.bfloat16, device=torch.device("cpu"))


@pytest.mark.parametrize(
    ("longest", "limits"),
    [(1, [64]), (64, [64]), (65, [64, 65]), (300, [64, 300]), (1100, [64, 256, 1100]), (2048, [64, 256, 2048]),
     (5000, [64, 256, 1024, 5000])],
)  # fmt: skip
def test_the_widest_pool_is_no_wider_than_the_longest_row(longest, limits):
    assert pool_limits(longest) == limits


def grow(cache: SlotCache, rows: int, start: int, stop: int) -> list[tuple[int, int]]:
    """Decode ``rows`` rows from ``start`` to ``stop`` tokens; (bytes held, columns looked at) after each step."""
    kv = torch.zeros(2, 2, 1, 2, start, 4, dtype=torch.bfloat16)
    cache.insert(np.arange(rows), np.full(rows, start), Prefilled(kv, torch.empty(0)), np.zeros(rows, np.int64))
    batch, seen = cache.layout(), []
    for _ in range(start, stop):
        if batch.full:
            batch = cache.layout()
        seen.append((cache.held, max(segment.bias.shape[-1] for segment in batch.segments)))
        cache.advance(batch)
    return seen


def test_pools_take_their_memory_once_and_no_more_than_was_counted(monkeypatch):
    """Responses of 1,100 tokens. Pools that double while they grow would hold 2.5 times this, and 5 for a moment."""
    taken, zeros = [], pools._zeros

    def spy(numbers, shape):
        taken.append(numbers * shape.dtype.itemsize)
        return zeros(numbers, shape)

    monkeypatch.setattr(pools, "_zeros", spy)
    cache = SlotCache(SHAPE, seats=6, longest=1100, fixed=True)
    seen = grow(cache, 6, 40, 1099)
    budget = fixed_bytes(SHAPE, 6, 1100)
    assert budget == 6 * (64 + 256 + 1100) * (SHAPE.bytes_per_token + 4)
    held = [bytes for bytes, _ in seen]
    assert held == sorted(held)
    assert held[-1] == budget
    assert len([size for size in taken if size]) == 3  # one for each pool, ever
    assert sum(taken) + 6 * (64 + 256 + 1100) * 4 == budget


def test_attention_looks_at_little_more_than_the_longest_row():
    """Of a pool of 1,100 columns a row of 400 tokens reads 448."""
    cache = SlotCache(SHAPE, seats=1, longest=1100, fixed=True)
    for step, (_, columns) in enumerate(grow(cache, 1, 300, 1099)):
        width = 301 + step
        assert width <= columns <= min(1100, max(width + 64, 9 * width // 8 + 1))


def test_nothing_is_given_back_in_which_a_row_lives():
    cache = SlotCache(SHAPE, seats=4, longest=300, fixed=True)
    grow(cache, 2, 40, 80)  # from the first pool into the second
    small, large = (fixed_bytes(SHAPE, 4, 64), 4 * 300 * (SHAPE.bytes_per_token + 4))
    assert cache.held == small + large
    cache.give_back()
    assert cache.held == large
    cache.remove(np.array([0, 1]))
    cache.give_back()
    assert cache.held == 0


def test_the_engine_makes_the_same_responses_and_sleeps_without_memory(model, monkeypatch):
    def run(engine, numbers):
        asked = [request(n, prompt_ids=prompt(n, 5 + 3 * n), max_tokens=90, stop_token_ids=()) for n in numbers]
        engine.submit(asked)
        found = {}
        while events := engine.poll():
            found |= {event.key: event for event in events}
        return found

    tight = run(EmbeddedEngine(model("qwen3"), slots=3), range(7))
    monkeypatch.setattr(embedded, "SlotCache", partial(SlotCache, fixed=True))
    engine = EmbeddedEngine(model("qwen3"), slots=3, longest=120)
    for _ in range(2):  # asleep in between
        found = run(engine, range(7))
        assert found.keys() == tight.keys()
        for key, event in found.items():
            assert event.token_ids.tolist() == tight[key].token_ids.tolist()
            np.testing.assert_allclose(event.logprobs, tight[key].logprobs, atol=1e-5)
        assert 0 < engine._cache.held <= fixed_bytes(engine.decoder.shape, 3, 120)
        engine.sleep()
        assert engine._cache.held == 0


def test_a_request_longer_than_promised_is_refused(model):
    engine = EmbeddedEngine(model("llama"), slots=2, longest=20)
    engine.submit([request(0, prompt_ids=[3] * 8, max_tokens=12)])
    with pytest.raises(EngineError, match="may grow to 21 tokens; this engine was made for 20"):
        engine.submit([request(1, prompt_ids=[3] * 9, max_tokens=12)])


GIB = 2**30


@pytest.fixture
def card(monkeypatch):
    """A stand-in for a CUDA device with so many bytes free; the model has a vocabulary of 1,000 words."""

    def make(free: int, reserved: int = 0, allocated: int = 0):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GIB))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated)
        embedding = types.SimpleNamespace(weight=torch.empty(1000, 1, device="meta"))
        model = types.SimpleNamespace(get_input_embeddings=lambda: embedding)
        return types.SimpleNamespace(device=torch.device("cuda"), model=model)

    return make


HALF_BILLION = CacheShape(24, 2, 64, torch.bfloat16, torch.device("meta"))  # 12 KiB a token


@pytest.mark.parametrize(
    ("free", "longest", "reserve", "expected"),
    [
        (70 * GIB, 1280, 6 * GIB, 512),  # 512 x (64 + 256 + 1280) x 12 KiB are 9.4 GiB
        (10 * GIB, 1280, 6 * GIB, (9 * GIB - 6 * GIB) // (1600 * (12288 + 4) + 24000)),
        (10 * GIB, 8192, 6 * GIB, (9 * GIB - 6 * GIB) // ((64 + 256 + 1024 + 8192) * (12288 + 4) + 24000)),
    ],
)
def test_slots_are_those_that_fit_at_full_length_beside_the_learner(card, free, longest, reserve, expected):
    assert slots.choose_slots(card(free), HALF_BILLION, longest, reserve) == expected


def test_memory_that_torch_holds_unused_counts_as_free(card):
    with_cache = card(10 * GIB, reserved=30 * GIB, allocated=10 * GIB)
    assert slots.choose_slots(with_cache, HALF_BILLION, 4096) == slots.choose_slots(card(30 * GIB), HALF_BILLION, 4096)


def test_slots_of_the_recipe_that_do_not_fit_are_refused_with_the_number_that_does(card):
    loaded = card(10 * GIB)
    fits = slots.choose_slots(loaded, HALF_BILLION, 4096, 6 * GIB)
    slots.check_slots(fits, loaded, HALF_BILLION, 4096, 6 * GIB)
    with pytest.raises(EngineError, match=rf"rollout.slots to at most {fits}$"):
        slots.check_slots(fits + 1, loaded, HALF_BILLION, 4096, 6 * GIB)


def test_a_card_without_room_for_one_response_is_told_so(card):
    for ask in (
        lambda: slots.choose_slots(card(GIB), HALF_BILLION, 1024, GIB),
        lambda: slots.check_slots(4, card(GIB), HALF_BILLION, 1024, GIB),
    ):
        with pytest.raises(EngineError, match="no memory for the keys and values of one response"):
            ask()
