"""Rows of a tensor taken several times, with a gradient that adds up in float32 and always in one order.

A prompt stands once in a packed row and is looked at by all its responses: as keys and values where a kernel wants each
sequence whole, and as the hidden state from which every response's first token is predicted. torch's own gradient of
``index_select`` adds the copies' gradients one by one in the tensor's type (in bfloat16 that loses more than it keeps
of the sixteenth) and, on CUDA, in whatever order the threads arrive.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dapo.types.batch import IntArray

_FULL = (torch.float32, torch.float64)


class Copies:
    """An index into the rows of tensors, in which rows may come several times.

    Args:
        index: [copies] rows to take.
        device: of the tensors.

    Attributes:
        rows: as given, for the processor.
    """

    def __init__(self, index: IntArray, device: torch.device) -> None:
        self.rows = np.asarray(index, dtype=np.int64)
        self.index = torch.from_numpy(self.rows).to(device)  # [copies]

    @cached_property
    def _by_count(self) -> list[tuple[Tensor, Tensor, int]]:
        """For each number c of copies: the rows that come c times [n], and where those copies are [n x c]."""
        order = np.argsort(self.rows, kind="stable")
        rows, starts, counts = np.unique(self.rows[order], return_index=True, return_counts=True)
        found = []
        for count in np.unique(counts):
            chosen = counts == count
            places = order[starts[chosen][:, None] + np.arange(count)].ravel()
            found.append((self._send(rows[chosen]), self._send(places), int(count)))
        return found

    def _send(self, array: IntArray) -> Tensor:
        return torch.from_numpy(array).to(self.index.device)

    def take(self, x: Tensor) -> Tensor:
        """``x`` [rows, ...] -> [copies, ...]."""
        if x.device.type == "cpu" and x.dtype in _FULL:  # its sum is in order, and as precise as the tensor
            return x.index_select(0, self.index)
        taken: Tensor = _Take.apply(x, self)  # type: ignore[no-untyped-call]
        return taken

    def add_up(self, gradient: Tensor, rows: int) -> Tensor:
        """Sum over each row's copies, [copies, ...] -> [rows, ...], in float32 or more, rounded once."""
        total = gradient.new_zeros((rows, *gradient.shape[1:]))
        precise = torch.promote_types(gradient.dtype, torch.float32)
        for targets, places, count in self._by_count:
            parts = gradient.index_select(0, places)
            if count > 1:
                parts = parts.view(-1, count, *gradient.shape[1:]).sum(1, dtype=precise).to(gradient.dtype)
            total.index_copy_(0, targets, parts)
        return total


class _Take(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, copies: Copies) -> Tensor:
        ctx.copies, ctx.rows = copies, len(x)
        return x.index_select(0, copies.index)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return ctx.copies.add_up(gradient, ctx.rows), None
