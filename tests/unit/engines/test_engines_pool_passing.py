"""A pool whose weights come by a ticket that leads nowhere later on: late engines, and broadcasts that fail."""

from __future__ import annotations

from typing import ClassVar

import pytest
from engine_contract import drain
from faults import FaultyTransport
from number_engine import GATE, WEIGHTS, NumberEngine, sums
from number_engine import ticket as lasting
from test_engines_pool import Once, check_whole, request, work

from dapo.engines.host import EngineHost
from dapo.engines.pool import EnginePool
from dapo.errors import EngineError, LearnerLost
from dapo.processes.transport import HostSpec
from dapo.types.batch import Ticket
from dapo.weights.exchange import WeightExchange
from dapo.weights.folder import PassingRoute


class Present(NumberEngine):
    """Takes a passing ticket only while it is new."""

    open: ClassVar = set()  # addresses of tickets that lead somewhere

    def load(self, ticket, in_flight="abort"):
        if ticket.route == "broadcast" and ticket.address not in self.open:
            raise EngineError(f"{ticket.address} is over")
        super().load(ticket, in_flight)


class Learner(PassingRoute):
    """Who publishes, and its route."""

    name = "broadcast"

    def __init__(self):
        self.version, self.said = None, []
        self.looks, self.lost = 0, False
        self.fails = False
        Present.open.clear()
        self.exchange = WeightExchange(self)
        self.exchange.open(object(), WEIGHTS)  # processes that nobody asks

    def publish(self, version, *, fails=False):
        self.version, self.fails = version, fails
        return self.exchange.publish(version)

    def learn(self):
        """The weights move, and what was on its way has arrived."""
        self.exchange.moved()
        Present.open.clear()

    @property
    def lasting(self):
        return Lasting(self)

    def send(self, workers, names, version, readers=()):
        self.said.append(("publish", version, list(readers)))
        ticket = Ticket(version, "broadcast", f"broadcast {version}", WEIGHTS)
        if not self.fails:
            Present.open.add(ticket.address)
        return ticket

    def call_off(self):
        self.said.append(("off", self.version))

    def look(self):
        self.looks += 1

    @staticmethod
    def part(source, *args):
        raise AssertionError("there are no processes")

    @staticmethod
    def receive(ticket, device):
        raise AssertionError("engines take numbers")

    @staticmethod
    def seconds(load):
        raise AssertionError("nothing is priced")

    prices = seconds


class Lasting(Learner):
    """By which engines get the weights that were not there."""

    def __init__(self, learner):
        self.learner = learner

    def send(self, workers, names, version, readers=()):
        self.learner.said.append(("again", version))
        if self.learner.lost:
            raise LearnerLost("rank-0 was killed")
        return lasting(version)


def scene(*, fault=lambda name, method: None, lockstep=False, engines=2):
    transport, learner = FaultyTransport(lambda name, method: None), Learner()
    specs = [HostSpec(f"engine-{n}", EngineHost, (Present, 3)) for n in range(engines)]
    options = {"turn_steps": 4, "lockstep": lockstep, "now": transport.watch, "exchange": learner.exchange}
    pool = EnginePool(transport, specs, GATE, **options)
    pool.load(learner.publish(1))
    Present.open.clear()
    transport.fault = fault
    return pool, learner, transport


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
def test_an_engine_that_comes_back_is_given_the_same_weights_once_more(lockstep):
    pool, learner, _ = scene(fault=Once("engine-1", "turn", "before"), lockstep=lockstep)
    pool.submit(work())
    check_whole(work(), [*drain(pool).values()])
    assert pool.members() == [0, 1]
    assert pool.checksums() == sums(1)
    assert learner.said == [("publish", 1, [(0, 1), (1, 1)]), ("off", 1), ("again", 1)]
    pool.load(learner.publish(2))
    assert learner.said[-1] == ("publish", 2, [(0, 1), (1, 2)])
    assert pool.checksums() == sums(2)


def test_while_the_learner_works_it_waits_for_the_next_ones():
    pool, learner, _ = scene(fault=Once("engine-1", "turn", "before"))
    learner.learn()
    pool.submit(work())
    check_whole(work(), [*drain(pool).values()])
    while pool._processes._starting[1].opening.calls:
        pool._hear()
    assert pool.members() == [0]
    pool.load(learner.publish(2), "keep")
    assert learner.said[-1] == ("publish", 2, [(0, 1), (1, 2)])  # it is one of those that are waited for
    assert pool.members() == [0, 1]
    assert pool.checksums() == sums(2)
    pool.submit(work())
    assert {v for e in drain(pool).values() for v in e.versions.tolist()} == {2}


def test_where_all_wait_work_waits_too_unless_nobody_will_publish():
    pool, learner, transport = scene(engines=1, fault=Once("engine-0", "turn", "before"))
    learner.learn()
    pool.submit([request(0)])
    assert pool.poll(0.0) == []
    while pool._processes._starting[0].opening.calls:
        pool._hear()
    assert pool.poll(0.0) == []
    with pytest.raises(EngineError, match=r"every engine of the pool was lost.*broadcast.*weight_transfer=folder"):
        pool.poll()
    pool.load(learner.publish(2), "keep")
    check_whole([request(0)], [*drain(pool).values()])
    assert transport.killed == ["engine-0"]


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
def test_a_publish_that_nobody_received_is_made_up_for(lockstep, caplog):
    pool, learner, transport = scene(lockstep=lockstep)
    pool.load(learner.publish(2, fails=True))
    assert pool.checksums() == sums(2)
    assert transport.killed == []
    assert learner.said[-1] == ("again", 2)
    assert [r.getMessage() for r in caplog.records] == [
        "the weights of version 2 are published again: broadcast 2 is over"
    ]


@pytest.mark.parametrize("lockstep", [True, False], ids=["lockstep", "free"])
def test_an_engine_lost_while_it_takes_weights_holds_up_nobody(lockstep):
    """The others hear that the broadcast is off, and all of them get the weights by a ticket that lasts."""
    pool, learner, _ = scene(lockstep=lockstep, fault=Once("engine-1", "load", "before"))
    pool.load(learner.publish(2, fails=True))
    assert ("off", 2) in learner.said
    pool.submit(work())
    events = drain(pool)
    check_whole(work(), [*events.values()])
    assert {v for e in events.values() for v in e.versions.tolist()} == {2}
    assert pool.members() == [0, 1]
    assert pool.checksums() == sums(2)


def test_in_lockstep_an_engine_cannot_come_back_without_weights():
    pool, learner, _ = scene(lockstep=True, fault=Once("engine-1", "turn", "before"))
    learner.learn()
    pool.submit(work())
    with pytest.raises(
        EngineError, match=r"engine-1 is lost, and in lockstep has to come back.*weight_transfer=folder"
    ):
        drain(pool)


def test_who_sends_is_looked_at_as_long_as_engines_take_weights():
    """A frozen engine makes time pass, as one does that waits for a sender that is gone."""
    pool, learner, _ = scene(fault=Once("engine-1", "load", "freeze"))
    pool.submit(work())
    before = learner.looks
    drain(pool)
    assert learner.looks == before  # nobody takes any
    pool.load(learner.publish(2))
    assert learner.looks >= pool.limits.engine


def test_a_learner_that_is_lost_meanwhile_is_no_loss_of_the_engine_that_asks_it(caplog):
    pool, learner, transport = scene(fault=Once("engine-1", "turn", "before"))
    pool.submit(work())
    while 1 not in pool._processes._starting:
        pool._depart()
        pool._hear()
    learner.lost = True  # while engine-1 starts with weights that are the newest no more
    ticket = learner.publish(2)
    with pytest.raises(LearnerLost, match="rank-0 was killed"):
        pool.load(ticket, "keep")
    assert transport.killed == ["engine-1"]
    assert "rank-0 was killed" not in caplog.text
