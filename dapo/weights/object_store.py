"""Route ``object_store``: files as by ``folder``, which a cluster's object store carries from machine to machine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar

from dapo.processes.transport import Shipment
from dapo.types.batch import Route, Ticket
from dapo.weights.folder import Folder
from dapo.weights.route import PublishSize, Readers, Senders, WeightRoute

STORE = (2e9, 1.5e9)
"""Bytes per second put into Ray's object store, and fetched by a machine: assumed."""


class ObjectStore(Folder):
    """Files between machines that share no disk.

    The transport takes the files away and lays them out before an engine's call, so ``dapo.processes.shared_folders``
    deletes them on every machine.
    """

    name: ClassVar[Route] = "object_store"

    def send(self, workers: Senders, names: tuple[str, ...], version: int, readers: Readers = ()) -> Ticket:
        ticket = super().send(workers, names, version)
        return replace(ticket, cargo=Shipment(ticket.address, workers.collect(ticket.address)))

    @staticmethod
    def delete(ticket: Ticket) -> None:
        WeightRoute.delete(ticket)

    @staticmethod
    def seconds(load: PublishSize) -> float:
        return load.size / load.shards / STORE[0] + load.size / STORE[1]

    @staticmethod
    def prices(load: PublishSize) -> Iterator[str]:
        yield (
            f"by Ray's object store ({STORE[0] / 1e9:g} GB/s into it from each rank's machine, {STORE[1] / 1e9:g} out "
            f"on each engine's): {ObjectStore.seconds(load):,.1f} s, all machines at once"
        )
