"""Play episodes on the machines of a cluster: each host of a transport holds an ``EnvironmentPool`` of one worker.

User code runs in that worker, behind its guard, as on the driver's machine; the host and the driver exchange checked
answers. Questions hold all earlier turns, so those of a host that is lost are asked again elsewhere.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dapo.environments.homes import Homes
from dapo.environments.pool import RETRIES, EnvironmentPool
from dapo.environments.worker import Load
from dapo.errors import EpisodeError
from dapo.processes.transport import Host, HostLost, HostSpec, Transport
from dapo.types.batch import Key, Metrics
from dapo.types.environment import Abilities, Answer, Question

log = logging.getLogger(__name__)

MOMENT = 0.02
"""Seconds that a host waits for an answer before it takes further questions."""
PATIENCE = 300.0
"""Seconds after which a host that does not answer is ended: it starts, or replaces its worker, in less."""
_MOST_FAILED_STARTS = 3  # of hosts, in a row


class EnvironmentHost:
    """The object of a host: a pool of one worker on its machine."""

    def __init__(self, what: Load, memory_mib: int | None, output: Path | None) -> None:
        self._pool = EnvironmentPool(what, workers=1, memory_mib=memory_mib, output=output)
        self._pool.start()

    def exchange(self, dropped: Sequence[Key], asked: Sequence[Question]) -> tuple[list[Answer], Metrics]:
        """Close episodes, take questions, and return the answers of the next moment and the pool's counters."""
        for key in dropped:
            self._pool.drop(key)
        for question in asked:
            self._pool.ask(question)
        return self._pool.poll(MOMENT), self._pool.counters()


@dataclass(slots=True)
class _Member:
    number: int
    host: Host
    call: Any = None  # under way; None: the host is idle
    since: float = 0.0  # monotonic time of that call
    dropped: list[Key] = field(default_factory=list)  # to be told
    queued: list[Question] = field(default_factory=list)  # to be told
    open: dict[Key, Question] = field(default_factory=dict)  # told, and not answered
    counters: Metrics = field(default_factory=dict)
    works: bool = False  # it has answered

    @property
    def load(self) -> int:
        return len(self.queued) + len(self.open)


class HostedPlayers:
    """Keep ``dapo.types.environment.Players`` on hosts of a transport.

    Args:
        transport: starts the hosts. It is closed with this object.
        names: of the hosts.
        what: the environment.
        abilities: what it can do, as a worker of the driver's machine found.
        memory_mib: memory limit of each worker; None: none.
        output: file for what environments print, on a file system that the machines share; each host adds its number.
    """

    def __init__(
        self,
        transport: Transport,
        names: Sequence[str],
        what: Load,
        abilities: Abilities,
        *,
        memory_mib: int | None = None,
        output: Path | None = None,
    ) -> None:
        self.abilities = abilities
        self._transport = transport
        self._specs = [
            HostSpec(name, EnvironmentHost, (what, memory_mib, _numbered(output, number)))
            for number, name in enumerate(names)
        ]
        self._members = [_Member(number, transport.start(spec)) for number, spec in enumerate(self._specs)]
        self._homes = Homes[int](grouped=abilities.compares)
        self._tries: Counter[Key] = Counter()
        self._done: list[Answer] = []
        self._lost: Counter[str] = Counter()  # counters of hosts that were lost
        self._failed_starts = 0

    def ask(self, question: Question) -> None:
        """Queue a question; it goes to the host of the episode or its group, else to the one with the least to do."""
        key = question.key
        home = self._homes.find(key)
        if home is None:
            held = self._homes.counts()
            home = min(self._members, key=lambda one: (one.load, held[one.number], one.number)).number
        self._homes.put(key, home)
        self._members[home].queued.append(question)
        self._send()

    def poll(self, timeout: float | None = None) -> list[Answer]:
        """Return answers. timeout 0: those that are there; None: wait until there is one, unless nothing was asked.

        Raises:
            EpisodeError: hosts no longer start.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._take(0.0)
        while not self._done and any(member.load for member in self._members):
            left = MOMENT if deadline is None else min(MOMENT, deadline - time.monotonic())
            if left <= 0:
                break
            self._take(left)
        done, self._done = self._done, []
        return done

    def drop(self, key: Key) -> None:
        """Close an episode, if there is one, and forget a question about it."""
        self._done = [answer for answer in self._done if answer.key != key]
        self._tries.pop(key, None)
        if (number := self._homes.pop(key)) is None:
            return
        member = self._members[number]
        member.queued = [question for question in member.queued if question.key != key]
        member.open.pop(key, None)
        member.dropped.append(key)
        self._send()

    def counters(self) -> Metrics:
        """Return counts since construction."""
        total = Counter(self._lost)
        for member in self._members:
            total.update(member.counters)  # type: ignore[arg-type]
        return {name: float(total[name]) for name in ("replayed", "timeouts")}

    def close(self) -> None:
        """End all hosts, with what they started."""
        self._transport.close()
        self._members = []

    # ------------------------------------------------------------------ hosts

    def _send(self) -> None:
        """Tell every idle host what it has not heard, and ask on where answers are due."""
        for member in self._members:
            if member.call is None and (member.dropped or member.load):
                dropped, asked = member.dropped, member.queued
                member.dropped, member.queued = [], []
                member.open |= {question.key: question for question in asked}
                member.since = time.monotonic()
                member.call = self._transport.call(member.host, "exchange", dropped, asked)

    def _take(self, seconds: float) -> None:
        """Take in what hosts answered, wait up to ``seconds`` for it, and replace those that are lost or stuck."""
        self._send()
        busy = [member for member in self._members if member.call is not None]
        if not busy:
            return
        ready = set(self._transport.wait([member.call for member in busy], timeout=seconds))
        for place, member in enumerate(busy):
            if place in ready:
                self._answered(member)
            elif time.monotonic() - member.since > PATIENCE:
                self._replace(member, f"no answer within {PATIENCE:g} s")
        self._send()

    def _answered(self, member: _Member) -> None:
        try:
            answers, counters = self._transport.get(member.call)
        except HostLost as error:
            self._replace(member, str(error))
            return
        except Exception as error:  # the host's object could not be made, or its pool gave up
            self._replace(member, f"{type(error).__name__}: {error}")
            return
        member.call, member.counters, member.works, self._failed_starts = None, counters, True, 0
        for answer in answers:
            if member.open.pop(answer.key, None) is not None:  # else it was dropped meanwhile
                self._tries.pop(answer.key, None)
                self._done.append(answer)

    def _replace(self, member: _Member, reason: str) -> None:
        """Start a host again in place of one that was lost; its questions are asked again.

        Raises:
            EpisodeError: hosts no longer start.
        """
        self._failed_starts += not member.works
        if self._failed_starts >= _MOST_FAILED_STARTS:
            raise EpisodeError(f"hosts for environments do not start: {reason}")
        log.warning("%s is started again: %s", self._specs[member.number].name, reason)
        self._lost.update(member.counters)  # type: ignore[arg-type]
        asked = [*member.open.values(), *member.queued]
        at_work = set(member.open if member.works else ())  # else none of them has seen a worker
        self._homes.lose(member.number)
        self._transport.kill(member.host)  # what is left of it may hold its place on the cluster
        host = self._transport.start(self._specs[member.number])
        self._members[member.number] = _Member(member.number, host)
        for question in asked:
            key = question.key
            self._tries[key] += key in at_work
            if self._tries[key] > RETRIES:
                self._done.append(Answer(key, failure=f"crash: {reason}"))
            else:
                self.ask(question)


def _numbered(output: Path | None, number: int) -> Path | None:
    return None if output is None else output.absolute().with_name(f"{output.stem}-{number}{output.suffix}")
