"""Start, call, restart and end the processes of a pool's engines. The pool decides what they work at."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dapo.engines.member import Flight, Member, NoPlaceError, PoolLimits
from dapo.errors import ClusterError, EngineError, LearnerLost
from dapo.processes.transport import HostLost, HostSpec, Transport
from dapo.types.batch import Key, Metrics, TensorSum
from dapo.weights.exchange import WeightExchange

log = logging.getLogger(__name__)

COUNTERS = ("decode_steps", "generated_tokens", "prefill_tokens", "slot_steps", "busy_slot_steps")
_GOODBYE = 10.0  # seconds for engines to hand back what they hold


class EngineProcesses:
    """The engines of a pool, and the calls under way at each.

    Args:
        transport: where hosts live.
        specs: of the hosts.
        limits: how long they are waited for.
        lost: told of an engine that is gone, with the reason, and with the call that it did not answer (None: it had
            none). What is to become of it is decided there.
        now: seconds that only grow.
        exchange: from which the engines have their weights; it gets to know them here.
        journals: engines that come back shall be led to where they were.
    """

    def __init__(
        self,
        transport: Transport,
        specs: Sequence[HostSpec],
        limits: PoolLimits,
        lost: Callable[[Member, Exception, Flight | None], None],
        now: Callable[[], float],
        exchange: WeightExchange,
        *,
        journals: bool,
    ) -> None:
        self.exchange = exchange
        self.members = [
            Member(n, spec, transport, limits, exchange, now, journals=journals) for n, spec in enumerate(specs)
        ]
        exchange.join(self.members)
        self.flying: dict[int, Member] = {}  # the one that was asked first comes first
        self._starting: dict[int, Member] = {}
        self._transport, self._limits, self._lost, self._now = transport, limits, lost, now

    def open(self) -> None:
        """Start all engines at the same time, and wait for them.

        Raises:
            EngineError: one does not start, or is lost twice while it does.
            Exception: what making one raised.
        """
        for member in self.members:
            member.start()
        lost = self._stepped_in(self.members)
        for member, error in lost.items():
            if not self._limits.restarts:
                raise EngineError(f"an engine did not start: {error}") from error
            log.warning("%s is lost while it starts (%s); it is started once more", member.name, error)
            member.end_host()
            try:
                member.start()
            except (OSError, ClusterError):  # the machine or the cluster starts nothing more
                raise EngineError(f"an engine did not start: {error}") from error
        for error in self._stepped_in(list(lost)).values():
            raise EngineError(f"an engine did not start, twice: {error}") from error

    def _stepped_in(self, members: Sequence[Member]) -> dict[Member, HostLost]:
        """Wait until they have started; those that were lost meanwhile, which may be an accident.

        Raises:
            EngineError: one does not start in time.
            Exception: what making one raised, which it would raise again.
        """
        calls = [member.opening.calls[-1][1] for member in members]
        ready = set(self._transport.wait(calls, every=True, timeout=self._limits.start))
        if late := [member.name for number, member in enumerate(members) if number not in ready]:
            raise EngineError(
                f"{', '.join(late[:4])} did not start within {self._limits.start:g} s (cluster.start_timeout)"
            )
        lost = {}
        for member in members:
            try:
                member.step_in()
                log.info("%s", member)
            except HostLost as error:
                lost[member] = error
        return lost

    def stats(self) -> Metrics:
        """Return the counters, summed over engines and their earlier incarnations."""
        total = Counter[str]()
        for member in self.members:
            total.update(member.counts.before)
            total.update(member.counts.own)
        return {name: float(total[name]) for name in COUNTERS}

    def at_work(self) -> list[Member]:
        """Return the engines that accept requests."""
        return [member for member in self.members if member.at_work]

    def open_waiting(self) -> list[Member]:
        """Give the newest weights to engines that waited for some, and return these engines."""
        waiting = [member for member in self._starting.values() if member.stands]
        for member in waiting:
            member.open_with(self.exchange.newest)
        return waiting

    def are_opening(self, members: Sequence[Member]) -> bool:
        """Return whether one of them has not taken what it was given."""
        return any(member.index in self._starting and member.opening.calls for member in members)

    def all_wait(self) -> bool:
        """Return whether no engine is at work, and those that start have to wait for the next weights."""
        return bool(self._starting) and not self.at_work() and all(one.stands for one in self._starting.values())

    def rest(self, until: float, why: str) -> None:
        """Sleep until a time at which an engine may go on.

        Raises:
            EngineError: there is no such time: no weights are published meanwhile.
        """
        if math.isinf(until):
            raise EngineError(
                f"every engine of the pool was lost while the learner worked ({why}), and weights that travel by "
                f"{self.exchange.newest_route} cannot be had before it publishes: resume, or set "
                "rollout.weight_transfer=folder"
            )
        time.sleep(max(0.0, until - self._now()))

    def in_common(self, told: Mapping[int, Mapping[str, TensorSum] | None]) -> Mapping[str, TensorSum] | None:
        """Return the checksums that all engines have.

        Raises:
            EngineError: they differ.
        """
        found = {index: sums for index, sums in told.items() if sums is not None}
        for index in found:
            first = next(iter(found))
            stale = sorted(name for name, one in found[first].items() if found[index].get(name) != one)
            if stale:
                names = f"{self.members[first].name} and {self.members[index].name}"
                raise EngineError(
                    f"{names} of the pool hold different weights: {len(stale)} tensors differ ({', '.join(stale[:3])})"
                )
        return next(iter(found.values()), None)

    def nobody_left(self) -> bool:
        """Return whether no engine is at work and none starts."""
        return all(member.gone for member in self.members)

    def start_again(self, member: Member) -> None:
        """Start an engine in the background: it is at work when it has the newest weights."""
        member.start()
        self._starting[member.index] = member

    def ask(self, member: Member, method: str, *args: Any) -> None:
        """Begin a call; ``hear`` returns its answer."""
        member.ask(method, *args)
        self.flying[member.index] = member

    def hear(self, until: float = math.inf) -> list[tuple[Member, Flight, Any]]:
        """Wait until something happens, at most until then: calls that were answered, with their answers.

        An answer may be an exception: the engine refuses, and lives on. What is overdue is lost.

        Raises:
            LearnerLost: an engine wanted weights that were to be published again.
        """
        starting = [member for member in self._starting.values() if member.opening.calls]
        flying = list(self.flying.values())
        everyone = starting + flying
        calls = [member.opening.calls[-1][1] for member in starting]
        calls += [member.flight.call for member in flying if member.flight is not None]
        patience = min([until, *(member.due for member in everyone)]) - self._now()
        ready = self._transport.wait(calls, timeout=None if math.isinf(patience) else max(0.0, patience))
        landed = []
        for index in ready:
            member, flight = everyone[index], everyone[index].flight
            try:
                if index < len(starting):
                    self._step_in(member)
                elif flight is not None:
                    del self.flying[member.index]
                    landed.append((member, flight, member.land()))
            except LearnerLost:  # asked for weights: the engine is well
                raise
            except Exception as error:
                self.give_up(member, error, flight)
        heard = {everyone[index].index for index in ready}
        for member in everyone:
            if member.index in heard or (late := member.overdue()) is None:
                continue
            if isinstance(late, NoPlaceError) and member.flight is None and self.at_work():
                member.wait_on()  # no request waits for it
            else:
                self.give_up(member, late, member.flight)
        return landed

    def give_up(self, member: Member, why: Exception, flight: Flight | None) -> None:
        """End the process, frozen or not, and report the loss to the pool."""
        self.flying.pop(member.index, None)
        self._starting.pop(member.index, None)
        member.end_host()
        self._lost(member, why, flight)

    def close(self) -> None:
        """Let the engines hand back what they hold, and end their hosts."""
        hosts = [member.host for member in self.members if member.host is not None]
        calls = [self._transport.call(host, "close") for host in hosts]
        self._transport.wait(calls, every=True, timeout=_GOODBYE)
        self._transport.close()
        for member in self.members:
            member.host, member.gone, member.at_work = None, True, False
            member.work.take_all()
            member.flight = None
        self.flying, self._starting = {}, {}

    def _step_in(self, member: Member) -> None:
        if member.step_in():
            del self._starting[member.index]


def keys_of(flight: Flight | None) -> list[Key]:
    """Return the keys that an ``abort`` asked for."""
    return list(flight.args[0]) if flight is not None and flight.method == "abort" else []
