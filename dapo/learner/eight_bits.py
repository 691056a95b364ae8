"""AdamW with both moments in 8 bits (arXiv 2110.02861), by torchao (extra ``eight_bits``).

A moment is cut into blocks. Each block has a float32 scale, and each number is one of 256 shares of it. A block lies
within one row of its tensor, so a rank's slice holds whole blocks: ranks compute what one process computes, and any
number of ranks reads a checkpoint. A small tensor, or one whose rows are no multiple of 64, stays in float32.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo.models.slices import own_part

if TYPE_CHECKING:  # the schema needs pydantic, and who brings settings of its own does not
    from dapo.config import schema

_BLOCKS = (256, 128, 64)
_SMALLEST = 4096  # numbers of a tensor that is worth it, as in bitsandbytes and torchao
_SIGNED = {"exp_avg": True, "exp_avg_sq": False}
_CODES, _SCALE = ".codes", ".scale"


def block_size(shape: Sequence[int]) -> int | None:
    """Return how many numbers of a moment of this shape share a scale; None: the moment stays in float32."""
    row = math.prod(shape[1:])
    if len(shape) < 2 or math.prod(shape) < _SMALLEST:
        return None
    return next((size for size in _BLOCKS if row % size == 0), None)


def moment_bytes(shape: Sequence[int]) -> int:
    """Return the bytes of one moment of this shape."""
    numbers, block = math.prod(shape), block_size(shape)
    return 4 * numbers if block is None else numbers + 4 * numbers // block


def make_adamw(parameters: Sequence[Tensor], settings: schema.LearnerSection) -> torch.optim.Optimizer:
    """Return torchao's optimizer over ``parameters``, for ``step``."""
    from torchao.optim import AdamW8bit

    made: torch.optim.Optimizer = AdamW8bit(
        list(parameters),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
    )
    return made


def step(adamw: torch.optim.Optimizer, learning_rate: float) -> None:
    """Update the parameters that have a gradient.

    torchao compiles its update. On a CPU it runs as it is: compiling needs a C++ compiler and takes longer than a
    small model's steps.
    """
    group = adamw.param_groups[0]
    group["lr"].fill_(learning_rate)
    for parameter in group["params"]:
        if parameter.grad is not None and not adamw.state[parameter]:
            adamw.state[parameter] = joined(parameter, {key: part.zero_() for key, part in unfilled(parameter).items()})
    here = group["params"][0].device.type == "cpu"
    with torch.compiler.set_stance("force_eager" if here else "default"):
        adamw.step()


def unfilled(parameter: Tensor) -> dict[str, Tensor]:
    """Return unfilled tensors of the names, shapes, types and slices that ``parts`` gives for this parameter."""
    found: dict[str, Tensor] = {"step": torch.empty(())}
    block = block_size(parameter.shape)
    for key in _SIGNED:
        if block is None:
            found[key] = torch.empty_like(parameter, dtype=torch.float32)
        else:
            rows = own_part(parameter).shape[0]
            scales = torch.empty(rows, math.prod(parameter.shape[1:]) // block, device=parameter.device)
            found[key + _CODES] = torch.empty_like(parameter, dtype=torch.uint8)
            found[key + _SCALE] = _cut_as(parameter, scales)
    return found


def parts(parameter: Tensor, state: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return a parameter's state as plain tensors, cut over ranks as the parameter is."""
    found: dict[str, Tensor] = {}
    for key, value in state.items():
        local: Any = own_part(value)
        if key not in _SIGNED or block_size(parameter.shape) is None:
            found[key] = value
        elif local.numel():
            found[key + _CODES] = _cut_as(parameter, local.codes)
            found[key + _SCALE] = _cut_as(parameter, local.scale.view(local.shape[0], -1))
        else:  # this rank has no rows of it
            found |= {name: part for name, part in unfilled(parameter).items() if name.startswith(f"{key}.")}
    return found


def joined(parameter: Tensor, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the optimizer's state of a parameter from what ``parts`` gave. The tensors are the optimizer's then."""
    from torchao.optim.subclass_8bit import OptimState8bit

    state = {key: value for key, value in found.items() if not key.endswith((_CODES, _SCALE))}
    for key in _SIGNED if block_size(parameter.shape) is not None else ():
        codes, scale = own_part(found[key + _CODES]), own_part(found[key + _SCALE]).flatten()
        moment = torch.zeros_like(codes, dtype=torch.float32)
        if codes.numel():
            moment = OptimState8bit.zeros(codes.shape, _SIGNED[key], codes.numel() // scale.numel(), codes.device)
            moment = OptimState8bit(codes, scale, moment.qmap, _SIGNED[key], dtype=torch.float32)
        state[key] = _cut_as(parameter, moment)
    return state


def _cut_as(parameter: Tensor, local: Tensor) -> Tensor:
    """Return this rank's ``local`` as a slice along the first dimension, where ``parameter`` is one."""
    if not isinstance(parameter, DTensor):
        return local
    shape = torch.Size([parameter.shape[0], *local.shape[1:]])
    stride = tuple(math.prod(shape[place + 1 :]) for place in range(len(shape)))
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=shape, stride=stride)
