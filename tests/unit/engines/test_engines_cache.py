"""The slot cache: rows move between slots and pools without changing what they attend to."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo.engines.cache import SlotCache
from dapo.engines.graphs import rounded
from dapo.engines.pools import FIRST_COLUMNS, CacheShape, Prefilled

SHAPE = CacheShape(layers=2, kv_heads=2, head_dim=4, dtype=torch.float32, device=torch.device("cpu"))


class _Reference:
    """Every row's keys and values in plain lists; attention by the formula, in float64."""

    def __init__(self):
        self.kv: dict[int, torch.Tensor] = {}  # seat -> [layers, 2, kv heads, tokens, d]

    def attend(self, seat: int, layer: int, query: torch.Tensor, window: int | None = None) -> torch.Tensor:
        keys, values = self.kv[seat][layer].double()
        if window is not None:
            keys, values = keys[:, -window:], values[:, -window:]
        grouped = query.double().view(SHAPE.kv_heads, -1, SHAPE.head_dim)
        return ((grouped @ keys.transpose(1, 2)).softmax(-1) @ values).reshape(-1)


def _insert(cache, reference, seats, lengths, generator):
    width = max(lengths)
    kv = torch.randn(2, 2, len(seats), 2, width, 4, generator=generator)
    cache.insert(np.array(seats), np.array(lengths), Prefilled(kv, torch.empty(0)), np.arange(len(seats)))
    for row, (seat, length) in enumerate(zip(seats, lengths, strict=True)):
        reference.kv[seat] = kv[:, :, row, :, :length]


def _step(cache, reference, batch, generator, window=None):
    where = list(range(batch.rows)) if batch.live is None else batch.live.tolist()
    assert len(where) == len(batch.seats)
    for layer in range(SHAPE.layers):
        query = torch.randn(batch.rows, 6, 4, generator=generator)
        kv = torch.randn(batch.rows, 4, 4, generator=generator)
        if layer == 0:
            new = {int(seat): [] for seat in batch.seats}
        out = batch.attend(layer, query, kv, window)
        assert out.isfinite().all()  # of rows that compute along, too: their slots will be somebody's
        for row, seat in zip(where, batch.seats.tolist(), strict=True):
            new[seat].append(kv[row].view(2, 2, 1, 4))
            if layer == 0:
                reference.kv[seat] = torch.cat(
                    [reference.kv[seat], torch.zeros_like(reference.kv[seat][:, :, :, :1])], dim=3
                )
            reference.kv[seat][layer, :, :, -1:] = new[seat][layer]
            expected = reference.attend(seat, layer, query[row], window)
            torch.testing.assert_close(out[row].double(), expected, atol=1e-5, rtol=1e-5)
        if layer == 0:
            assert batch.positions[where].tolist() == [reference.kv[int(seat)].shape[3] - 1 for seat in batch.seats]
    cache.advance(batch)


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(["tight", "fixed", "rounded"]))
def test_rows_come_and_go_and_grow(data, kind):
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    reference, batch, shapes = _Reference(), None, {}
    cache = SlotCache(
        SHAPE,
        seats=12,
        longest=FIRST_COLUMNS + 90,
        fixed=kind != "tight",
        rounded=rounded if kind == "rounded" else None,
    )
    for _ in range(data.draw(st.integers(1, 6))):
        free = [seat for seat in range(12) if seat not in reference.kv]
        arriving = data.draw(st.lists(st.sampled_from(free), unique=True, max_size=6)) if free else []
        if arriving:
            edge = FIRST_COLUMNS
            lengths = [data.draw(st.sampled_from([1, 2, 7, edge - 2, edge - 1, edge, edge + 3])) for _ in arriving]
            _insert(cache, reference, arriving, lengths, generator)
            batch = None
        if not reference.kv:
            continue
        for _ in range(data.draw(st.integers(1, 4))):
            if batch is None or batch.full:
                batch = cache.layout()
            assert sorted(batch.seats.tolist()) == sorted(reference.kv)
            if kind == "rounded":  # equal shapes: equal addresses
                places = [
                    batch.positions.data_ptr(),
                    *(t.data_ptr() for s in batch.segments for t in (*s.keys, s.bias)),
                ]
                places += [segment.write.data_ptr() for segment in batch.segments]
                assert shapes.setdefault(batch.shapes, places) == places
            _step(cache, reference, batch, generator)
        leaving = data.draw(st.lists(st.sampled_from(sorted(reference.kv)), unique=True))
        if leaving:
            cache.remove(np.array(leaving))
            for seat in leaving:
                del reference.kv[seat]
            batch = None
        if data.draw(st.booleans()):
            cache.give_back()
            batch, shapes = None, {}


def test_windows_hide_old_tokens():
    generator = torch.Generator().manual_seed(0)
    cache, reference = SlotCache(SHAPE, seats=3), _Reference()
    _insert(cache, reference, [0, 1, 2], [9, 3, 70], generator)
    batch = cache.layout()
    assert len(batch.segments) == 2
    for _ in range(3):
        if batch.full:
            batch = cache.layout()
        _step(cache, reference, batch, generator, window=5)


def test_a_row_pays_for_its_own_pool_only():
    cache = SlotCache(SHAPE, seats=4)
    generator = torch.Generator().manual_seed(0)
    _insert(cache, _Reference(), [0, 1, 2, 3], [5, 300, 6, 7], generator)
    segments = {segment.pool.limit: (segment.pool.n, segment.bias.shape[-1]) for segment in cache.layout().segments}
    assert segments == {64: (3, 32), 1024: (1, 320)}


def test_wiped_slots_leave_nothing_behind():
    cache, reference = SlotCache(SHAPE, seats=2), _Reference()
    generator = torch.Generator().manual_seed(0)
    kv = torch.full((2, 2, 1, 2, 9, 4), torch.nan)
    cache.insert(np.array([0]), np.array([9]), Prefilled(kv, torch.empty(0)), np.array([0]))
    cache.remove(np.array([0]), wipe=True)
    _insert(cache, reference, [1], [2], generator)
    _step(cache, reference, cache.layout(), generator)


def test_bytes_per_token():
    assert SHAPE.bytes_per_token == 2 * 2 * 2 * 4 * 4
    assert pytest.approx(CacheShape(24, 2, 64, torch.bfloat16, torch.device("cpu")).bytes_per_token) == 12288


def test_a_cpus_cache_is_bounded_by_the_longest_response_and_copies_nothing_while_rows_grow():
    cache = SlotCache(SHAPE, seats=4, longest=136)
    generator = torch.Generator().manual_seed(0)
    reference = _Reference()
    _insert(cache, reference, [0, 1, 2, 3], [5, 6, 7, 120], generator)
    batch = cache.layout()
    assert [pool.limit for pool in cache.pools] == [FIRST_COLUMNS, 136]
    addresses = [pool.kv.data_ptr() for pool in cache.pools]
    for _ in range(15):
        if batch.full:
            batch = cache.layout()
        _step(cache, reference, batch, generator)
    assert [pool.kv.data_ptr() for pool in cache.pools] == addresses
    assert sum(pool.held for pool in cache.pools) <= 4 * (FIRST_COLUMNS + 136) * (SHAPE.bytes_per_token + 4)


def test_medium_products_leave_the_attention_of_float32_exact():
    """Each query's own product is float32's whatever the recipe says of matrix products."""
    before = torch.get_float32_matmul_precision()
    generator = torch.Generator().manual_seed(0)
    cache, reference = SlotCache(SHAPE, seats=2), _Reference()
    _insert(cache, reference, [0, 1], [9, 3], generator)
    try:
        torch.set_float32_matmul_precision("medium")
        with pytest.MonkeyPatch.context() as patch:
            seen, real = [], torch.bmm
            patch.setattr(torch, "bmm", lambda *a: (seen.append(torch.get_float32_matmul_precision()), real(*a))[1])
            cache.layout().attend(0, torch.randn(2, 6, 4), torch.randn(2, 4, 4))
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}
