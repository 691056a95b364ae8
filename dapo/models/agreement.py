"""Do two ways to compute the same log-probabilities agree, as far as their type lets them?

float32 and float64 have fixed tolerances. So have low-precision models at first; where one is exceeded, the model's own
rounding is measured: against the same weights computed in float32, the candidate may be off twice as far as the model's
own low-precision forward pass is. (Keys with large offsets, as Qwen2's biases make them, round by 0.03 to 0.09 nats in
bfloat16; a wrong mask is off by 0.1 to 5.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from dapo.models.head import LOW
from dapo.models.loaded import LoadedModel

FLOAT64 = (1e-6, 1e-5)
LOW_PRECISION = (0.05, 0.5)
"""Accepted |difference| in nats: (mean, maximum). bfloat16 keeps 8 bits."""

_AS_FAR = 2.0  # times the model's own rounding
_MOST = 0.2  # nats in the mean: a model that rounds more than this says nothing about the candidate


def disagreement(
    loaded: LoadedModel,
    found: Tensor,
    expected: Tensor,
    float32: tuple[float, float],
    precise: Callable[[], Tensor | None],
) -> tuple[float, float] | None:
    """None where ``found`` is as good as ``expected``; else their |difference| in nats, (mean, maximum).

    Args:
        loaded: the model.
        found: log-probabilities of the candidate, any shape.
        expected: the model's own, as loaded.
        float32: accepted in a float32 model.
        precise: the same from :func:`float32_outputs`; asked only where it is needed.
    """
    accepted = {torch.float64: FLOAT64, torch.float32: float32}.get(loaded.dtype, LOW_PRECISION)
    off = _distance(found, expected)
    if off[0] <= accepted[0] and off[1] <= accepted[1]:
        return None
    if loaded.dtype in LOW and off[0] <= _AS_FAR * _MOST and (exact := precise()) is not None:
        ours, own = _distance(found, exact), _distance(expected, exact)
        if own[0] <= _MOST and all(mine <= _AS_FAR * its for mine, its in zip(ours, own, strict=True)):
            return None
    return off


def _distance(a: Tensor, b: Tensor) -> tuple[float, float]:
    off = (a.double() - b.double()).abs().nan_to_num(torch.inf)
    return float(off.mean()), float(off.max())


@torch.no_grad()
def float32_outputs(loaded: LoadedModel, **inputs: Any) -> Any:
    """The model's outputs with its weights widened to float32 for this one call; None where that cannot be done.

    It takes 4 bytes a parameter for as long as the call lasts.
    """
    tensors = {**dict(loaded.model.named_parameters()), **dict(loaded.model.named_buffers())}
    try:
        wide = {name: tensor.float() if tensor.dtype in LOW else tensor for name, tensor in tensors.items()}
        return torch.func.functional_call(loaded.model, wide, kwargs=inputs)
    except (RuntimeError, TypeError, ValueError, AttributeError, MemoryError):  # a model's own code, or no memory
        return None
