"""Route ``folder``: every process of the learner writes its slices as files, and engines read all of them."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from dapo.errors import EngineError
from dapo.models.weight_files import read_weights, write_part
from dapo.types.batch import Route, Ticket
from dapo.weights.route import PublishSize, Readers, Senders, Source, WeightRoute
from dapo.weights.sets import WeightSets
from dapo.words import counted

MEMORY = (1.7e9, 3.3e9)
"""Bytes per second written to /dev/shm and read from it, measured with 256 MiB in 64 tensors on two busy cores."""
DISK = (1.5e9, 1.5e9)
"""The same of a file system that several machines share: assumed."""


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

    @staticmethod
    def seconds(load: PublishSize) -> float:
        """Return the seconds through a shared file system, or on one machine through its memory."""
        return _by_disk(load) if load.machines else _by_memory(load)

    @staticmethod
    def prices(load: PublishSize) -> Iterator[str]:
        yield (
            f"through /dev/shm of one machine ({MEMORY[0] / 1e9:g} GB/s in, {MEMORY[1] / 1e9:g} out): "
            f"{_by_memory(load):,.1f} s"
        )
        if load.machines:
            yield (
                f"through a file system that machines share ({DISK[0] / 1e9:g} GB/s in all): {_by_disk(load):,.1f} s, "
                f"since {counted(load.readers, 'machine')} read it over the same network"
            )


def _by_memory(load: PublishSize) -> float:
    return load.size / MEMORY[0] + load.size / MEMORY[1]


def _by_disk(load: PublishSize) -> float:
    return load.size / DISK[0] + load.size * load.readers / DISK[1]


class PassingRoute(WeightRoute):
    """A route whose tickets lead somewhere only just after the publish. Engines that come later get a folder."""

    passing: ClassVar[bool] = True

    def __init__(self, sets: WeightSets | None, host: str, seconds: float) -> None:
        super().__init__(sets, host, seconds)
        self._lasting = Folder(sets, host, seconds)

    @property
    def lasting(self) -> WeightRoute:
        return self._lasting
