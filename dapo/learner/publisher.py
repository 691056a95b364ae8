"""How weights leave the learner's workers, from the driver's side: by which route, and again for late engines."""

from __future__ import annotations

import pickle
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dapo.errors import DapoError
from dapo.learner.hosts import Workers
from dapo.models.broadcast import call_off, send_home
from dapo.types.batch import BroadcastGroup, Route, Shipment, Ticket
from dapo.types.protocols import Handle


@dataclass(slots=True)
class Receivers:
    """The engines that a learner publishes to, and how its weights reach them.

    Args:
        route: how weights travel to engines that are there.
        store: that sender and receivers of a broadcast meet in, which this process keeps; else None.
        address: at which other processes find it.
        seconds: that they wait for each other.
    """

    route: Route = "folder"
    store: Any = None
    address: str = ""
    seconds: float = 600.0
    present: Callable[[], Sequence[tuple[int, int]]] = field(default=tuple)
    """Engines that will load the next ticket: each one's number and incarnation. Set once there are engines."""
    deletes: bool = False
    """It deletes a set of weights in a folder itself, once no engine reads it: one that starts may take long. Set once
    there are engines."""


class Publisher:
    """Publishes for one learner.

    Args:
        workers: its processes, which know ``send`` and ``lend``.
        names: of what is published.
        in_folder: the present weights of a version, written by its processes to a folder of their own.
        receivers: the engines that load the weights, and the route to them.
    """

    def __init__(
        self,
        workers: Workers,
        names: Sequence[str],
        in_folder: Callable[[int], Ticket],
        receivers: Receivers,
    ) -> None:
        self._workers, self._names, self._receivers, self._in_folder = workers, tuple(names), receivers, in_folder
        self._version: int | None = None  # of the weights as they are; None: they have moved since the last publish
        self._sending: Handle[bool] | None = None
        self._group: BroadcastGroup | None = None
        self._members: tuple[tuple[int, int], ...] = ()
        self._publishes = 0

    def publish(self, version: int) -> Ticket:
        """Send the present weights on their way.

        Raises:
            EngineError: they cannot be written, or not be carried.
        """
        self._settle()
        self._version = version
        receivers, route = self._receivers, self._receivers.route
        members = tuple(receivers.present())
        if route == "broadcast" and members:
            self._workers.ask("give_back")  # the engines wake while the broadcast goes on
            self._publishes += 1
            group = self._group
            if group is None or members != self._members:
                name = f"dapo-weights-{secrets.token_hex(4)}"
                group = BroadcastGroup(receivers.address, name, 0, len(members), receivers.seconds)
            self._members = members
            self._group = replace(group, number=self._publishes)
            self._sending = self._workers.each("send", [(self._group,)] * self._workers.ranks, all)
            return Ticket(version, "broadcast", self._group.key, self._names, group=self._group)
        if route == "ipc" and members:
            handles = dict(self._workers.ask("lend"))
            return Ticket(version, "ipc", ", ".join(handles), self._names, handles=pickle.dumps(handles))
        return self._lasting(version)

    def again(self) -> Ticket | None:
        """Return the weights of the last publish, for an engine that was not there; None: they have moved since."""
        self._settle()
        return None if self._version is None else self._lasting(self._version)

    def moved(self) -> None:
        """Take note that a step begins."""
        self._settle()
        self._version = None

    def call_off(self) -> None:
        """Stop waiting for an engine that was to receive and is gone."""
        if self._sending is not None and self._group is not None:
            call_off(self._receivers.store, self._group)

    def look(self) -> None:
        """Stop waiting for a sender that is gone. Called while engines receive."""
        if self._sending is not None and self._group is not None and self._sending.done():
            try:
                self._sending.result()
            except DapoError:  # raised anew by whatever is asked next
                send_home(self._receivers.store, self._group)

    def _lasting(self, version: int) -> Ticket:
        ticket = self._in_folder(version)
        if self._receivers.route != "object_store":
            return ticket
        shipment = Shipment(ticket.address, self._workers.collect(ticket.address))
        return Ticket(version, "object_store", ticket.address, ticket.names, shipment=shipment)

    def _settle(self) -> None:
        """Wait for the last broadcast. For one that did not reach all engines, the pool has asked ``again``."""
        sending, self._sending = self._sending, None
        if sending is not None and not sending.result():
            self._group = None  # those that are left form a group of their own
