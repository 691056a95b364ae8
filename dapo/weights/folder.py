"""Route ``folder``: every process of the learner writes its slices as files, and engines read all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dapo.errors import EngineError
from dapo.models.weights import read_weights, write_part
from dapo.types.batch import Route, Ticket
from dapo.weights.route import Readers, Senders, Source, WeightRoute
from dapo.weights.sets import WeightSets


class Folder(WeightRoute):
    """Weights in a folder that learner and engines see under the same path."""

    name: ClassVar[Route] = "folder"
    files: ClassVar[bool] = True

    def send(self, workers: Senders, names: tuple[str, ...], version: int, readers: Readers = ()) -> Ticket:
        assert self.sets is not None
        folder = self.sets.new(version)
        try:
            workers.ask("send", self.name, folder)
        except EngineError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return Ticket(version, self.name, str(folder), names)

    @staticmethod
    def part(source: Source, *args: Any) -> None:
        """Write this process's slices into the folder of the set; no process waits for another."""
        (folder,) = args
        if source.rank < source.shards:  # the first of several copies of the model
            dtype = source.dtype if source.sharded else None
            write_part(folder, source.rank, source.shards, source.tensors(), dtype)

    @staticmethod
    def receive(ticket: Ticket, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        return read_weights(Path(ticket.address))

    @staticmethod
    def delete(ticket: Ticket) -> None:
        shutil.rmtree(ticket.address, ignore_errors=True)


class PassingRoute(WeightRoute):
    """A route whose tickets lead somewhere only just after the publish. Engines that come later get a folder."""

    passing: ClassVar[bool] = True

    def __init__(self, sets: WeightSets | None, host: str, seconds: float) -> None:
        super().__init__(sets, host, seconds)
        self._lasting = Folder(sets, host, seconds)

    @property
    def lasting(self) -> WeightRoute:
        return self._lasting
