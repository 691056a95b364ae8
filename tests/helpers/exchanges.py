"""Exchanges of weights for tests: one by a given route, and a pool that changes from one to another."""

from __future__ import annotations

from pathlib import Path

from dapo.models.rendezvous import LOOPBACK
from dapo.weights.exchange import WeightExchange
from dapo.weights.routes import ROUTES
from dapo.weights.sets import WeightSets


def exchange_by(route, folder: Path, seconds=300.0, host=LOOPBACK) -> WeightExchange:
    """Return an exchange whose sets are in ``folder``."""
    return WeightExchange(ROUTES[route](WeightSets(folder), host, seconds))


def by_folder(folder: Path | None) -> WeightExchange:
    """Return an exchange through a folder; None: within this process."""
    return WeightExchange() if folder is None else exchange_by("folder", folder)


def change_to(pool, exchange: WeightExchange) -> None:
    """Let another learner publish to the engines of a pool: starting engines costs most."""
    processes = pool._processes
    pool.exchange = processes.exchange = exchange
    for member in processes.members:
        member.exchange = exchange
    exchange.join(processes.members)
