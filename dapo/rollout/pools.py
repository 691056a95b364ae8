"""Pools of the key-value cache: slots of equal width for responses of similar length.

On a CPU a pool has just the columns its longest row needs, and is laid out anew when that row outgrows them: the copy
costs far less than products over memory with gaps lose (measured: a factor of 2 to 2.6 of each step's attention).

Elsewhere (:class:`FixedPool`) a pool takes its memory once, for every slot that there may be, at addresses that stay;
attention looks at as many of its columns as the longest row needs. So what the cache takes is known before the first
token, nothing is copied to grow, and :meth:`Pool.give_back` hands all of it to the learner.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dapo.models.routing import Routes
from dapo.types.batch import IntArray

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
    """Shape and types of one token's keys and values."""

    layers: int
    kv_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def score_dtype(self) -> torch.dtype:
        """Type of attention scores, at least float32: keys with offsets make scores large."""
        return torch.promote_types(self.dtype, torch.float32)

    @property
    def bytes_per_token(self) -> int:
        return 2 * self.layers * self.kv_heads * self.head_dim * self.dtype.itemsize


@dataclass(slots=True)
class Prefilled:
    """Keys and values of a few sequences, and what follows them."""

    kv: Tensor  # [layers, 2 (key, value), sequences, kv heads, tokens, head_dim], right-padded
    logits: Tensor  # [sequences, vocabulary]: of the token after the last one
    routes: Routes | None = None  # [sequences, tokens, routers, k], where they are recorded


class Pool:
    """Slots of equal width. Live responses occupy slots 0..n-1 whenever a batch is laid out."""

    def __init__(self, shape: CacheShape, limit: int) -> None:
        self.shape = shape
        self.limit = limit  # longest row, its next token included
        self.columns = limit  # columns that attention looks at
        self.stride = limit  # columns between two rows in memory
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
        """Allocate so many rows and columns; the contents of live rows move along."""
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
        self.columns = self.stride = columns
        self.kv = self._storage[: math.prod(shape)].view(shape)
        self.bias = torch.full((rows, columns), -torch.inf, dtype=s.score_dtype, device=s.device)
        if kept is not None:
            self.kv[:, :, :live, :, : kept[0].shape[4]], self.bias[:live, : kept[1].shape[1]] = kept
        self._slice()

    def _slice(self) -> None:
        d = self.shape.head_dim
        self.flat = [layer.view(-1, d) for layer in self.kv]  # rows of one head's keys or values
        self.keys = [layer[0].view(-1, self.stride, d) for layer in self.kv]  # [rows x kv heads, columns, d]
        self.values = [layer[1].view(-1, self.stride, d) for layer in self.kv]

    @property
    def address(self) -> tuple[int, int]:
        """Addresses of keys and values, and of the bias."""
        return self._storage.data_ptr(), self.bias.data_ptr()

    @property
    def held(self) -> int:
        """Bytes of keys, values and bias."""
        return self._storage.nbytes + self.bias.nbytes

    def give_back(self) -> None:
        """Do nothing: on a CPU the memory stays, as it would cost more to make again than it holds."""

    def _empty(self) -> bool:
        """Whether no row lives; slots are then counted from 0 again."""
        if self.n != len(self.holes):
            return False
        self.n = 0
        self.holes.clear()
        return True

    def fit(self, width: int) -> None:
        """Columns for a row of ``width`` tokens."""
        if self._empty() or width > self.columns:
            self._lay_out(self.rows, _columns_for(width, self.limit))

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
        columns = torch.arange(self.stride, device=self.bias.device)
        self.bias[slots] = torch.where(columns < lengths[:, None], 0.0, -torch.inf).to(self.bias.dtype)

    def fill(self, slots: list[int], rows: list[int], kv: Tensor) -> None:
        """Copy row ``rows[i]`` of ``kv`` [layers, 2, rows, kv heads, tokens, d] into ``slots[i]``.

        The responses of a group mostly get neighbouring slots, so each run of slots is one broadcast copy.
        """
        order = np.argsort(slots)
        at, of = np.array(slots)[order], np.array(rows)[order]
        ends = np.flatnonzero((np.diff(at) != 1) | (np.diff(of) != 0)) + 1
        at, of, width = at.tolist(), of.tolist(), kv.shape[4]
        for start, stop in itertools.pairwise([0, *ends.tolist(), len(at)]):
            row = of[start]
            self.kv[:, :, at[start] : at[stop - 1] + 1, :, :width] = kv[:, :, row : row + 1]

    def compact(self, length: IntArray) -> list[tuple[int, int]]:
        """Close the holes with the last rows; returns the moves (from slot, to slot). ``length`` is by response."""
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


_FIXED_STEP = 64  # columns that attention looks at come in multiples of this, and of an eighth of the row


class FixedPool(Pool):
    """A pool whose memory is taken once, when the first row comes, for ``rows`` slots; see the text of this module."""

    def __init__(self, shape: CacheShape, limit: int, rows: int) -> None:
        self._most = rows
        super().__init__(shape, limit)

    def take(self, count: int) -> list[int]:
        if not self.rows:
            self._lay_out(self._most, self.limit)
        return super().take(count)

    def fit(self, width: int) -> None:
        self._empty()
        step = max(_FIXED_STEP, width // 8 // _FIXED_STEP * _FIXED_STEP)
        self.columns = min(self.limit, -(-width // step) * step)

    def give_back(self) -> None:
        if self._empty() and self.rows:
            self.seats = np.empty(0, dtype=np.int64)
            self._storage = torch.zeros(0, dtype=self.shape.dtype, device=self.shape.device)
            self._lay_out(0, self.limit)


def pool_limits(longest: int) -> list[int]:
    """Widths of the pools for rows of at most ``longest`` tokens; the last one is no wider than they need."""
    limits = [FIRST_COLUMNS]
    while limits[-1] < longest:
        wider = limits[-1] * GROWTH
        limits.append(longest if 2 * wider >= longest else wider)
    return limits


def fixed_bytes(shape: CacheShape, rows: int, longest: int) -> int:
    """Return the bytes of fixed pools for ``rows`` responses of at most ``longest`` tokens once all are in use."""
    return rows * sum(pool_limits(longest)) * (shape.bytes_per_token + shape.score_dtype.itemsize)
