"""New weights in an engine of this process: the learner's own tensors, or copied into tensors of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from dapo.errors import EngineError
from dapo.models.checksum import checksum, dtype_name, once_each
from dapo.types.batch import TensorSum, Ticket
from dapo.weights.routes import receive
from dapo.weights.shared import offered


def take_weights(model: Any, ticket: Ticket, shares: bool) -> None:
    """Load the weights of ``ticket`` into ``model``. With ``shares`` the model is the learner's own, and nothing is
    left to do.

    Raises:
        EngineError: the ticket leads to another model than the shared one, or its tensors do not fit.
    """
    if not shares:
        copy_weights(model, receive(ticket, next(model.parameters()).device))
    elif ticket.route != "shared" or offered(ticket) is not model:
        raise EngineError(
            f"the ticket of version {ticket.version} leads to {ticket.route} {ticket.address!r}, and this engine "
            "computes with the learner's own tensors, which are not there: make it with shares_weights=False, or "
            "publish from the learner whose model it was given"
        )


@torch.no_grad()
def copy_weights(model: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy named tensors into ``model``, in place.

    Raises:
        EngineError: A name or shape that the model does not have, or a parameter for which nothing came. (A tied
            tensor needs to come under one of its names only.)
    """
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    came: set[int] = set()
    for name, tensor in tensors:
        target = own.get(name)
        if target is None or target.shape != tensor.shape:
            have = "no tensor of that name" if target is None else f"shape {tuple(target.shape)}"
            raise EngineError(
                f"published tensor {name!r} has shape {tuple(tensor.shape)}; the engine's model has {have}: learner "
                "and engine must be loaded from the same checkpoint"
            )
        target.copy_(tensor)
        came.add(id(target))
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in came]
    if missing:
        raise EngineError(
            f"{len(missing)} of the engine's weights were not published ({', '.join(missing[:3])}...); they would stay "
            "old: a ticket must name every parameter"
        )


def tensor_sums(model: Any) -> Mapping[str, TensorSum]:
    """Checksums of all parameters and persistent buffers, under every name that they have."""
    tensors: Mapping[str, Tensor] = model.state_dict(keep_vars=True)

    def sum_of(name: str) -> TensorSum:
        return TensorSum(dtype_name(tensors[name].dtype), checksum(tensors[name]))

    return once_each(tensors, lambda name: id(tensors[name]), sum_of)
