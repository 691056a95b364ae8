"""Context parallelism: several ranks share each packed row (Ulysses, arXiv 2309.14509).

Neighbouring ranks form a *unit*. Each of them holds a *stretch*: consecutive tokens of the row. Every layer computes on
the stretch alone, but for attention, which has to see the whole row. There the ranks exchange tokens for heads: each
gets all tokens of its share of the heads, runs the unchanged attention of packed rows, and exchanges back.
"""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from dapo.models.attention import AttentionContext
from dapo.models.copies import Copies
from dapo.models.packing import PackedBatch
from dapo.words import divisors


@dataclass(frozen=True, slots=True)
class Unit:
    """Ranks that share each row, as one of them sees the others."""

    group: dist.ProcessGroup
    size: int
    place: int  # of this rank among them


def join_unit(size: int, timeout: float) -> Unit | None:
    """Return the unit of ``size`` neighbouring ranks to which this one belongs; None if each rank has its own rows.

    All ranks of the process group call it at the same time. ``timeout``: seconds that one may be waited for.
    """
    if size == 1:
        return None
    patience = datetime.timedelta(seconds=timeout)
    group, _ = dist.new_subgroups(size, timeout=patience)  # type: ignore[no-untyped-call]
    return Unit(group, size, dist.get_rank() % size)


def stretch_of(tokens: int, unit: Unit | None) -> slice:
    """Return which of the tokens of a row are this rank's; the last stretches may reach beyond the row."""
    if unit is None:
        return slice(0, tokens)
    length = -(-tokens // unit.size)
    return slice(unit.place * length, (unit.place + 1) * length)


class Stretch:
    """One rank's part of a packed row.

    Args:
        batch: the whole row, the same on all ranks of the unit.
        unit: of this rank.

    Attributes:
        batch: ids and positions of the stretch, with an attention over the whole row.
        sources: the predictors of response tokens that lie here, counted from the stretch's first token.
        targets: the response tokens that they predict.
    """

    def __init__(self, batch: PackedBatch, unit: Unit) -> None:
        assert batch.context is not None  # padded rows are refused when the model is loaded
        self._unit, device = unit, batch.input_ids.device
        tokens = batch.input_ids.shape[1]
        own = stretch_of(tokens, unit)
        first, length = own.start, own.stop - own.start
        predictors = batch.sources.rows
        self._places = [
            torch.from_numpy(np.flatnonzero(predictors // length == place)).to(device) for place in range(unit.size)
        ]
        self.context = ExchangingContext(batch.context, tokens, unit)
        ids, positions = (
            nn.functional.pad(whole, (0, unit.size * length - tokens))[:, first : first + length]
            for whole in (batch.input_ids, batch.position_ids)
        )
        self.batch = replace(batch, input_ids=ids, position_ids=positions, context=self.context)
        self.sources = Copies(predictors[predictors // length == unit.place] - first, device)
        self.targets = batch.targets[self._places[unit.place]]

    def gather(self, own: Tensor) -> Tensor:
        """Return the values of all response tokens [N] from those of ``targets``; gradients go to their ranks."""
        whole: Tensor = _Gather.apply(own, self._places, self._unit)  # type: ignore[no-untyped-call]
        return whole


class ExchangingContext:
    """The attention of a whole row, called with a stretch of it.

    Args:
        whole: attends over the row.
        tokens: of the row; the stretches of all ranks together may be longer, by padding that nothing sees.
        unit: of this rank.
    """

    def __init__(self, whole: AttentionContext, tokens: int, unit: Unit) -> None:
        self._whole, self._tokens, self._unit = whole, tokens, unit
        self._calls = 0

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, **options: Any
    ) -> Tensor:
        """query [1, heads, t, d], key and value [1, kv heads, t, d] of a stretch -> output [1, t, heads, d].

        Raises:
            NotImplementedError: the heads cannot be shared by so many ranks, or have unequal sizes.
        """
        self._calls += 1
        ranks, tokens = self._unit.size, self._tokens
        q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query, key, value))  # [t, heads, d]
        length, heads, size = q.shape
        if heads % ranks:
            raise NotImplementedError(
                f"{ranks} ranks cannot share {heads} attention heads: learner.context_parallel can be {divisors(heads)}"
            )
        if v.shape[-1] != size:
            raise NotImplementedError(
                f"queries have {size} numbers a head and values {v.shape[-1]}, which cannot be exchanged together: "
                "learner.context_parallel can be 1"
            )
        if k.shape[1] % ranks:  # repeated as far as each rank's queries find theirs beside them
            times = ranks // k.shape[1] if ranks % k.shape[1] == 0 else heads // k.shape[1]
            k, v = (x.repeat_interleave(times, dim=1) for x in (k, v))
        shares = [part.shape[1] // ranks for part in (q, k, v)]
        parts = [part.reshape(length, ranks, -1, size).transpose(0, 1) for part in (q, k, v)]
        row = exchange(torch.cat(parts, dim=2), self._unit).reshape(ranks * length, -1, size)[:tokens]
        q, k, v = (part.transpose(0, 1).unsqueeze(0) for part in torch.split(row, shares, dim=1))
        output = self._whole.attend(module, q, k, v, scaling=scaling, **options).squeeze(0)  # [tokens, own heads, d]
        output = nn.functional.pad(output, (0, 0, 0, 0, 0, ranks * length - tokens))
        own = exchange(output.reshape(ranks, length, -1, size), self._unit)  # [ranks, t, heads of each, d]
        return own.transpose(0, 1).reshape(1, length, heads, size)

    def check_calls(self, layers: int) -> None:
        """Refuse a model in which a layer mixes tokens elsewhere, which would see a stretch and not the row.

        Raises:
            NotImplementedError: not every layer has called ``attend`` once.
        """
        if self._calls != layers:
            raise NotImplementedError(
                f"{layers} layers called attention {self._calls} times: what mixes tokens elsewhere would see a "
                "stretch of the row only: learner.context_parallel can be 1"
            )


def exchange(parts: Tensor, unit: Unit) -> Tensor:
    """Send part r of ``parts`` [ranks, ...] to rank r; return what all ranks sent here, in their order."""
    got: Tensor = _Exchange.apply(parts, unit)  # type: ignore[no-untyped-call]
    return got


def _swap(parts: Tensor, unit: Unit) -> Tensor:
    """Exchange without a gradient. The parts are laid out in order first: a gradient may come with other strides."""
    parts, sizes = parts.contiguous(), [1] * unit.size
    sent = torch.ops._c10d_functional.all_to_all_single(parts, sizes, sizes, unit.group.group_name)
    got: Tensor = torch.ops._c10d_functional.wait_tensor(sent)
    return got


class _Exchange(torch.autograd.Function):
    """Its gradient goes the same way back, which is the same exchange."""

    @staticmethod
    def forward(ctx: Any, parts: Tensor, unit: Unit) -> Tensor:
        ctx.unit = unit
        return _swap(parts, unit)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _swap(gradient, ctx.unit), None


class _Gather(torch.autograd.Function):
    """Every rank computes the same loss of all values, so each takes the gradient of its own and none is summed."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, places: Sequence[Tensor], unit: Unit) -> Tensor:
        ctx.own = places[unit.place]
        padded = own.new_zeros(max(map(len, places)))
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in places]
        dist.all_gather(parts, padded, group=unit.group)
        whole = own.new_empty(sum(map(len, places)))
        for part, place in zip(parts, places, strict=True):
            whole[place] = part[: len(place)]
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient[ctx.own], None, None
