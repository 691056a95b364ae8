"""Pools of the key-value cache: slots of equal width for responses of similar length.

A row has memory for as many tokens as the pool's longest may have. Attention looks at as many of these columns as the
longest row needs now, so nothing is copied when rows grow. Products over memory with gaps cost up to 12 % more than
over dense memory. Copies at every eighth token cost 15 % of all generation with 31 million parameters.

On a CPU a pool grows with the number of its rows, and a page of its memory is taken when a token first reaches it.
Elsewhere (:class:`FixedPool`) a pool takes its memory once, for every slot that there may be, at addresses that stay.
So what the cache takes is known before the first token, and :meth:`Pool.give_back` hands all of it to the learner.
"""

from __future__ import annotations

import itertools
import math
import mmap
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
        self.n = 0
        self.holes: list[int] = []
        self.seats = np.empty(0, dtype=np.int64)  # [rows]: who sits in each slot
        self._storage: Tensor
        self.kv: Tensor  # [layers, 2 (key, value), rows, kv heads, limit, d]
        self.bias: Tensor  # [rows, limit]: 0 where attention may look, -inf elsewhere
        self._make(0)

    @property
    def rows(self) -> int:
        return len(self.seats)

    def _make(self, rows: int) -> None:
        """Take memory for so many rows; what live rows hold moves along."""
        s, live = self.shape, min(self.n, self.rows)
        kept = (self.kv[:, :, :live, :, : self.columns], self.bias[:live]) if live else None
        shape = (s.layers, 2, rows, s.kv_heads, self.limit, s.head_dim)
        # Zeros, not empty: a masked column has weight 0, and 0 x garbage could be nan.
        self._storage = _zeros(math.prod(shape), s)
        self.kv = self._storage.view(shape)
        self.bias = torch.full((rows, self.limit), -torch.inf, dtype=s.score_dtype, device=s.device)
        self.seats = np.concatenate([self.seats[:rows], np.zeros(max(0, rows - self.rows), dtype=np.int64)])
        if kept is not None:
            self.kv[:, :, :live, :, : self.columns], self.bias[:live] = kept
        self._slice()

    def _slice(self) -> None:
        d = self.shape.head_dim
        self.flat = [layer.view(-1, d) for layer in self.kv]  # rows of one head's keys or values
        self.keys = [layer[0].view(-1, self.limit, d) for layer in self.kv]  # [rows x kv heads, limit, d]
        self.values = [layer[1].view(-1, self.limit, d) for layer in self.kv]

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

    def living(self) -> dict[int, int]:
        """Return who sits in each slot that is in use."""
        return {slot: int(self.seats[slot]) for slot in range(self.n) if slot not in self.holes}

    def fit(self, width: int) -> None:
        """Columns for a row of ``width`` tokens."""
        if self._empty() or width > self.columns:
            self.columns = _columns_for(width, self.limit)

    def take(self, count: int) -> list[int]:
        """``count`` free slots, holes first; grows when there are none left."""
        slots = [self.holes.pop() for _ in range(min(count, len(self.holes)))]
        fresh = count - len(slots)
        if self.n + fresh > self.rows:
            self._make(max(self.n + fresh, 2 * self.rows))
        slots += range(self.n, self.n + fresh)
        self.n += fresh
        return slots

    def resume(self, columns: int, seats: IntArray, holes: list[int]) -> None:
        """Have the slots ``seats`` in use, and of these ``holes`` free."""
        self._make(len(seats))
        self.n, self.columns, self.holes = len(seats), columns, holes
        self.seats[:] = seats

    def write_lengths(self, slots: Tensor, lengths: Tensor) -> None:
        """Attention may see the first ``lengths`` columns of each slot."""
        columns = torch.arange(self.limit, device=self.bias.device)
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
            self._make(self._most)
        return super().take(count)

    def fit(self, width: int) -> None:
        self._empty()
        step = max(_FIXED_STEP, width // 8 // _FIXED_STEP * _FIXED_STEP)
        self.columns = min(self.limit, -(-width // step) * step)

    def give_back(self) -> None:
        if self._empty() and self.rows:
            self._make(0)


def _zeros(numbers: int, shape: CacheShape) -> Tensor:
    """Zeros of the cache's type. On a CPU the system clears each page when something first touches it."""
    if shape.device.type != "cpu" or not numbers:
        return torch.zeros(numbers, dtype=shape.dtype, device=shape.device)
    # Not numpy: it asks for pages of 2 MiB, which took five times as long to clear on a virtual machine.
    memory = mmap.mmap(-1, numbers * shape.dtype.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=shape.dtype)


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
