"""Several engines as one. The driver owns every request; an engine is asked for one turn at a time, and may be lost.

A turn takes new requests to an engine, lets it decode at most ``turn_steps`` steps, and brings back what ended. What an
engine has belongs to it in its present incarnation: what a lost one still says counts for nothing, and its requests
are submitted again, with the prefix that they came with, since a token is a function of (seed, position).

*Lockstep*: every engine with work gets a turn, all are waited for, and what ended is ordered by (tick, key): what comes
out is a function of what went in. A lost engine is started again and led through its turns once more, unless no machine
has a place for it in time: then as if free. *Free*: an engine that comes back goes on. A lost engine's work goes to the
others, and it comes back in the background.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, Literal

from dapo.engines.engine_processes import EngineProcesses, keys_of
from dapo.engines.host import TurnResult
from dapo.engines.inbox import check_idle, check_requests
from dapo.engines.member import Flight, Member, NoPlaceError, PoolLimits
from dapo.engines.requests import Gate, ended_before
from dapo.errors import ClusterError, EngineError
from dapo.processes.transport import HostSpec, Transport
from dapo.system import memory_of
from dapo.types.batch import Key, Metrics, Response, SampleRequest, TensorSum, Ticket
from dapo.types.enums import FinishReason
from dapo.types.protocols import ProcessState
from dapo.weights.exchange import WeightExchange

log = logging.getLogger(__name__)


MOST_SPANS = 2000
"""Turns of an engine that are kept until a reader asks for them."""


class Tally:
    """Turns and losses.

    Attributes:
        busy: seconds within turns, of all engines together, from the beginning on.
    """

    def __init__(self) -> None:
        self.busy = 0.0
        self._turns: list[float] = []  # seconds of each, since ``metrics``
        self._spans: dict[str, list[tuple[float, float]]] = {}  # start and seconds by engine, since ``take_spans``
        self.last: dict[str, tuple[float, float]] = {}  # end and seconds of each engine's last turn
        self._counts = Counter[str]()  # likewise

    def turn(self, engine: str, seconds: float) -> None:
        """Count a turn that came back just now."""
        now = time.time()
        self.last[engine] = (now, seconds)
        spans = self._spans.setdefault(engine, [])
        spans.append((now - seconds, seconds))
        del spans[:-MOST_SPANS]
        self.busy += seconds
        self._turns.append(seconds)

    def loss(self, resubmitted: int) -> None:
        """Count a lost engine and the responses that are made again."""
        self._counts.update(losses=1, resubmitted=resubmitted)

    def take_spans(self, engine: str) -> tuple[tuple[float, float], ...]:
        """Return start and seconds of the engine's turns since the last call, at most ``MOST_SPANS``."""
        return tuple(self._spans.pop(engine, ()))

    def metrics(self, engines: int) -> Metrics:
        """Return the metrics of a pool with so many engines at work, since the last call."""
        turns, self._turns = self._turns, []
        counts, self._counts = self._counts, Counter()
        return {
            "cluster/engines": float(engines),
            "cluster/engine_losses": float(counts["losses"]),
            "cluster/resubmitted": float(counts["resubmitted"]),
            "cluster/turns": float(len(turns)),
            "cluster/turn_seconds": sum(turns) / max(1, len(turns)),
        }


class EnginePool:
    """Keeps ``dapo.types.protocols.Engine`` and ``EngineGroup``.

    Args:
        transport: where hosts live.
        specs: of the hosts: each makes a ``dapo.engines.host.EngineHost``. Their engines may differ in capacity.
        gate: of the model, so that what no engine can take is refused here, at once.
        turn_steps: decode steps of a turn.
        lockstep: see the module.
        limits: how long an engine is waited for, and how many are started again.
        exchange: through which a learner publishes to these engines; None: tickets come from elsewhere.
        now: seconds that only grow.

    Raises:
        EngineError: an engine does not start.
        Exception: what making one raised.
    """

    shares_weights = False

    def __init__(
        self,
        transport: Transport,
        specs: Sequence[HostSpec],
        gate: Gate,
        *,
        turn_steps: int = 64,
        lockstep: bool = False,
        limits: PoolLimits | None = None,
        exchange: WeightExchange | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.version, self.clock = 0, 0
        self.lockstep, self.turn_steps, self.limits = lockstep, turn_steps, limits or PoolLimits()
        self._gate, self._now = gate, now
        self._present: set[Key] = set()  # submitted, and not handed out yet
        self._owner: dict[Key, tuple[int, int]] = {}  # of what is unfinished: engine and incarnation
        self._homeless: dict[Key, SampleRequest] = {}  # unfinished, while every engine starts
        self._ended: list[Response] = []  # not handed out yet
        self._round: dict[int, TurnResult] = {}  # lockstep: of a round whose other turns are under way
        self._told: dict[int, Any] = {}  # what each engine said when all were asked
        self._restarts = 0
        self._why = "the pool was closed"
        self._tally = Tally()
        self.exchange = exchange or WeightExchange()
        self._processes = EngineProcesses(
            transport, specs, self.limits, self._lost, now, self.exchange, journals=lockstep
        )
        try:
            self._processes.open()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------ Engine

    @property
    def capacity(self) -> int:
        """Number of responses that all engines, present and expected, decode at once."""
        return max(1, sum(member.capacity for member in self._processes.members if not member.gone))

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Give each group to the engine with the fewest unfinished responses for its capacity.

        Raises:
            EngineError: a key that has not come back yet, or a request that does not fit the model; none is taken. Or
                no engine is left.
        """
        check_requests(requests, self._gate, self._present)
        self._check_left()
        going = []
        for request in requests:
            self._present.add(request.key)
            done = ended_before(request, self.clock, self._gate.strings)
            if done is None:
                going.append(request)
            else:
                self._ended.append(done)
        self._assign(going)

    def poll(self, timeout: float | None = None) -> list[Response]:
        """Run turns until a response has ended. With ``timeout``, turns may still be running on return.

        In lockstep, a call with ``timeout`` ends at most one round. So what is submitted between two calls joins the
        same round, however long rounds take.

        Raises:
            EngineError: no engine is left.
        """
        until, began = math.inf if timeout is None else self._now() + timeout, self.clock
        while not self._ended and (self._owner or self._homeless):
            self._check_left()
            self._depart()
            if self._processes.all_wait():
                self._processes.rest(until, self._why)
            self._hear(until)
            if self._now() >= until or (self.lockstep and timeout is not None and self.clock > began):
                break
        return self._hand_out({event.key for event in self._ended}, lambda event: (event.tick, event.key))

    def abort(self, keys: Iterable[Key] | None = None) -> list[Response]:
        """Wait for the turns under way, and take back. What a lost engine had comes back as it was submitted.

        Engines hear with their next turn which kept slots to let go; nothing is waited for if that is all.
        """
        asked = set(self._present) if keys is None else set(keys)
        named = self._present & asked
        if named:
            self._take_back(named)
        for member in self._processes.members:
            member.work.let_go(None if keys is None else asked)
        return self._hand_out(named, lambda event: event.key)

    def load(self, ticket: Ticket, in_flight: Literal["abort", "keep"] = "abort") -> None:
        """To every engine, between two turns. One that starts just now gets them before its first.

        Raises:
            EngineError: unfinished responses with ``abort``; weights that no engine takes; no engine is left.
        """
        check_idle(len(self._owner) + len(self._homeless), in_flight)
        self._check_left()
        exchange = self.exchange
        for member in self._processes.at_work():
            if (
                member.work.owned
            ):  # what comes out depends on both weights from here on, and a new engine has one of them
                member.work.journal = None
            member.work.lets_all_go()
        exchange.offer(ticket)
        opening = self._processes.open_waiting()
        told = self._ask_all("load", ticket, in_flight)
        while exchange.passing and self._processes.are_opening(opening):
            self._hear(exchange.watched(self._now()))
        refused = {index: said for index, said in told.items() if isinstance(said, Exception)}
        if refused and exchange.came_again(ticket, next(iter(refused.values()))):
            told = self._ask_all("load", exchange.newest, in_flight)
            refused = {index: said for index, said in told.items() if isinstance(said, Exception)}
        if refused and len(refused) == len(told):  # it is not the engines' fault
            raise next(iter(refused.values()))
        for index, error in refused.items():
            self._processes.give_up(self._processes.members[index], error, None)
        self.version = ticket.version
        while not self.members():
            self._check_left()
            self._hear()
        exchange.delete_read()

    def checksums(self) -> Mapping[str, TensorSum] | None:
        """Return the checksums that all engines have in common.

        Raises:
            EngineError: they differ, or an engine says that it holds something old.
        """
        return self._processes.in_common(self.checksums_each())

    def sleep(self) -> None:
        """Tell every engine."""
        self._ask_all("sleep")
        for member in self._processes.members:
            member.work.lets_all_go()

    def stats(self) -> Metrics:
        """Return sums over engines, lost ones included."""
        return self._processes.stats()

    def busy_seconds(self) -> float:
        """Seconds within turns, the mean over engines."""
        return self._tally.busy / len(self._processes.members)

    def close(self) -> None:
        """Let the engines hand back what they hold, and end their hosts."""
        self._processes.close()
        for mine in (self._present, self._owner, self._homeless, self._ended, self._round):
            mine.clear()

    def processes(self) -> list[ProcessState]:
        """Return each engine as it is now, with its turns since the last call."""
        found = []
        for member in self._processes.members:
            ended, seconds = self._tally.last.get(member.name, (None, None))
            facts = member.facts
            here = facts is not None and facts.machine == os.uname().nodename
            found.append(
                ProcessState(
                    name=member.name,
                    role="engine",
                    machine="" if facts is None else facts.machine,
                    process=None if facts is None else facts.process,
                    alive=member.at_work,
                    restarts=max(0, member.incarnation - 1),
                    last_turn=ended,
                    turn_seconds=seconds,
                    memory_mib=memory_of(facts.process) if facts is not None and here else None,
                    turns=self._tally.take_spans(member.name),
                    starts=member.take_starts(),
                )
            )
        return found

    # ------------------------------------------------------------------ EngineGroup

    def members(self) -> list[int]:
        """Engines at work, by the numbers under which a request may ask for one of them."""
        return [member.index for member in self._processes.at_work()]

    def checksums_each(self) -> Mapping[int, Mapping[str, TensorSum] | None]:
        """By engine. From here on, one that comes back must have the same.

        Raises:
            EngineError: an engine says that it holds something old.
        """
        found: dict[int, Mapping[str, TensorSum] | None] = {}
        for index, said in self._ask_all("checksums").items():
            if isinstance(said, Exception):
                raise EngineError(f"{self._processes.members[index].name}: {said}") from said
            found[index] = said
        self.exchange.sums = next((sums for sums in found.values() if sums is not None), None)
        return found

    def metrics(self) -> Metrics:
        """Return the pool's metrics since the last call."""
        return self._tally.metrics(engines=len(self.members()))

    # ------------------------------------------------------------------ routing

    def _check_left(self) -> None:
        if self._processes.nobody_left():
            raise EngineError(
                f"no engine of the pool is left: {self._why}. Of at most {self.limits.restarts} restarts "
                f"(cluster.max_engine_restarts) {self._restarts} were made"
            )

    def _assign(self, requests: Iterable[SampleRequest]) -> None:
        groups: dict[tuple[Any, ...], list[SampleRequest]] = {}
        for request in requests:
            groups.setdefault((request.engine, *request.key[:-1]), []).append(request)
        for group in groups.values():
            member = self._member_for(group[0])
            if member is None:
                self._homeless.update((request.key, request) for request in group)
            else:
                member.work.give(group)
                self._owner.update((request.key, (member.index, member.incarnation)) for request in group)

    def _member_for(self, request: SampleRequest) -> Member | None:
        """Return the engine that the request names, if it is at work; else the least crowded one, ties by number. None
        while all start."""
        if request.engine is not None and self._processes.members[request.engine].at_work:
            return self._processes.members[request.engine]
        return min(self._processes.at_work(), key=attrgetter("crowding"), default=None)

    def _hand_out(self, named: set[Key], order: Callable[[Response], Any]) -> list[Response]:
        out = [event for event in self._ended if event.key in named]
        self._ended = [event for event in self._ended if event.key not in named]
        self._present.difference_update(event.key for event in out)
        return sorted(out, key=order)

    def _give_back(self, member: Member, keys: Iterable[Key]) -> None:
        """As they were submitted: nothing is known of what became of them."""
        for key in keys:
            if key in member.work.owned:
                member.work.forget(key)
                del self._owner[key]
                self._ended.append(Response.empty(key, tick=self.clock))

    def _take_back(self, named: set[Key]) -> None:
        """Make all that is unfinished of ``named`` end."""
        while self._round or any(not named.isdisjoint(member.work.owned) for member in self._processes.flying.values()):
            self._hear()
        for key in named & self._homeless.keys():
            del self._homeless[key]
            self._ended.append(Response.empty(key, tick=self.clock))
        for member in self._processes.members:
            if mine := [key for key in member.work.owned if key in named]:
                self._recall(member, mine)
        while not named.isdisjoint(self._owner):
            self._hear()

    def _recall(self, member: Member, keys: Sequence[Key]) -> None:
        """Return unsent requests at once, and ask the engine for the rest."""
        unsent = {request.key for request in member.work.mail} & set(keys)
        member.work.mail = [request for request in member.work.mail if request.key not in unsent]
        self._give_back(member, sorted(unsent))
        if rest := [key for key in keys if key not in unsent]:
            self._processes.ask(member, "abort", rest)

    # ------------------------------------------------------------------ asking and hearing

    def _depart(self) -> None:
        """Start a turn for every engine that has work and no turn; in lockstep, only when the last round is over."""
        if self.lockstep and (self._processes.flying or self._round):
            return
        if self._homeless and self.members():
            waiting, self._homeless = list(self._homeless.values()), {}
            self._assign(waiting)
        for member in self._processes.at_work():
            if member.work.owned and member.flight is None:
                self._ask_turn(member)

    def _ask_turn(self, member: Member) -> None:
        mail, dropped = member.work.take_mail()
        self._processes.ask(member, "turn", mail, self.turn_steps, dropped)

    def _ask_all(self, method: str, *args: Any) -> dict[int, Any]:
        """Ask every engine at work, when their turns are over; what each said, exceptions included."""
        while self._processes.flying or self._round:
            self._hear()
        self._told = {}
        for member in self._processes.at_work():
            self._processes.ask(member, method, *args)
        while self._processes.flying:
            self._hear(self.exchange.watched(self._now()) if method == "load" else math.inf)
        return dict(sorted(self._told.items()))

    def _hear(self, until: float = math.inf) -> None:
        for member, flight, answer in self._processes.hear(until):
            if flight.method == "turn":
                self._tally.turn(member.name, answer.seconds)
                self._round[member.index] = answer
            elif flight.method == "abort":
                self._take(member, answer, self.clock, 0.0)
                self._give_back(member, keys_of(flight))  # what it knew nothing of
            else:
                if isinstance(answer, TurnResult):  # of a load
                    member.counts.heard(answer)
                self._told[member.index] = answer
        if self._round and not (self.lockstep and self._processes.flying):
            self._close_round()

    def _close_round(self) -> None:
        """Hand out what ended in the turns that came back: of all engines in lockstep, of some engines otherwise.

        In lockstep each turn began at the same tick. Else an engine's steps count for its share of the pool.
        """
        answers, self._round = self._round, {}
        share = 1.0 if self.lockstep else 1.0 / max(1, len(self.members()))
        longest = 0
        for index, answer in sorted(answers.items()):
            member = self._processes.members[index]
            longest = max(longest, math.ceil((answer.clock - member.counts.clock) * share))
            self._take(member, answer, self.clock, share)
        self.clock += max(1, longest)

    def _take(self, member: Member, answer: TurnResult, base: int, share: float) -> None:
        """Keep the events of what is still its own; their ticks become the pool's."""
        before = member.counts.heard(answer)
        for event in answer.events:
            if self._owner.get(event.key) == (member.index, member.incarnation):
                del self._owner[event.key]
                member.work.forget(event.key, ended=event.finish in (FinishReason.STOP, FinishReason.LENGTH))
                tick = base + math.ceil((event.tick - before) * share)
                self._ended.append(replace(event, tick=tick, engine=member.index))

    # ------------------------------------------------------------------ losing

    def _lost(self, member: Member, error: Exception, flight: Flight | None) -> None:
        """Take an engine out and make its work again."""
        self.exchange.left()
        self._why = f"{member.name} was lost last ({error})"
        placeless = isinstance(error, NoPlaceError)  # nothing was started
        waits = placeless and any(other is not member for other in self._processes.at_work())
        again = waits or self._restarts < self.limits.restarts
        at_once = again and self.lockstep and member.at_work and not placeless
        replays = at_once and member.work.journal is not None
        if not replays:
            self._give_back(member, keys_of(flight))
        sent = len(member.work.owned) - len(member.work.mail)
        self._tally.loss(sent)
        self._say_lost(member, error, sent, again=again, at_once=at_once, waits=waits)
        self._restarts += again and not waits
        try:
            if at_once:
                self._revive(member, flight, replays)
                return
            if again:
                member.at_work = False
                self._processes.start_again(member)
        except (OSError, ClusterError) as refused:  # the machine or the cluster starts nothing more
            log.warning("%s cannot be started again (%s): the others go on", member.name, refused)
            again = False
        if not again:
            member.gone, member.at_work = True, False
        requests = member.work.take_all()
        for request in requests:
            del self._owner[request.key]
        self._assign(requests)

    def _say_lost(
        self, member: Member, error: Exception, sent: int, *, again: bool, at_once: bool, waits: bool
    ) -> None:
        others = any(not other.gone for other in self._processes.members if other is not member)
        after = ", and it is not started again: cluster.max_engine_restarts is used up"
        if waits:
            after = ", and it is started when there is one"
        elif again:
            after = f", and it is started again (restart {self._restarts + 1} of at most {self.limits.restarts})"
        if self.lockstep and not at_once and member.at_work:
            after += ". The others do not wait for it: from here on what comes out depends on when it was lost"
        by = " by the other engines" if others and not at_once else ""
        log.warning("%s is lost (%s); %d unfinished responses are made again%s%s", member.name, error, sent, by, after)

    def _revive(self, member: Member, flight: Flight | None, replays: bool) -> None:
        """Lockstep: the same work at the same place, so that what comes out does not tell that it was gone."""
        member.come_back(replays=replays)
        self._owner.update((key, (member.index, member.incarnation)) for key in member.work.owned)
        if flight is None:
            return
        if flight.method == "checksums" or (replays and flight.method in ("turn", "abort")):
            self._processes.ask(member, flight.method, *flight.args)
        elif flight.method == "turn":
            self._ask_turn(member)
