"""The key-value cache: slots in pools of growing width, always dense, so attention reads contiguous memory.

A live response has a *seat* (a number that never changes while it lives) and a *slot* in one pool. A pool holds
responses up to a limit of tokens; one that outgrows it moves to the next, wider pool. So a short response never pays
for a long one: attention runs per pool, with one batched product and no gather. Everything else (matrix products,
norms) runs over all rows at once, pool after pool.

On a CPU a pool has just the columns its longest row needs, and is laid out anew when that row outgrows them: the copy
costs far less than products over memory with gaps lose (measured: a factor of 2 to 2.6 of each step's attention).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dapo.contracts.types import IntArray
from dapo.models.head import LOW
from dapo.models.precision import float32_product

FIRST_COLUMNS = 64
GROWTH = 4  # each pool is this many times wider than the one before
_MIN_COLUMNS = 32  # below, torch's batched product leaves BLAS for a plain loop that is slower than the wider product
_STEP = 8  # columns come in multiples of this, and at least an eighth more at a time


def _columns_for(width: int, limit: int) -> int:
    """Columns of a pool whose longest row needs ``width`` of them."""
    step = max(_STEP, width // _STEP // _STEP * _STEP)
    return min(limit, max(_MIN_COLUMNS, -(-width // step) * step))


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What one token's keys and values look like."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def score_dtype(self) -> torch.dtype:
        """Of attention scores, which are rounded to nothing less: keys with offsets make them large."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(slots=True)
class Prefilled:
    """Keys and values of a few sequences, and what follows them."""

    kv: Tensor  # [layers, 2 (key, value), sequences, kv heads, tokens, head_dim], right-padded
    logits: Tensor  # [sequences, vocabulary]: of the token after the last one


class Pool:
    """Slots of equal width. Live responses occupy slots 0..n-1 whenever a batch is laid out."""

    def __init__(self, shape: CacheShape, limit: int) -> None:
        self.shape = shape
        self.limit = limit  # longest row, its next token included
        self.columns = limit  # columns laid out now
        self.n = 0
        self.holes: list[int] = []
        self.seats = np.empty(0, dtype=np.int64)  # [rows]: who sits in each slot
        self._storage = torch.zeros(0, dtype=shape.dtype, device=shape.device)
        self.kv: Tensor  # [layers, 2 (key, value), rows, kv heads, columns, d]
        self.bias: Tensor  # [rows, columns]: 0 where attention may look, -inf elsewhere
        self._lay_out(0, limit)

    @property
    def rows(self) -> int:
        return len(self.seats)

    def _lay_out(self, rows: int, columns: int) -> None:
        """Room for so many rows and columns; what live rows hold moves along."""
        s, live = self.shape, min(self.n, self.rows)
        kept = None
        if live:
            width = min(columns, self.columns)
            kept = self.kv[:, :, :live, :, :width].clone(), self.bias[:live, :width]
        if rows > self.rows:
            # For all columns there may be, so that a new layout needs no new memory. Zeros, not empty: a masked column
            # has weight 0, and 0 x garbage could be nan.
            size = s.layers * 2 * rows * s.kv_heads * self.limit * s.head_dim
            self._storage = torch.zeros(size, dtype=s.dtype, device=s.device)
            self.seats = np.concatenate([self.seats, np.zeros(rows - self.rows, dtype=np.int64)])
        shape = (s.layers, 2, rows, s.kv_heads, columns, s.head_dim)
        self.columns = columns
        self.kv = self._storage[: math.prod(shape)].view(shape)
        self.bias = torch.full((rows, columns), -torch.inf, dtype=s.score_dtype, device=s.device)
        if kept is not None:
            self.kv[:, :, :live, :, : kept[0].shape[4]], self.bias[:live, : kept[1].shape[1]] = kept
        self.flat = [layer.view(-1, s.head_dim) for layer in self.kv]  # rows of one head's keys or values
        self.keys = [layer[0].view(-1, columns, s.head_dim) for layer in self.kv]  # [rows x kv heads, columns, d]
        self.values = [layer[1].view(-1, columns, s.head_dim) for layer in self.kv]

    def fit(self, width: int) -> None:
        """Columns for a row of ``width`` tokens."""
        tight = self.shape.device.type == "cpu"  # elsewhere addresses stay fixed, as a captured graph needs them
        empty = self.n == len(self.holes)
        if empty:
            self.n = 0
            self.holes.clear()
        if width > self.columns or (tight and empty):
            self._lay_out(self.rows, _columns_for(width, self.limit) if tight else self.limit)

    def take(self, count: int) -> list[int]:
        """``count`` free slots, holes first; grows when there are none left."""
        slots = [self.holes.pop() for _ in range(min(count, len(self.holes)))]
        fresh = count - len(slots)
        if self.n + fresh > self.rows:
            self._lay_out(max(self.n + fresh, 2 * self.rows), self.columns)
        slots += range(self.n, self.n + fresh)
        self.n += fresh
        return slots

    def write_lengths(self, slots: Tensor, lengths: Tensor) -> None:
        """Attention may see the first ``lengths`` columns of each slot."""
        columns = torch.arange(self.columns, device=self.bias.device)
        self.bias[slots] = torch.where(columns < lengths[:, None], 0.0, -torch.inf).to(self.bias.dtype)

    def fill(self, slots: list[int], rows: list[int], kv: Tensor) -> None:
        """Copy row ``rows[i]`` of ``kv`` [layers, 2, rows, kv heads, tokens, d] into ``slots[i]``.

        The responses of a group mostly get neighbouring slots, so each run of slots is one broadcast copy.
        """
        pairs = sorted(zip(slots, rows, strict=True))
        start, width = 0, kv.shape[4]
        for stop in range(1, len(pairs) + 1):
            first, row = pairs[start]
            if stop == len(pairs) or pairs[stop] != (first + stop - start, row):
                self.kv[:, :, first : first + stop - start, :, :width] = kv[:, :, row : row + 1]
                start = stop

    def compact(self, length: IntArray) -> list[tuple[int, int]]:
        """Close the holes with the last rows; returns the moves (from slot, to slot). ``length`` is by seat."""
        holes = sorted(self.holes)
        self.holes.clear()
        moves: list[tuple[int, int]] = []
        while holes:
            last = self.n - 1
            if holes[-1] == last:
                holes.pop()
            else:
                moves.append((last, holes.pop(0)))
            self.n = last
        for source, target in moves:  # one strided copy each: several times cheaper than an indexed copy of all
            used = length[self.seats[source]]
            self.kv[:, :, target, :, :used] = self.kv[:, :, source, :, :used]
            self.bias[target] = self.bias[source]
        return moves


class Segment:
    """The rows of one pool within a decode batch."""

    def __init__(self, pool: Pool, start: int, width: int, write: Tensor, mask: Tensor) -> None:
        self.pool, self.start, self.stop = pool, start, start + pool.n
        self.width = width  # columns in use after this step's token: the longest row's length + 1
        self.write = write  # [rows, 2 x kv heads] where this step's keys and values go in ``pool.flat``
        self.mask = mask  # [rows] where this step's column is in the flat bias

    def open(self) -> None:
        """Let attention see the column of this step's token."""
        self.pool.bias.view(-1).index_fill_(0, self.mask, 0.0)
        n, heads = self.pool.n, self.pool.n * self.pool.shape.kv_heads
        self.keys = [keys[:heads].transpose(1, 2) for keys in self.pool.keys]
        self.values = [values[:heads] for values in self.pool.values]
        self.bias = self.pool.bias[:n, None]

    def _windowed(self, positions: Tensor, window: int) -> Tensor:
        """The bias [rows, 1, columns] of a layer that sees only the last ``window`` tokens."""
        columns = torch.arange(self.bias.shape[-1], device=positions.device)
        hidden = columns <= positions[self.start : self.stop, None] - window
        return self.bias.masked_fill(hidden[:, None], -torch.inf)

    def attend(self, layer: int, query: Tensor, kv: Tensor, positions: Tensor, window: int | None = None) -> Tensor:
        """Write this step's keys and values, then attend; arguments as of :meth:`DecodeBatch.attend`."""
        n, heads, d = query.shape
        pool = self.pool
        pool.flat[layer].index_put_((self.write,), kv)
        groups = n * pool.shape.kv_heads
        product = float32_product if query.dtype in LOW else torch.bmm
        scores = product(query.reshape(groups, -1, d), self.keys[layer])
        by_row = scores.view(n, heads, -1)
        by_row.add_(self.bias if window is None else self._windowed(positions, window))
        weights = torch.softmax(scores, dim=-1).to(query.dtype)
        return torch.bmm(weights, self.values[layer]).view(n, heads * d)


class DecodeBatch:
    """The live rows in the order of this step, with everything that moves on by one per step in one tensor."""

    def __init__(self, seats: IntArray, segments: list[Segment], counters: Tensor, positions: Tensor) -> None:
        self.seats = seats  # [rows]
        self.segments = segments
        self.positions = positions  # [rows]: position of this step's token
        self._counters = counters
        for segment in segments:
            segment.open()

    @property
    def full(self) -> bool:
        """Some pool has no column left for the next token: the batch must be laid out again."""
        return any(segment.width > segment.pool.columns for segment in self.segments)

    def advance(self) -> None:
        """To the next step, with the same rows."""
        self._counters.add_(1)
        for segment in self.segments:
            segment.width += 1
        if not self.full:
            for segment in self.segments:
                segment.open()

    @property
    def widest(self) -> int:
        """Length of the longest row, this step's token included."""
        return max(segment.width for segment in self.segments)

    def attend(self, layer: int, query: Tensor, kv: Tensor, window: int | None = None) -> Tensor:
        """Write this step's keys and values, then attend over each row's own tokens.

        Args:
            layer: index of the layer.
            query: [rows, heads, d], already scaled.
            kv: [rows, 2 x kv heads, d]: keys, then values.
            window: for a layer that sees only so many of the last tokens.

        Returns:
            [rows, heads x d]
        """
        if len(self.segments) == 1:
            return self.segments[0].attend(layer, query, kv, self.positions, window)
        parts = [
            s.attend(layer, query[s.start : s.stop], kv[s.start : s.stop], self.positions, window)
            for s in self.segments
        ]
        return torch.cat(parts)


class SlotCache:
    """Where every live response keeps its keys and values."""

    def __init__(self, shape: CacheShape, seats: int) -> None:
        self.shape = shape
        self.pools: list[Pool] = []
        self.length = np.zeros(seats, dtype=np.int64)  # [seats]: tokens in the cache
        self._slot = np.zeros(seats, dtype=np.int64)
        self._pool = np.zeros(seats, dtype=np.int64)

    def _pool_for(self, length: int) -> int:
        """Index of the narrowest pool with room for ``length`` tokens and the next one."""
        index, columns = 0, FIRST_COLUMNS
        while columns < length + 1:
            index, columns = index + 1, columns * GROWTH
        while len(self.pools) <= index:
            width = FIRST_COLUMNS * GROWTH ** len(self.pools)
            self.pools.append(Pool(self.shape, width))
        return index

    def _seat_in(self, index: int, seats: IntArray) -> Tensor:
        """Give ``seats`` (their lengths are set) slots in pool ``index``; returns the slots."""
        pool = self.pools[index]
        pool.fit(int(self.length[seats].max()) + 1)
        slots = np.array(pool.take(len(seats)), dtype=np.int64)
        pool.seats[slots] = seats
        self._slot[seats], self._pool[seats] = slots, index
        placed = torch.from_numpy(slots).to(self.shape.device)
        pool.write_lengths(placed, torch.from_numpy(self.length[seats]).to(self.shape.device))
        return placed

    def insert(self, seats: IntArray, lengths: IntArray, prefilled: Prefilled, rows: IntArray) -> None:
        """Seat responses: ``seats[i]`` begins with the first ``lengths[i]`` tokens of ``prefilled`` row ``rows[i]``."""
        self.length[seats] = lengths
        index = np.array([self._pool_for(int(length)) for length in lengths])
        for pool in np.unique(index):
            chosen = index == pool
            slots = self._seat_in(int(pool), seats[chosen])
            width = int(lengths[chosen].max())
            self.pools[pool].fill(slots.tolist(), rows[chosen].tolist(), prefilled.kv[..., :width, :])

    def remove(self, seats: IntArray, *, wipe: bool = False) -> None:
        """Free the slots of ``seats``. ``wipe`` clears what they hold, for rows that went non-finite."""
        for seat in seats:
            pool, slot = self.pools[self._pool[seat]], int(self._slot[seat])
            pool.holes.append(slot)
            if wipe:
                pool.kv[:, :, slot] = 0

    def _promote(self) -> None:
        """Move rows that filled their pool into the next one."""
        index = 0
        while index < len(self.pools):
            pool = self.pools[index]
            live = pool.seats[: pool.n]
            grown = live[self.length[live] >= pool.limit]
            if len(grown):
                self._pool_for(pool.limit)  # makes the next pool where there is none
                source = torch.from_numpy(self._slot[grown]).to(self.shape.device)
                self.remove(grown)
                target = self._seat_in(index + 1, grown)
                wider = self.pools[index + 1]
                wider.kv[:, :, target, :, : pool.limit] = pool.kv[:, :, source]
                self._compact(pool)
            index += 1

    def _compact(self, pool: Pool) -> None:
        for source, target in pool.compact(self.length):
            seat = pool.seats[source]
            pool.seats[target] = seat
            self._slot[seat] = target

    def advance(self, batch: DecodeBatch) -> None:
        """The step of ``batch`` is done: each of its rows holds one token more."""
        self.length[batch.seats] += 1
        batch.advance()

    def layout(self) -> DecodeBatch:
        """Make every pool dense and describe the next step's rows."""
        for pool in self.pools:
            self._compact(pool)
        self._promote()
        for pool in self.pools:
            if pool.n:
                pool.fit(int(self.length[pool.seats[: pool.n]].max()) + 1)
        live = [pool for pool in self.pools if pool.n]
        seats = np.concatenate([pool.seats[: pool.n] for pool in live])
        lengths = self.length[seats]
        n, kinds = len(seats), 2 * self.shape.kv_heads
        counters = np.empty(n * (2 + kinds), dtype=np.int64)
        counters[:n] = lengths
        start = 0
        for pool in live:
            rows = slice(start, start + pool.n)
            slots = np.arange(pool.n)
            counters[n : 2 * n][rows] = slots * pool.columns + lengths[rows]
            block = (np.arange(2)[:, None] * pool.rows * self.shape.kv_heads + np.arange(self.shape.kv_heads)).ravel()
            write = (slots[:, None] * self.shape.kv_heads + block) * pool.columns + lengths[rows, None]
            counters[2 * n :].reshape(n, kinds)[rows] = write
            start += pool.n
        moving = torch.from_numpy(counters).to(self.shape.device)
        positions, mask, write_at = moving[:n], moving[n : 2 * n], moving[2 * n :].view(n, kinds)
        segments, start = [], 0
        for pool in live:
            rows = slice(start, start + pool.n)
            segments.append(Segment(pool, start, int(lengths[rows].max()) + 1, write_at[rows], mask[rows]))
            start += pool.n
        return DecodeBatch(seats, segments, moving, positions)
