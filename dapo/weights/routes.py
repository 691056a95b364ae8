"""The routes of weights by name, and what every engine does with a ticket."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

from dapo.errors import EngineError
from dapo.types.batch import Route, Ticket
from dapo.weights.broadcast import Broadcast
from dapo.weights.folder import Folder
from dapo.weights.ipc import Ipc
from dapo.weights.object_store import ObjectStore
from dapo.weights.route import WeightRoute
from dapo.weights.shared import Shared

ROUTES: Mapping[Route, type[WeightRoute]] = {
    route.name: route for route in (Shared, Folder, ObjectStore, Broadcast, Ipc)
}


def receive(ticket: Ticket, device: torch.device) -> Iterator[tuple[str, Tensor]]:
    """Return the weights of a ticket under their names in the checkpoint; see ``WeightRoute.receive``.

    Raises:
        EngineError: also for a route that is unknown here.
    """
    if ticket.route not in ROUTES:
        raise unknown_route(ticket, *ROUTES)
    return ROUTES[ticket.route].receive(ticket, device)


def unknown_route(ticket: Ticket, *known: str) -> EngineError:
    """Return what to raise for a ticket that does not lead to an engine."""
    return EngineError(
        f"the weights of version {ticket.version} come by route {ticket.route!r}; this engine takes "
        f"{' or '.join(map(repr, known))}: the learner has to be made with one of these"
    )


def check_named(ticket: Ticket, parameters: Iterable[str]) -> None:
    """Check that the ticket names every parameter (a tied one under one name).

    Raises:
        EngineError: one is missing; nothing was touched yet.
    """
    missing = sorted(set(parameters) - set(ticket.names))
    if missing:
        raise EngineError(
            f"{len(missing)} of the model's weights were not published ({', '.join(missing[:3])}...); they would "
            "stay old: a ticket must name every parameter"
        )
