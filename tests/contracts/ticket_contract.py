"""What every route of a ticket keeps: an engine elsewhere has the learner's weights, to the bit, whenever it comes."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from exchanges import change_to, exchange_by
from learner_rows import make_rows
from learner_subject import learn

from dapo.config import schema
from dapo.config.deployment import Deployment
from dapo.config.load import recipe_from_dict
from dapo.engines.factory import EngineSpec, engine_host
from dapo.engines.pool import EnginePool
from dapo.engines.requests import Gate
from dapo.models.facts import read_facts
from dapo.models.load import load_model
from dapo.models.rendezvous import LOOPBACK
from dapo.models.tiny import make_tiny_model
from dapo.processes.transport import HostSpec
from dapo.run import learners
from dapo.weights.routes import ROUTES


@dataclass
class Subject:
    """A learner that publishes by one route, and a pool of two engines of its model."""

    route: str
    learner: Any  # new
    pool: EnginePool


class Desk:
    """Makes them: two engines for all, whose processes cost most, and a learner for each pair of route and ranks.

    Args:
        transport: of a folder for what hosts print -> one for hosts.
        folder: for all files.
        dtype: of the weights.
        device: of learner and engines.
        places: as ``dapo.run.learners.make_learner`` takes it.
    """

    def __init__(self, transport, folder, *, dtype="bfloat16", device="cpu", places=None) -> None:
        self.folder, self.places = folder, places
        self.path = str(make_tiny_model(folder / "model", hidden=16, heads=2, ffn=24))
        self.facts = read_facts(self.path, dtype)
        self.model = {"path": self.path, "dtype": dtype, "device": device}
        order = EngineSpec(schema.Rollout(), schema.Model(**self.model), self.facts, 64, 4)
        cards = torch.cuda.device_count() if device == "cuda" else 0
        specs = [
            HostSpec(f"engine-{n}", engine_host, (order,), {"OMP_NUM_THREADS": "1"} | _card(n + 1, cards))
            for n in range(2)
        ]
        self.pool = EnginePool(transport(folder / "output"), specs, Gate(self.facts.vocabulary, 64))
        self.made: dict[tuple[str, int, int | None], Any] = {}

    def subject(self, route: str, ranks: int, lora: int | None = None) -> Subject:
        """With the learner of this route, trained by the checks before; ``lora``: of an adapter of this rank."""
        if (route, ranks, lora) not in self.made:
            self.made[route, ranks, lora] = self._learner(route, ranks, lora)
        learner = self.made[route, ranks, lora]
        change_to(self.pool, learner.exchange)
        return Subject(route, learner, self.pool)

    def _learner(self, route: str, ranks: int, lora: int | None):
        recipe = recipe_from_dict(
            {
                "model": self.model | {"lora": {"rank": lora}},
                "data": {"train": [{"task": "signed_sum"}]},
                "run": {"threads": 1},
                "learner": {"ranks": ranks, "timeout": 300.0},
            }
        ).recipe
        host = LOOPBACK if self.places is None or self.places.one_machine else self.places.here
        exchange = exchange_by(route, self.folder / f"weights-{route}-{ranks}-{lora}", host=host)
        # chosen here and not by the recipe's checks: one process that takes turns lives elsewhere, too
        place = "ranks" if ranks > 1 else "apart"
        deployment = type("Placed", (Deployment,), {"learner": place, "route": route})(recipe)
        return learners.make_learner(
            recipe, deployment, self.facts, None, exchange=exchange, run=self.folder, places=self.places
        )

    def close(self) -> None:
        for learner in self.made.values():
            learner.close()
        self.pool.close()


def _card(number: int, cards: int) -> dict[str, str]:
    """A device of its own, where there are enough for the learner and two engines; else they share the first."""
    return {"CUDA_VISIBLE_DEVICES": str(number if cards > 2 else 0)} if cards else {}


def _check_same(s: Subject, version: int) -> dict[str, Any]:
    """Every engine has what the learner has; the sums."""
    sums = s.pool.checksums()
    assert sums
    assert s.learner.checksums({name: one.dtype for name, one in sums.items()}) == {
        name: one.value for name, one in sums.items()
    }
    assert s.pool.version == version
    return dict(sums)


def engines_have_the_learners_weights_after_each_publish(s: Subject) -> None:
    """Also those that moved, and a head that is tied."""
    seen = []
    for version in range(1, 4):
        ticket = s.learner.publish(version)
        assert (ticket.version, ticket.route) == (version, s.route)
        assert pickle.loads(pickle.dumps(ticket)) == ticket  # as it travels
        s.pool.load(ticket)
        seen.append(_check_same(s, version))
        learn(s.learner, [make_rows(version)], 1e-2, version=version)
    assert all(one != other for one, other in itertools.pairwise(seen))


def a_ticket_names_every_parameter(s: Subject) -> None:
    ticket = s.learner.publish(1)
    s.pool.load(ticket)
    loaded = load_model(s.pool._processes.members[0].spec.args[0].facts.name, dtype=torch.bfloat16)
    assert {name for name, _ in loaded.model.named_parameters()} == set(ticket.names)


def the_same_weights_can_be_had_again_until_they_move(s: Subject) -> None:
    """By an engine that was not there."""
    s.pool.load(s.learner.publish(1))
    sums = _check_same(s, 1)
    again = s.learner.exchange.again()
    assert not ROUTES[again.route].passing
    for _ in range(2):  # one after another, as engines come
        s.pool.load(again)
        assert _check_same(s, 1) == sums
    learn(s.learner, [make_rows(7)], 1e-2, version=1)
    assert s.learner.exchange.again() is None


def an_engine_that_comes_back_has_them_too(s: Subject) -> None:
    """Its process was killed behind the publish."""
    s.pool.load(s.learner.publish(1))
    sums = _check_same(s, 1)
    member = s.pool._processes.members[1]
    member.transport.kill(member.host)
    assert s.pool.checksums_each().keys() == {0}
    while len(s.pool.members()) < 2:
        s.pool._hear()
    assert _check_same(s, 1) == sums
    learn(s.learner, [make_rows(8)], 1e-2, version=1)
    s.pool.load(s.learner.publish(2))
    assert _check_same(s, 2) != sums


CHECKS: list[Callable[[Subject], None]] = [
    engines_have_the_learners_weights_after_each_publish,
    a_ticket_names_every_parameter,
    the_same_weights_can_be_had_again_until_they_move,
    an_engine_that_comes_back_has_them_too,
]
