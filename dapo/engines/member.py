"""One engine of a pool: its host, what it is asked, what it has, and how it comes back when it was lost."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dapo.engines.host import HostFacts, TurnResult
from dapo.errors import EngineError
from dapo.processes.transport import Call, Host, HostLost, HostSpec, Transport
from dapo.types.batch import Key, SampleRequest, TensorSum, Ticket
from dapo.weights.exchange import WeightExchange


@dataclass(frozen=True, slots=True)
class PoolLimits:
    """Timeouts (seconds) and restart budget of pool engines."""

    start: float = 600.0  # until a started engine answers
    engine: float = 300.0  # until a turn, or another call, comes back
    restarts: int = 10  # of engines, together


class NoPlaceError(EngineError):
    """No machine had a place for a new host in time, and when one will is unknown."""


@dataclass(slots=True)
class Flight:
    """A call under way."""

    method: str
    args: tuple[Any, ...]
    call: Call
    until: float  # on the pool's watch: given up then
    opening: list[tuple[str, Call]]  # what was asked of a new host before; looked at first
    placed_until: float = math.inf  # when a new host has to have a place


@dataclass(slots=True)
class Opening:
    """Calls to a new host, and what it waits for, until it goes to work."""

    began: float = 0.0  # when the host was started, since 1970
    calls: list[tuple[str, Call]] = field(default_factory=list)  # not looked at yet
    ticket: Ticket | None = None  # the weights that it was given
    until: float = 0.0  # it is given up then
    waits: bool = False  # for the next weights, as the newest ones cannot be had any more


@dataclass(slots=True)
class EngineWork:
    """The unfinished requests of an engine, and the slots that it keeps."""

    journals: bool  # a new engine shall be led to where the old one was
    owned: dict[Key, SampleRequest] = field(default_factory=dict)  # those in the mail included
    mail: list[SampleRequest] = field(default_factory=list)  # that go with the next turn
    kept: set[Key] = field(default_factory=set)  # responses that ended here, and whose slots wait for a continuation
    dropped: list[Key] = field(default_factory=list)  # slots to let go with the next turn
    journal: list[tuple[str, tuple[Any, ...]]] | None = None
    """What was done since the engine held nothing, so that a new engine can be led to the same place. None: that
    is not wanted, or not possible, as weights have changed in between."""

    def __post_init__(self) -> None:
        self.new_journal()

    def give(self, requests: Sequence[SampleRequest]) -> None:
        """Queue requests for the next turn."""
        self.owned.update((request.key, request) for request in requests)
        self.kept.difference_update(request.key for request in requests)
        self.mail += requests

    def take_all(self) -> list[SampleRequest]:
        """Take all requests from the engine and return them in the order in which they came."""
        requests = list(self.owned.values())
        self.owned, self.mail = {}, []
        self.new_journal()
        return requests

    def take_mail(self) -> tuple[list[SampleRequest], list[Key]]:
        """Return the requests, and the slots to let go, that go with the turn that begins."""
        mail, dropped = self.mail, self.dropped
        self.mail, self.dropped = [], []
        return mail, dropped

    def forget(self, key: Key, *, ended: bool = False) -> None:
        """Forget a response that this engine returned; ``ended``: its slot is kept, if its request asked for that."""
        if self.owned.pop(key).keep and ended:
            self.kept.add(key)
        self._rest()

    def let_go(self, keys: Collection[Key] | None) -> None:
        """Let the kept slots of the named responses (None: of all) go, with the next turn."""
        gone = sorted(self.kept if keys is None else self.kept.intersection(keys))
        self.kept.difference_update(gone)
        self.dropped += gone
        self._rest()

    def lets_all_go(self) -> None:
        """Forget all kept slots: with new weights the engine keeps none."""
        self.kept, self.dropped = set(), []
        self._rest()

    def _rest(self) -> None:
        if not (self.owned or self.kept or self.dropped):
            self.new_journal()

    def new_journal(self) -> None:
        """Begin a new journal: the engine holds nothing, or continues from what the pool knows."""
        self.kept, self.dropped = set(), []
        self.journal = [] if self.journals else None


@dataclass(slots=True)
class Counts:
    """Decode steps and counters of an engine."""

    clock: int = 0  # after what was heard last
    before: Counter[str] = field(default_factory=Counter)  # of all incarnations before
    own: Counter[str] = field(default_factory=Counter)  # of this one

    def heard(self, answer: TurnResult) -> int:
        """Keep the counters of an answer; return the clock before it."""
        before, self.clock = self.clock, answer.clock
        self.own = Counter({name: int(value) for name, value in answer.stats.items()})
        return before

    def end(self) -> None:
        """Take note that the incarnation ended."""
        self.before.update(self.own)
        self.own, self.clock = Counter(), 0


class Member:
    """An engine's place in the pool. It stays when the engine is lost; each new one is another incarnation.

    Args:
        index: its number in the pool.
        spec: of its host.
        transport: where its host lives.
        limits: how long it is waited for.
        exchange: from which it has its weights.
        now: seconds that only grow.
        journals: a new engine shall be led to where the old one was.

    Attributes:
        at_work: it may be given requests; else it starts, or is gone.
        gone: for good.
    """

    def __init__(
        self,
        index: int,
        spec: HostSpec,
        transport: Transport,
        limits: PoolLimits,
        exchange: WeightExchange,
        now: Callable[[], float],
        *,
        journals: bool,
    ) -> None:
        self.index, self.spec, self.transport, self.limits, self.exchange = index, spec, transport, limits, exchange
        self.now = now
        self.host: Host = None
        self.incarnation = 0
        self.at_work = self.gone = False
        self.facts: HostFacts | None = None
        self.flight: Flight | None = None
        self.opening, self.work, self.counts = Opening(), EngineWork(journals), Counts()
        self.starts: list[tuple[float, float]] = []  # start (since 1970) and seconds of each, until it is taken

    def __str__(self) -> str:
        facts = self.facts
        where = "not started" if facts is None else f"process {facts.process} on {facts.machine}"
        return f"{self.name}: {where}, {self.capacity} responses at once"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def capacity(self) -> int:
        """0 before the first answer."""
        return 0 if self.facts is None else self.facts.capacity

    @property
    def crowding(self) -> float:
        """Unfinished responses for each that decodes at once."""
        return len(self.work.owned) / max(1, self.capacity)

    @property
    def stands(self) -> bool:
        """True if the engine is running and has nothing to do before the next weights."""
        return self.opening.waits and not self.opening.calls

    @property
    def takes_next(self) -> bool:
        """Return whether it loads the next weights at once."""
        return self.at_work or self.stands

    @property
    def reading(self) -> Ticket | None:
        """Return the weights that it loads while it starts."""
        return None if self.at_work or self.gone else self.opening.ticket

    @property
    def due(self) -> float:
        """When it is given up, if it does not answer before."""
        return self.opening.until if self.flight is None else min(self.flight.until, self.flight.placed_until)

    def overdue(self) -> EngineError | None:
        """Why it is given up now, if it is."""
        now, flight = self.now(), self.flight
        if flight is not None and now >= flight.placed_until:
            flight.placed_until = math.inf
            if self._lacks_place():
                return self._no_place()
        if now < self.due:
            return None
        if flight is not None:
            return EngineError(f"it did not answer for {self.limits.engine:g} s (cluster.engine_timeout)")
        if self._lacks_place():
            return self._no_place()
        return EngineError(f"it did not start within {self.limits.start:g} s (cluster.start_timeout)")

    def wait_on(self) -> None:
        """For a place, as long again as it has waited."""
        self.opening.until = self.now() + self.limits.start

    def _lacks_place(self) -> bool:
        return not self.transport.has_place(self.host)

    def _no_place(self) -> NoPlaceError:
        return NoPlaceError(f"no machine had a place for it within {self.limits.start:g} s (cluster.start_timeout)")

    # ------------------------------------------------------------------ starting

    def start(self) -> None:
        """Start a new host, ask for its facts, and give it the newest weights."""
        began = time.time()
        self.host = self.transport.start(self.spec)
        self.incarnation += 1
        self.opening = Opening(began, [self._asked("describe")])
        self.opening.until = self.now() + self.limits.start
        self.open_with_newest()

    def open_with_newest(self) -> None:
        """Ask a new host to take the newest weights, and for their checksums; or wait for those that come next."""
        self.opening.waits = not self.exchange.make_lasting()
        if self.opening.waits and self.work.journals:
            raise EngineError(
                f"{self.name} is lost, and in lockstep has to come back at once; weights that travel by "
                f"{self.exchange.newest_route} cannot be had while the learner works: set "
                "rollout.weight_transfer=folder"
            )
        if not self.opening.waits:
            self.open_with(self.exchange.newest)

    def open_with(self, ticket: Ticket | None) -> None:
        """Ask a new host to take these."""
        self.opening.ticket, self.opening.waits = ticket, False
        self.opening.until = self.now() + self.limits.start
        if ticket is not None:
            self.opening.calls += [self._asked("load", ticket, "abort"), self._asked("checksums")]

    def replay(self) -> None:
        """Lead a new engine to where the old one was: responses are functions of requests, and so is their order."""
        if self.work.journal:
            self.opening.calls.append(self._asked("replay", list(self.work.journal)))

    def come_back(self, *, replays: bool) -> None:
        """Start a new host with the same work; without ``replays`` it starts again after the prefixes."""
        self.start()
        if replays:
            self.replay()
        else:
            self.work.new_journal()
            self.work.mail = list(self.work.owned.values())

    def _asked(self, method: str, *args: Any) -> tuple[str, Call]:
        return method, self.transport.call(self.host, method, *args)

    def step_in(self) -> bool:
        """Put the engine to work once its opening calls are answered, unless there are newer weights by now.

        Raises:
            Exception: what the opening raised.
        """
        self.finish_opening(self._opened())
        if self.opening.waits or self.opening.ticket is not self.exchange.newest:
            self.open_with_newest()
            return False
        self.at_work = True
        return True

    def _opened(self) -> list[tuple[str, Call]]:
        calls, self.opening.calls = self.opening.calls, []
        return calls

    def finish_opening(self, opening: list[tuple[str, Call]]) -> None:
        """Look at what a new host answered; everything has arrived.

        Raises:
            EngineError: its weights are not those of the other engines.
            Exception: what it raised.
        """
        for method, call in opening:
            answer = self.transport.get(call)
            if method == "describe":
                self.facts, self.counts.clock, self.counts.own = answer, answer.clock, Counter()
                self.starts.append((self.opening.began, max(0.0, answer.ready - self.opening.began)))
            elif method == "checksums":
                self._compare(answer)
            elif isinstance(answer, TurnResult):
                self.counts.heard(answer)

    def _compare(self, found: Mapping[str, TensorSum] | None) -> None:
        expected = self.exchange.sums
        if expected is None or found is None or self.opening.ticket is not self.exchange.newest:
            return
        stale = sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name))
        if stale:
            raise EngineError(
                f"{len(stale)} of its tensors are not those that the other engines have ({', '.join(stale[:3])})"
            )

    # ------------------------------------------------------------------ asking

    def ask(self, method: str, *args: Any) -> Flight:
        """Make a call, after the calls that a new host still has to answer."""
        assert self.flight is None, "one call at a time"
        opening = self._opened()
        patience = self.limits.engine * (1 + len(opening)) + (self.limits.start if opening else 0.0)
        _, call = self._asked(method, *args)
        self.flight = Flight(method, args, call, self.now() + patience, opening)
        if opening:
            self.flight.placed_until = self.now() + self.limits.start
        return self.flight

    def land(self) -> Any:
        """Return the result of the flight, which has arrived; an exception if the engine refused a request and keeps
        running.

        Raises:
            Exception: the engine counts as lost.
        """
        flight, self.flight = self.flight, None
        assert flight is not None
        self.finish_opening(flight.opening)
        try:
            answer = self.transport.get(flight.call)
        except HostLost:
            raise
        except Exception as error:
            if flight.method in ("turn", "abort"):
                raise
            return error
        if self.work.journal is not None and flight.method in ("turn", "abort"):
            self.work.journal.append((flight.method, flight.args))
        return answer

    def take_starts(self) -> tuple[tuple[float, float], ...]:
        """Return start (since 1970) and seconds of each new host since the last call."""
        starts, self.starts = self.starts, []
        return tuple(starts)

    def end_host(self) -> None:
        """Kill the host, and keep what it counted."""
        self.transport.kill(self.host)
        self.host, self.flight, self.opening = None, None, Opening()
        self.counts.end()
