"""Route ``ipc``, by CUDA IPC: a process lends the memory of its device to others that compute on the same one.

The handles are those of ``torch.multiprocessing.reductions``. They hold no memory: the lender keeps the tensors until
the borrowers have taken them.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.multiprocessing import reductions

from dapo.errors import EngineError, LearnerError
from dapo.types.batch import Route, Ticket
from dapo.weights.broadcast import whole
from dapo.weights.folder import PassingRoute
from dapo.weights.route import Readers, Senders, Source

_torch: Any = reductions  # without types
_DEVICE = 6
"""Index of the device's number, as the lender counts, among the arguments of ``rebuild_cuda_tensor``."""


class Ipc(PassingRoute):
    """Weights in memory of the device that learner and engine share. An engine that comes later gets a folder."""

    name: ClassVar[Route] = "ipc"

    def send(self, workers: Senders, names: tuple[str, ...], version: int, readers: Readers = ()) -> Ticket:
        handles = dict(workers.ask("send", self.name))
        return Ticket(version, self.name, ", ".join(handles), names, pickle.dumps(handles))

    @staticmethod
    def part(source: Source, *args: Any) -> tuple[str, list[tuple[str, Any]]]:
        """Return the device, and handles of the whole weights in its memory, which stay so until the next step."""
        device, handles, source.lent = lend(source.tensors(), source.dtype)
        return device, handles

    @staticmethod
    def receive(ticket: Ticket, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        return borrowed(ticket, device)


@torch.no_grad()
def lend(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> tuple[str, list[tuple[str, Any]], list[Tensor]]:
    """Return the device, a handle of each tensor by its name, and what has to be kept meanwhile.

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
    """Return the tensors of a ticket where they are on ``device``; they have to be copied before the next step.

    Raises:
        EngineError: no process lends memory of this device.
    """
    lent: dict[str, list[tuple[str, Any]]] = pickle.loads(ticket.cargo)
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
