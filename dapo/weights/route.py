"""Interface of the weight routes: the classes in ``dapo.weights.routes.ROUTES`` implement it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, TypeVar

import torch
from torch import Tensor

from dapo.types.batch import Route, Ticket
from dapo.types.protocols import Handle
from dapo.weights.sets import WeightSets

T = TypeVar("T")
Readers = Sequence[tuple[int, int]]
"""Number and incarnation of each engine that will load the next ticket at once."""


class Senders(Protocol):
    """The processes of one learner, as a route asks them (``dapo.learner.hosts.Workers``)."""

    ranks: int

    def ask(self, method: str, *args: Any) -> list[Any]:
        """Ask all of them the same and wait."""

    def each(self, method: str, args: Sequence[tuple[Any, ...]], combine: Callable[[Sequence[Any]], T]) -> Handle[T]:
        """Ask each its own question and do not wait."""

    def collect(self, folder: str) -> tuple[Any, ...]:
        """Take files that they wrote away from their machines; return the parts of a ``Shipment``."""


@dataclass(slots=True)
class Source:
    """The weights of one process of a learner, from which a route sends.

    Example: ``Source(model, lambda: published(model), rank=0, shards=1, dtype=torch.bfloat16, sharded=False)``.
    """

    model: Any
    tensors: Callable[[], Mapping[str, Tensor]]  # what is published, by name
    rank: int
    shards: int  # ranks that hold one copy of the model together
    dtype: torch.dtype  # in which engines compute
    sharded: bool  # slices are wider than what is published; a whole model is published as it is
    lent: list[Tensor] = field(default_factory=list)  # memory that engines may read until the weights move


class WeightRoute(ABC):
    """A way of weights from the processes of a learner to engines.

    The driver holds the object. A learner's process and an engine find the class by the name in ``ROUTES``.

    Args:
        sets: the folder for routes that write files; None: nothing leaves this process.
        host: the address at which the run's processes reach this one.
        seconds: how long the two ends wait for each other.
    """

    name: ClassVar[Route]
    passing: ClassVar[bool] = False
    """A ticket leads somewhere only just after the publish, for the engines that were there."""
    files: ClassVar[bool] = False
    """The address of a ticket is a folder of safetensors files on the engine's machine."""

    def __init__(self, sets: WeightSets | None, host: str, seconds: float) -> None:
        self.sets = sets

    @property
    def lasting(self) -> WeightRoute:
        """Return the route by which an engine gets the weights that was not there when they were published."""
        return self

    @abstractmethod
    def send(self, workers: Senders, names: tuple[str, ...], version: int, readers: Readers = ()) -> Ticket:
        """Send the present weights, in the driver.

        Raises:
            EngineError: they cannot be written or carried.
        """

    @staticmethod
    @abstractmethod
    def part(source: Source, *args: Any) -> Any:
        """Do one process's part of ``send``, in a process of the learner; all of them do it together."""

    @staticmethod
    @abstractmethod
    def receive(ticket: Ticket, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Return the tensors of a ticket by name, in an engine. The engine has to take all of them.

        Args:
            ticket: of this route.
            device: on which the engine computes: what comes by a group or by device memory is there already.

        Raises:
            EngineError: the ticket leads nowhere, or to other tensors than it names.
            FileNotFoundError: no such folder.
        """

    @staticmethod
    def delete(ticket: Ticket) -> None:
        """Delete what a ticket left on the disk, if anything; no engine reads it any more."""
        return

    def settle(self) -> bool:
        """Wait until the last ``send`` is over; return whether it reached all readers."""
        return True

    def call_off(self) -> None:
        """Stop waiting for an engine that was to receive and is gone."""
        return

    def look(self) -> None:
        """Tell waiting engines if the sender is gone. Called while engines receive."""
        return
