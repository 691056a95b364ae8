"""The output head of a low-precision model: logits that are not rounded, and a weight gradient that is rounded once.

A vocabulary of 152,000 never fills memory for a whole micro-batch: the head runs chunk by chunk. Left to autograd,
each chunk's gradient is added to the last ones' in bfloat16. Here they add up in float32 in a *sink*, a tensor without
memory of its own through which the weight gets their sum.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from dapo.models.precision import float32_product

LOW = (torch.bfloat16, torch.float16)


def gradient_sink(weight: Tensor) -> Tensor | None:
    """Return where :func:`low_precision_logits` sends the gradient of ``weight``; None if no gradient is needed."""
    if not (weight.requires_grad and torch.is_grad_enabled() and weight.dtype in LOW):
        return None
    sink: Tensor = _Sink.apply(weight)  # type: ignore[no-untyped-call]
    return sink


def low_precision_logits(hidden: Tensor, head: nn.Linear, sink: Tensor | None, *, float32: bool) -> Tensor:
    """Logits [.., vocabulary] of bfloat16 or float16 ``hidden`` [.., width].

    Args:
        hidden: last hidden states.
        head: of the same type.
        sink: from ``gradient_sink(head.weight)``; several calls may share it.
        float32: leave the logits in float32. Their gradient is then rounded to the weights' type on CUDA, where it
            enters the two products of the backward pass.
    """
    flat = hidden.reshape(-1, hidden.shape[-1])
    logits: Tensor = _Linear.apply(flat, head.weight, sink, float32)  # type: ignore[no-untyped-call]
    if head.bias is not None:
        logits = logits + head.bias.to(logits.dtype)
    return logits.view(*hidden.shape[:-1], -1)


class _Sink(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weight: Tensor) -> Tensor:
        ctx.dtype = weight.dtype
        return weight.new_zeros((), dtype=torch.float32).expand(weight.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient.to(ctx.dtype)


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, sink: Tensor | None, float32: bool) -> Tensor:
        ctx.save_for_backward(hidden, weight)
        return float32_product(hidden, weight.t()) if float32 else hidden @ weight.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, None, Tensor | None, None]:
        hidden, weight = ctx.saved_tensors
        narrow = gradient.to(weight.dtype) if gradient.is_cuda else gradient
        of_hidden = of_weight = None
        if ctx.needs_input_grad[0]:
            of_hidden = (narrow @ weight.to(narrow.dtype)).to(hidden.dtype)
        if ctx.needs_input_grad[2]:
            of_weight = float32_product(narrow.t(), hidden)
        return of_hidden, None, of_weight, None
