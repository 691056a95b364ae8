"""Weights by CUDA IPC: a process lends the memory of its device to others that compute on the same one.

The handles are torch's own (``torch.multiprocessing.reductions``). They hold no memory: the lender keeps the tensors
until the borrowers have taken them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from dapo.errors import EngineError, LearnerError
from dapo.models.broadcast import whole
from dapo.types.batch import Ticket

_torch: Any = reductions  # without types
_DEVICE = 6
"""Where the arguments of ``rebuild_cuda_tensor`` (torch) have the number of the device, as the lender counts."""


@torch.no_grad()
def lend(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[str, list[tuple[str, Any]], list[Tensor]]:
    """Return the device, a handle of each tensor by its name, and the tensors to keep meanwhile.

    Args:
        tensors: on one CUDA device; sharded ones are gathered one by one, which all ranks do together.
        dtype: of floating-point numbers as they are lent.

    Raises:
        LearnerError: they are not on a CUDA device.
    """
    kept: list[Tensor] = []
    handles: list[tuple[str, Any]] = []
    for name, tensor in tensors.items():
        if tensor.device.type != "cuda":
            raise LearnerError(
                f"rollout.weight_transfer: ipc lends memory of a CUDA device, and {name} is on {tensor.device}: use "
                "folder or broadcast, or model.device: cuda"
            )
        kept.append(whole(tensor, dtype))
        handles.append((name, _torch.reduce_tensor(kept[-1])[1]))
    return device_name(kept[0].device), handles, kept


def borrowed(ticket: Ticket, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a ticket where they lie on ``device``: copy them before anything is trained.

    Raises:
        EngineError: no process lends memory of this device.
    """
    lent: dict[str, list[tuple[str, Any]]] = pickle.loads(ticket.handles)
    name = device_name(device) if device.type == "cuda" else str(device)
    if name not in lent:
        raise EngineError(
            f"the weights of version {ticket.version} lie in memory of {', '.join(sorted(lent))}, and this engine "
            f"computes on {name}: rollout.weight_transfer: ipc needs a rank of the learner on each engine's device "
            "(cluster.colocate); use broadcast or folder"
        )
    number = torch.cuda.current_device() if device.index is None else device.index
    for tensor, arguments in lent[name]:
        yield tensor, _torch.rebuild_cuda_tensor(*arguments[:_DEVICE], number, *arguments[_DEVICE + 1 :])


def device_name(device: torch.device) -> str:
    """Return the name of a CUDA device, the same in every process that sees it."""
    return f"GPU {torch.cuda.get_device_properties(device).uuid}"
