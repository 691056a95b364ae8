"""Route ``object_store``: files as by ``folder``, which a cluster's object store carries from machine to machine."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from dapo.processes.transport import Shipment
from dapo.types.batch import Route, Ticket
from dapo.weights.folder import Folder
from dapo.weights.route import Readers, Senders, WeightRoute


class ObjectStore(Folder):
    """Files between machines that share no disk.

    The transport takes the files away and lays them out before an engine's call, so ``dapo.processes.carried`` deletes
    them on every machine.
    """

    name: ClassVar[Route] = "object_store"

    def send(self, workers: Senders, names: tuple[str, ...], version: int, readers: Readers = ()) -> Ticket:
        ticket = super().send(workers, names, version)
        return replace(ticket, cargo=Shipment(ticket.address, workers.collect(ticket.address)))

    @staticmethod
    def delete(ticket: Ticket) -> None:
        WeightRoute.delete(ticket)
