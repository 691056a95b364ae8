"""A simulated fleet of engines behind the ``Engine`` protocol: no model, no tokens drawn.

Event-driven, so a response costs a few heap operations however long it is. What is assumed:

- A fleet of E equal engines with S slots each. A decode step of an engine that holds r responses takes
  ``step_seconds + r * row_seconds``: reading the weights first, then each response's cache. It gives every one of them
  one token. When r changes, the rest goes at the new pace at once (not at the next step's boundary).
- A response that continues behind a prefix holds its engine up for ``prefill_seconds`` per token of the prefix, since
  new weights need a new cache. Prompts are short beside responses: their prefill costs nothing.
- A request goes to the engine with the fewest responses that has a free slot (ties: the first); each response on its
  own, so a group is spread over the fleet. When all slots are taken it waits in one queue, smallest priority first.
- Every length is given by (group, sample), so what is sampled does not depend on the schedule.
- Publishing weights and learning take no time.

Arrays and counters are in units of ``UNIT`` tokens, so that they stay small. The logical clock counts ticks of
simulated time (a quarter of a second): what ended within a tick comes back at its end; its slot is used again at once.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from dapo.rollout.inbox import check_idle, check_requests
from dapo.rollout.requests import Gate, ended_before
from dapo.types.batch import IntArray, Key, Metrics, SampleEvent, SampleRequest, Ticket
from dapo.types.enums import FinishReason

UNIT = 64
"""Tokens that one entry of an array stands for."""
LONGEST = 4096
"""Units: no response may be longer."""

_ANYTHING = Gate(2**62, None)  # no vocabulary, no positions: an empty prompt alone is refused

Lengths = Callable[[int], IntArray]
"""Group -> length of each response in units, int64 [responses of the group], each at least 1."""


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds an engine takes; the defaults are of the order of a 32-billion-parameter model on a few GPUs."""

    step_seconds: float = 0.015
    row_seconds: float = 0.00025
    prefill_seconds: float = 0.0001

    def unit_seconds(self, rows: int) -> float:
        """Seconds for ``UNIT`` decode steps of an engine with ``rows`` responses."""
        return UNIT * (self.step_seconds + rows * self.row_seconds)

    def best(self, slots: int) -> float:
        """Most units per second that an engine with this many slots makes: all of them taken."""
        return slots / self.unit_seconds(slots)


@dataclass(slots=True)
class _Row:
    """One response in a slot. ``start`` and ``end`` are on its engine's count of units per response."""

    request: SampleRequest
    start: float
    end: float


@dataclass(slots=True)
class _Machine:
    """One engine. All its responses advance together, so each ends at a fixed count of units, whatever the pace."""

    index: int
    time: float = 0.0  # up to which everything here is worked out
    units: float = 0.0  # made per response since the start
    stall: float = 0.0  # seconds of prefill still to do
    rows: dict[Key, _Row] = field(default_factory=dict)
    ends: list[tuple[float, Key]] = field(default_factory=list)  # heap; entries of aborted rows stay until met
    stamp: int = 0  # of the only valid entry in the fleet's heap


class SimulatedEngine:
    """See the module's description. Implements ``dapo.types.protocols.Engine``."""

    shares_weights = True

    def __init__(
        self, lengths: Lengths, *, engines: int, slots: int, speed: Speed | None = None, tick: float = 0.25
    ) -> None:
        """``tick``: seconds of simulated time per tick of the logical clock."""
        self.lengths, self.slots, self.speed, self.tick = lengths, slots, speed or Speed(), tick
        self.capacity = engines * slots
        self.clock = 0
        self.time = 0.0  # seconds
        self._pace = [self.speed.unit_seconds(rows) for rows in range(slots + 1)]
        self._machines = [_Machine(i) for i in range(engines)]
        self._queue: list[tuple[int, int, SampleRequest]] = []  # heap: priority, order of arrival
        self._arrivals = 0
        self._next: list[tuple[float, int, int]] = []  # heap: time of an engine's next end, index, stamp
        self._changed: set[int] = set()  # engines whose entry in _next is out of date
        self._places = [(0, i) for i in range(engines)]  # heap: responses, index; true only if that many are there
        self._rest: dict[Key, float] = {}  # part of a unit that an aborted response had made beyond its last whole one
        self._present: set[Key] = set()  # submitted, and not come back
        self._ended: list[SampleEvent] = []  # of these, what had nothing left to make
        self._live = 0
        self._busy = self._made = 0.0
        self._prefilled = 0
        self._zeros = np.zeros(LONGEST, np.int64)
        self._logprobs = np.full(LONGEST, -1.0, np.float32)
        self.version = 0
        self._versions = np.zeros(LONGEST, np.int32)

    # ------------------------------------------------------------------ the protocol

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        check_requests(requests, _ANYTHING, self._present)
        for request in requests:
            self._present.add(request.key)
            done = ended_before(request, self.clock)
            if done is not None:
                self._ended.append(done)
                continue
            heapq.heappush(self._queue, (request.priority, self._arrivals, request))
            self._arrivals += 1
        self._seat(self.time)

    def poll(self, timeout: float | None = None) -> list[SampleEvent]:
        """Work until the end of the first tick in which a response ends; empty when nothing is left."""
        if self._ended:
            return self._hand_out(self._take_ended(None))
        first = self._next_end()
        if first is None:
            return []
        clock = max(self.clock + 1, math.ceil(first / self.tick))
        if clock * self.tick < first:  # rounding
            clock += 1
        events: list[SampleEvent] = []
        while (end := self._next_end()) is not None and end <= clock * self.tick:
            events.append(self._end_one(clock))
        self._go_to(clock)
        events.sort(key=lambda event: event.key)
        return self._hand_out(events)

    def abort(self, keys: Iterable[Key] | None = None) -> list[SampleEvent]:
        wanted = None if keys is None else set(keys)
        events = self._take_ended(wanted)
        for machine in self._machines:
            gone = [key for key in machine.rows if wanted is None or key in wanted]
            if not gone:
                continue
            self._bring(machine, self.time)
            for key in gone:
                events.append(self._take_out(machine, key))
            self._left(machine)
        stay = []
        for entry in self._queue:
            if wanted is None or entry[2].key in wanted:
                events.append(self._event(entry[2].key, 0, FinishReason.ABORTED, self.clock))
            else:
                stay.append(entry)
        self._queue = stay
        heapq.heapify(self._queue)
        self._seat(self.time)
        return self._hand_out(sorted(events, key=lambda event: event.key))

    def _take_ended(self, wanted: set[Key] | None) -> list[SampleEvent]:
        """What ended because its prefix was whole, of the wanted keys (None: all)."""
        events = [event for event in self._ended if wanted is None or event.key in wanted]
        self._ended = [event for event in self._ended if wanted is not None and event.key not in wanted]
        return events

    def _hand_out(self, events: list[SampleEvent]) -> list[SampleEvent]:
        self._present.difference_update(event.key for event in events)
        return events

    def load(self, ticket: Ticket, in_flight: Literal["abort", "keep"] = "abort") -> None:
        """New weights, at no cost. Raises EngineError while responses decode: one in a slot has one version."""
        check_idle(self._live + len(self._queue), "abort")
        self.version = ticket.version
        self._versions = np.full(LONGEST, ticket.version, np.int32)

    def checksums(self) -> None:
        """There are no weights."""

    def sleep(self) -> None:
        """Holds nothing."""

    def stats(self) -> Metrics:
        """In units and slot-seconds: ``decode_steps`` is the clock, the slots' use is in seconds."""
        for machine in self._machines:
            self._bring(machine, self.time)
        return {
            "decode_steps": float(self.clock),
            "generated_tokens": self._made,
            "slot_steps": self.time * self.capacity,
            "busy_slot_steps": self._busy,
            "prefill_tokens": float(self._prefilled),
        }

    def close(self) -> None:
        pass

    # ------------------------------------------------------------------ simulated time

    def wait(self, clock: int) -> None:
        """Let time pass up to tick ``clock`` with nothing to do. Raises RuntimeError while responses decode."""
        if self._live:
            raise RuntimeError("responses decode: poll() lets time pass")
        self._go_to(max(clock, self.clock))

    @property
    def idle(self) -> bool:
        return not self._live

    @property
    def best(self) -> float:
        """Units per second of the whole fleet with every slot taken."""
        return len(self._machines) * self.speed.best(self.slots)

    def _go_to(self, clock: int) -> None:
        self.clock, self.time = clock, clock * self.tick

    def _bring(self, machine: _Machine, time: float) -> None:
        """Work out what the machine did up to ``time``; nothing may end before."""
        seconds = time - machine.time
        if seconds <= 0.0:
            return
        machine.time = time
        if rows := len(machine.rows):
            self._busy += rows * seconds
            stalled = min(machine.stall, seconds)
            machine.stall -= stalled
            units = (seconds - stalled) / self._pace[rows]
            machine.units += units
            self._made += rows * units
        else:
            machine.stall = max(0.0, machine.stall - seconds)

    def _next_end(self) -> float | None:
        """Time at which the next response ends; it is at the top of ``_next`` then."""
        for index in sorted(self._changed):
            machine = self._machines[index]
            machine.stamp += 1
            while machine.ends and not self._valid(machine, machine.ends[0]):
                heapq.heappop(machine.ends)
            if machine.ends:
                left = max(0.0, machine.ends[0][0] - machine.units) * self._pace[len(machine.rows)]
                heapq.heappush(self._next, (machine.time + machine.stall + left, index, machine.stamp))
        self._changed.clear()
        while self._next and self._next[0][2] != self._machines[self._next[0][1]].stamp:
            heapq.heappop(self._next)
        return self._next[0][0] if self._next else None

    @staticmethod
    def _valid(machine: _Machine, entry: tuple[float, Key]) -> bool:
        row = machine.rows.get(entry[1])
        return row is not None and row.end == entry[0]

    def _end_one(self, clock: int) -> SampleEvent:
        """The response at the top of ``_next`` ends; its slot goes to the queue."""
        time, index, _ = heapq.heappop(self._next)
        machine = self._machines[index]
        self._bring(machine, time)
        end, key = heapq.heappop(machine.ends)
        self._made += (end - machine.units) * len(machine.rows)  # rounding
        machine.units = end
        request = machine.rows.pop(key).request
        self._left(machine)
        self._live -= 1
        self._seat(time)
        length = int(self.lengths(key[-2])[key[-1]])
        made = min(length, request.sampling.max_tokens) - (len(request.prefix) if request.prefix else 0)
        finish = FinishReason.LENGTH if length >= request.sampling.max_tokens else FinishReason.STOP
        return self._event(key, made, finish, clock)

    # ------------------------------------------------------------------ slots

    def _seat(self, time: float) -> None:
        """Give free slots to the queue at ``time``."""
        while self._queue and (machine := self._place()) is not None:
            request = heapq.heappop(self._queue)[2]
            self._bring(machine, time)
            prefix = len(request.prefix) if request.prefix else 0
            rest = self._rest.pop(request.key, 0.0)
            length = min(int(self.lengths(request.key[-2])[request.key[-1]]), request.sampling.max_tokens)
            row = _Row(request, machine.units - rest, machine.units - rest + length - prefix)
            machine.rows[request.key] = row
            machine.stall += prefix * UNIT * self.speed.prefill_seconds
            self._prefilled += prefix
            self._live += 1
            heapq.heappush(machine.ends, (row.end, request.key))
            self._left(machine)

    def _place(self) -> _Machine | None:
        """The engine with the fewest responses that has a free slot."""
        places = self._places
        while places and len(self._machines[places[0][1]].rows) != places[0][0]:
            heapq.heappop(places)
        return self._machines[places[0][1]] if places else None

    def _left(self, machine: _Machine) -> None:
        """The number of responses of ``machine`` has changed."""
        self._changed.add(machine.index)
        if len(machine.rows) < self.slots:
            heapq.heappush(self._places, (len(machine.rows), machine.index))
        if len(self._places) > 8 * len(self._machines) + 64:
            self._places = [(len(m.rows), m.index) for m in self._machines if len(m.rows) < self.slots]
            heapq.heapify(self._places)

    def _take_out(self, machine: _Machine, key: Key) -> SampleEvent:
        """Abort one response: whole units come back, the part of a unit beyond them is kept for its return."""
        row = machine.rows.pop(key)
        self._live -= 1
        made = machine.units - row.start
        whole = max(0, min(int(made), round(row.end - row.start) - 1))
        self._rest[key] = made - whole
        return self._event(key, whole, FinishReason.ABORTED, self.clock)

    def _event(self, key: Key, made: int, finish: FinishReason, clock: int) -> SampleEvent:
        return SampleEvent(key, self._zeros[:made], self._logprobs[:made], self._versions[:made], finish, tick=clock)
