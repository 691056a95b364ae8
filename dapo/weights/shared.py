"""Route ``shared``: an engine of the learner's own process finds its very tensors."""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Iterator
from typing import Any, ClassVar

import torch
from torch import Tensor

from dapo.errors import EngineError
from dapo.models.adapter import adapter_parts, is_adapter, published
from dapo.types.batch import Route, Ticket
from dapo.weights.route import Readers, Senders, Source, WeightRoute

_offered: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


class Shared(WeightRoute):
    """The tensors of the learner's model, in its process."""

    name: ClassVar[Route] = "shared"

    def send(self, workers: Senders, names: tuple[str, ...], version: int, readers: Readers = ()) -> Ticket:
        (address,) = workers.ask("send", self.name)
        return Ticket(version, self.name, address, names)

    @staticmethod
    def part(source: Source, *args: Any) -> str:
        return offer(source.model)

    @staticmethod
    def receive(ticket: Ticket, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        model = offered(ticket)
        tensors = adapter_parts(model) if is_adapter(ticket.names) else published(model)
        if set(tensors) != set(ticket.names):
            other = sorted(set(tensors) ^ set(ticket.names))
            raise EngineError(
                f"the ticket of version {ticket.version} and the tensors at {ticket.address!r} differ in {len(other)} "
                f"names ({', '.join(other[:3])}): publish again"
            )
        return iter(tensors.items())


def offer(model: Any) -> str:
    """Return an address under which engines of this process find ``model``, while its owner holds it."""
    for address, known in _offered.items():
        if known is model:
            return address
    address = f"{os.getpid()}-{next(_numbers)}"
    _offered[address] = model
    return address


def offered(ticket: Ticket) -> Any:
    """Return the model of a ticket whose route is ``shared``.

    Raises:
        EngineError: it is gone, or was never in this process.
    """
    model = _offered.get(ticket.address)
    if model is None:
        raise EngineError(
            f"no model is offered at {ticket.address!r} in this process ({os.getpid()}): its learner is gone, or lives "
            "in another process and has to publish through a folder"
        )
    return model
