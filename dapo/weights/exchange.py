"""The exchange of a run's weights: its learner publishes through it, and its engines take and keep what it hands out.

It owns four decisions: by which route weights travel, for whom they are published again, whom a broadcast waits for,
and when a set on the disk is deleted.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from dapo.models.rendezvous import LOOPBACK
from dapo.types.batch import TensorSum, Ticket
from dapo.weights.route import Senders, WeightRoute
from dapo.weights.routes import ROUTES
from dapo.weights.shared import Shared

log = logging.getLogger(__name__)

_LOOK = 1.0  # seconds between two looks at the sender of a broadcast


class EngineReader(Protocol):
    """One engine of a pool, as the exchange sees it (``dapo.engines.member.Member``)."""

    index: int
    incarnation: int

    @property
    def takes_next(self) -> bool:
        """Return whether it loads the next ticket at once."""

    @property
    def reading(self) -> Ticket | None:
        """Return the ticket that it loads while it starts."""


class WeightExchange:
    """Made before a learner and its engines, and given to both.

    Args:
        route: how weights travel to engines that are there.

    Attributes:
        newest: what every engine of a pool shall have; None: nothing was published yet.
        sums: the checksums that the engines told of ``newest``; None: they were not asked, or cannot tell.
        readers: the engines of the pool; empty: there is no pool, and ``Engine.load`` returns when a set was read.
    """

    def __init__(self, route: WeightRoute | None = None) -> None:
        self.route = route or Shared(None, LOOPBACK, 0.0)
        self.newest: Ticket | None = None
        self.sums: Mapping[str, TensorSum] | None = None
        self.readers: Sequence[EngineReader] = ()
        self._kept: list[Ticket] = []  # sent or offered, and not deleted
        self._workers: Senders | None = None
        self._names: tuple[str, ...] = ()
        self._version: int | None = None  # of the weights as they are; None: they have moved since the last publish

    @property
    def folder(self) -> Path | None:
        """Return the folder of the sets of weights; None: nothing leaves this process."""
        return None if self.route.sets is None else self.route.sets.folder

    # ------------------------------------------------------------------ the learner's side

    def open(self, workers: Senders, names: Sequence[str]) -> None:
        """Take note of the learner's processes, in its constructor, and of the tensors that they publish."""
        self._workers, self._names = workers, tuple(names)

    def publish(self, version: int) -> Ticket:
        """Send the present weights on their way.

        Raises:
            EngineError: they cannot be written or carried.
        """
        self.route.settle()
        self._version = version
        present = tuple((reader.index, reader.incarnation) for reader in self.readers if reader.takes_next)
        return self._send(self.route if present or not self.route.passing else self.route.lasting, version, present)

    def moved(self) -> None:
        """Take note that a step begins."""
        self.route.settle()
        self._version = None

    def close(self) -> None:
        """Delete what is on the disk. May be called twice."""
        if self.route.sets is not None:
            self.route.sets.close()

    def _send(self, route: WeightRoute, version: int, present: Sequence[tuple[int, int]] = ()) -> Ticket:
        assert self._workers is not None  # LearnerDriver.__init__
        if not self.readers and self._kept:
            self._delete_but(self._kept[-1])
        ticket = route.send(self._workers, self._names, version, present)
        self._kept.append(ticket)
        return ticket

    # ------------------------------------------------------------------ the engines' side

    @property
    def passing(self) -> bool:
        """Return whether the newest ticket leads somewhere only just after it was published."""
        return self.newest is not None and ROUTES[self.newest.route].passing

    def join(self, readers: Sequence[EngineReader]) -> None:
        """Take note of the engines of a pool, in its constructor."""
        self.readers = readers

    @property
    def newest_route(self) -> str:
        """Return the route by which the newest weights came; "" before there were any."""
        return "" if self.newest is None else self.newest.route

    def offer(self, ticket: Ticket) -> None:
        """Let every engine have these weights from now on."""
        self.newest, self.sums = ticket, None
        if not any(ticket is kept for kept in self._kept):
            self._kept.append(ticket)

    def delete_read(self) -> None:
        """Delete the sets that no engine can be reading: all engines at work have the newest."""
        if self.newest is not None:
            self._delete_but(self.newest)

    def again(self) -> Ticket | None:
        """Publish the weights of the last ticket again, for an engine that was not there; None: they have moved.

        Raises:
            EngineError: they cannot be written or carried.
        """
        self.route.settle()
        return None if self._version is None else self._send(self.route.lasting, self._version)

    def make_lasting(self) -> bool:
        """Let an engine load the newest weights that was not there when they came; False: not before the next publish.

        Raises:
            EngineError: they cannot be published again.
        """
        if not self.passing:
            return True
        ticket = self.again()
        if ticket is not None:
            self.newest = ticket
        return ticket is not None

    def came_again(self, ticket: Ticket, why: Exception) -> bool:
        """Return whether another ticket leads to the weights of a passing one that did not reach all engines."""
        if not ROUTES[ticket.route].passing or not self.make_lasting() or self.newest is ticket:
            return False
        log.warning("the weights of version %d are published again: %s", ticket.version, why)
        return True

    def watched(self, now: float) -> float:
        """Look, while engines take weights, whether these still come; return when to look again."""
        if not self.passing:
            return math.inf
        self.route.look()
        return now + _LOOK

    def left(self) -> None:
        """Take note that an engine is gone, perhaps one that a broadcast waits for."""
        if self.passing:
            self.route.call_off()

    def _delete_but(self, newest: Ticket) -> None:
        used = [newest, *(reader.reading for reader in self.readers)]
        stale = [ticket for ticket in self._kept if not any(ticket is one for one in used)]
        self._kept = [ticket for ticket in self._kept if any(ticket is one for one in used)]
        for ticket in stale:
            if ticket.address != newest.address:
                ROUTES[ticket.route].delete(ticket)
