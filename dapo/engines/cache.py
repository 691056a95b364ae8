"""The key-value cache: slots in pools of growing width, always dense, so attention reads contiguous memory.

A live response has a number (one of ``seats``) that never changes, and a *slot* in one pool. A pool holds responses
up to a limit of tokens; one that outgrows it moves to the next, wider pool. So a short response never pays
for a long one: attention runs per pool, with one batched product and no gather. Everything else (matrix products,
norms) runs over all rows at once, pool after pool.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from dapo.engines.pools import FIRST_COLUMNS, GROWTH, CacheShape, FixedPool, Pool, Prefilled, pool_limits
from dapo.engines.traffic import as_bytes, of_bytes, send
from dapo.models.head import LOW
from dapo.models.precision import exact_matmuls, float32_product
from dapo.types.batch import IntArray

_MOVED = 2**28  # bytes of keys and values that move to a wider pool at once: they exist twice for a moment


def most_rows(live: int) -> int:
    """Return the most rows that a step of ``live`` live rows computes. At most a quarter more compute along, and 7 in
    each of fewer than 16 pools."""
    return live + live // 4 + 16 * 8


class PoolSegment:
    """Rows of one pool within a decode batch: the live ones, then free slots that compute along."""

    def __init__(self, pool: Pool, start: int, rows: int, width: int, write: Tensor, mask: Tensor) -> None:
        self.pool, self.start, self.stop = pool, start, start + rows
        self.width = width  # columns in use after this step's token: the longest row's length + 1
        self.write = write  # [rows, 2 x kv heads] where this step's keys and values go in ``pool.flat``
        self.mask = mask  # [rows] where this step's column is in the flat bias

    def open(self) -> None:
        """Let attention see the column of this step's token."""
        self.pool.bias.view(-1).index_fill_(0, self.mask, 0.0)
        n, columns = self.stop - self.start, self.pool.columns
        heads = n * self.pool.shape.kv_heads
        self.keys = [keys[:heads, :columns].transpose(1, 2) for keys in self.pool.keys]
        self.values = [values[:heads, :columns] for values in self.pool.values]
        self.bias = self.pool.bias[:n, None, :columns]

    def _windowed(self, positions: Tensor, window: int) -> Tensor:
        """Return the bias [rows, 1, columns] of a layer that sees only the last ``window`` tokens."""
        columns = torch.arange(self.bias.shape[-1], device=positions.device)
        hidden = columns <= positions[self.start : self.stop, None] - window
        return self.bias.masked_fill(hidden[:, None], -torch.inf)

    def attend(self, layer: int, query: Tensor, kv: Tensor, positions: Tensor, window: int | None = None) -> Tensor:
        """Write this step's keys and values, then attend; arguments as of :meth:`DecodeBatch.attend`."""
        self.pool.flat[layer].index_put_((self.write,), kv)
        bias = self.bias if window is None else self._windowed(positions, window)
        if query.is_cuda:
            return self._by_products(layer, query, bias)
        if query.dtype not in LOW:
            with exact_matmuls():  # `medium` makes products of one query and its keys twice as slow
                return self._by_products(layer, query, bias)
        return self._by_kernel(layer, query, bias)

    def _by_kernel(self, layer: int, query: Tensor, bias: Tensor) -> Tensor:
        """Attend by torch's kernel, which on a processor keeps scores of low precision in float32."""
        n, heads, d = query.shape
        by_group = query.reshape(n, self.pool.shape.kv_heads, -1, d)
        keys, values = (x.unflatten(0, (n, -1)) for x in (self.keys[layer].transpose(1, 2), self.values[layer]))
        out = F.scaled_dot_product_attention(by_group, keys, values, attn_mask=bias[:, None], scale=1.0)
        return out.reshape(n, heads * d)

    def _by_products(self, layer: int, query: Tensor, bias: Tensor) -> Tensor:
        """Attend by two batched products; the scores are float32."""
        n, heads, d = query.shape
        product = float32_product if query.dtype in LOW else torch.bmm
        scores = product(query.reshape(n * self.pool.shape.kv_heads, -1, d), self.keys[layer])
        scores.view(n, heads, -1).add_(bias)
        weights = torch.softmax(scores, dim=-1).to(query.dtype)
        return torch.bmm(weights, self.values[layer]).view(n, heads * d)


class DecodeBatch:
    """The rows in the order of this step, with everything that moves on by one per step in one tensor."""

    def __init__(
        self, seats: IntArray, segments: list[PoolSegment], counters: Tensor, positions: Tensor, live: Tensor | None
    ) -> None:
        self.seats = seats  # [live rows]
        self.segments = segments
        self.positions = positions  # [rows]: position of this step's token
        self.live = live  # [live rows] which of the rows live; None: all
        self._counters = counters
        for segment in segments:
            segment.open()

    @property
    def rows(self) -> int:
        """Rows that the step computes, live or not."""
        return self.segments[-1].stop

    @property
    def shapes(self) -> Hashable:
        """Two steps of equal shapes do the same to the same memory, counters and tokens aside."""
        pools = [(s.pool.address, s.stop - s.start, s.pool.columns) for s in self.segments]
        return self._counters.data_ptr(), *pools

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
    """Keys and values of every live response.

    Args:
        shape: of one token's.
        seats: Responses that live at once.
        longest: tokens of the longest of them; None: any.
        fixed: take each pool's memory once, for all responses; None: on every device but a CPU.
        rounded: rows that a pool with so many live ones computes, in steps whose counters stand at one address; None:
            these alone. Needs fixed pools.
    """

    def __init__(
        self,
        shape: CacheShape,
        seats: int,
        longest: int | None = None,
        fixed: bool | None = None,
        rounded: Callable[[int], int] | None = None,
    ) -> None:
        self.shape = shape
        self.fixed = shape.device.type != "cpu" if fixed is None else fixed
        self._rounded = rounded
        self._counters = torch.empty(0, dtype=torch.int64, device=shape.device)  # of rounded steps
        self._limits = pool_limits(longest) if longest is not None else None
        self.pools: list[Pool] = []
        self.length = np.zeros(seats, dtype=np.int64)  # [seats]: tokens in the cache
        self._slot = np.zeros(seats, dtype=np.int64)
        self._pool = np.zeros(seats, dtype=np.int64)

    def _pool_for(self, length: int) -> int:
        """Return the index of the narrowest pool that can hold ``length`` tokens and the next one."""
        index = next(index for index in count() if self._limit(index) > length)
        while len(self.pools) <= index:
            limit = self._limit(len(self.pools))
            seats = len(self.length)
            self.pools.append(FixedPool(self.shape, limit, seats) if self.fixed else Pool(self.shape, limit))
        return index

    def _limit(self, index: int) -> int:
        """Tokens of the longest row of pool ``index``."""
        return FIRST_COLUMNS * GROWTH**index if self._limits is None else self._limits[index]

    @property
    def held(self) -> int:
        """Bytes that the cache holds now."""
        return sum(pool.held for pool in self.pools)

    def give_back(self) -> None:
        """Hand back the memory of pools in which nothing lives."""
        for pool in self.pools:
            pool.give_back()

    def _seat_in(self, index: int, seats: IntArray) -> Tensor:
        """Give the responses ``seats`` (their lengths are set) slots in pool ``index``; returns the slots."""
        pool = self.pools[index]
        pool.fit(int(self.length[seats].max()) + 1)
        slots = np.array(pool.take(len(seats)), dtype=np.int64)
        pool.seats[slots] = seats
        self._slot[seats], self._pool[seats] = slots, index
        placed = send(slots, self.shape.device)
        pool.write_lengths(placed, send(self.length[seats], self.shape.device))
        return placed

    def insert(self, seats: IntArray, lengths: IntArray, prefilled: Prefilled, rows: IntArray) -> None:
        """Add responses: ``seats[i]`` begins with the first ``lengths[i]`` tokens of ``prefilled`` row ``rows[i]``."""
        self.length[seats] = lengths
        index = np.array([self._pool_for(int(length)) for length in lengths])
        for pool in np.unique(index):
            self._seat_in(int(pool), seats[index == pool])
        self.write(seats, prefilled, rows)

    def write(self, seats: IntArray, prefilled: Prefilled, rows: IntArray) -> None:
        """Replace all keys and values of each response by the first tokens of its row of ``prefilled``."""
        for pool in np.unique(self._pool[seats]):
            chosen = self._pool[seats] == pool
            width = int(self.length[seats[chosen]].max())
            slots = self._slot[seats[chosen]].tolist()  # known here: reading them back would wait for the device
            self.pools[pool].fill(slots, rows[chosen].tolist(), prefilled.kv[..., :width, :])

    def copy_of(self, seat: int) -> Tensor:
        """Keys and values of a response's tokens [layers, 2 (key, value), kv heads, tokens, head_dim]."""
        pool = self.pools[self._pool[seat]]
        kv: Tensor = pool.kv[:, :, self._slot[seat], :, : self.length[seat]]
        return kv.clone()

    def state(self) -> dict[str, Any]:
        """Return where each live response stands, and its keys and values, as plain values and arrays."""
        seats = np.array([seat for pool in self.pools for seat in pool.living().values()], dtype=np.int64)
        return {
            "pools": [[pool.columns, pool.seats[: pool.n].copy(), list(pool.holes)] for pool in self.pools],
            "seats": seats,
            "lengths": self.length[seats],
            "kv": [as_bytes(self.copy_of(seat)) for seat in seats],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over ``state()`` of a cache of this shape, into one that is empty."""
        self.length[state["seats"]] = state["lengths"]
        for index, (columns, seats, holes) in enumerate(state["pools"]):
            self._pool_for(self._limit(index) - 1)
            pool = self.pools[index]
            pool.resume(columns, seats, list(holes))
            for slot, seat in pool.living().items():
                self._slot[seat], self._pool[seat] = slot, index
                pool.write_lengths(torch.tensor([slot]), torch.tensor([self.length[seat]]))
        for seat, kv in zip(state["seats"], state["kv"], strict=True):
            place = self.pools[self._pool[seat]].kv[:, :, self._slot[seat], :, : self.length[seat]]
            place.copy_(of_bytes(kv, self.shape.dtype))

    def remove(self, seats: IntArray, *, wipe: bool = False) -> None:
        """Free the slots of ``seats``. ``wipe`` clears their keys and values, for rows that went non-finite."""
        for index, slot in zip(self._pool[seats].tolist(), self._slot[seats].tolist(), strict=True):
            pool = self.pools[index]
            pool.holes.append(slot)
            if wipe:
                pool.kv[:, :, slot] = 0
                if self._rounded is not None:  # free slots computed along, by the same weights
                    pool.kv[:, :, pool.n :] = 0

    def _promote(self) -> None:
        """Move rows that filled their pool into the next one."""
        index = 0
        while index < len(self.pools):
            pool = self.pools[index]
            live = pool.seats[: pool.n]
            grown = live[self.length[live] >= pool.limit]
            if len(grown):
                self._pool_for(pool.limit)  # makes the next pool where there is none
                source = send(self._slot[grown], self.shape.device)
                self.remove(grown)
                target = self._seat_in(index + 1, grown)
                wider = self.pools[index + 1]
                rows = max(1, _MOVED // (pool.limit * self.shape.bytes_per_token))
                for old, new in zip(torch.split(source, rows), torch.split(target, rows), strict=True):
                    wider.kv[:, :, new, :, : pool.limit] = pool.kv[:, :, old, :, : pool.limit]
                self._compact(pool)
            index += 1

    def _compact(self, pool: Pool) -> None:
        for source, target in pool.compact(self.length):
            seat = pool.seats[source]
            pool.seats[target] = seat
            self._slot[seat] = target

    def advance(self, batch: DecodeBatch) -> None:
        """Count one token more in each row of ``batch``, whose step is done."""
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
        spare = [0 if self._rounded is None else min(pool.rows, self._rounded(pool.n)) - pool.n for pool in live]
        lengths = np.concatenate(
            [np.pad(self.length[pool.seats[: pool.n]], (0, more)) for pool, more in zip(live, spare, strict=True)]
        )
        n, kinds = len(lengths), 2 * self.shape.kv_heads
        counters, spans, start = np.empty(n * (2 + kinds), dtype=np.int64), [], 0
        counters[:n] = lengths
        for pool, more in zip(live, spare, strict=True):
            rows = slice(start, start + pool.n + more)
            slots = np.arange(pool.n + more)
            counters[n : 2 * n][rows] = slots * pool.limit + lengths[rows]
            block = (np.arange(2)[:, None] * pool.rows * self.shape.kv_heads + np.arange(self.shape.kv_heads)).ravel()
            write = (slots[:, None] * self.shape.kv_heads + block) * pool.limit + lengths[rows, None]
            counters[2 * n :].reshape(n, kinds)[rows] = write
            spans.append(rows)
            start = rows.stop
        moving = self._placed(counters)
        positions, mask, write_at = moving[:n], moving[n : 2 * n], moving[2 * n :].view(n, kinds)
        segments = [
            PoolSegment(
                pool, rows.start, rows.stop - rows.start, int(lengths[rows].max()) + 1, write_at[rows], mask[rows]
            )
            for pool, rows in zip(live, spans, strict=True)
        ]
        return DecodeBatch(seats, segments, moving, positions, self._living(live, spans) if any(spare) else None)

    def _living(self, live: list[Pool], spans: list[slice]) -> Tensor:
        """[live rows] where they stand among rows that compute along."""
        where = [np.arange(rows.start, rows.start + pool.n) for pool, rows in zip(live, spans, strict=True)]
        return send(np.concatenate(where), self.shape.device)

    def _placed(self, counters: IntArray) -> Tensor:
        """Return the counters on the device; those of rounded steps always at one address."""
        moving = send(counters, self.shape.device)
        if self._rounded is None:
            return moving
        if len(counters) > len(self._counters):
            rows = most_rows(len(self.length))
            self._counters = torch.empty(
                rows * (2 + 2 * self.shape.kv_heads), dtype=torch.int64, device=self.shape.device
            )
        placed = self._counters[: len(counters)]
        return placed.copy_(moving)
