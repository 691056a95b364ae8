"""Promises of every engine about keys: none twice, a list as a whole or not at all, and all come back.

Engines keep them by an :class:`EngineInbox`; a pool, which keeps its requests by member, uses the functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager

from dapo.engines.requests import Gate, Queue, ended_before
from dapo.errors import DapoError, EngineError, of_the_machine
from dapo.types.batch import Key, Response, SampleRequest


def check_requests(requests: Sequence[SampleRequest], gate: Gate, present: Collection[Key]) -> None:
    """Look at all ``requests`` before any is taken: ``submit`` takes a list whole or leaves nothing of it behind.

    Args:
        requests: As they came.
        gate: Of the model.
        present: Keys that were submitted and have not come back yet, ended ones included.

    Raises:
        EngineError: A key that is here already or stands twice in the list, or a request that does not fit the model.
    """
    seen: set[Key] = set()
    for request in requests:
        gate.check(request)
        if request.key in present or request.key in seen:
            raise EngineError(f"request {request.key} was submitted twice; poll or abort the first one before")
        seen.add(request.key)


def check_idle(unfinished: int, in_flight: str) -> None:
    """Before new weights.

    Raises:
        EngineError: ``in_flight`` is ``abort`` and responses are unfinished.
    """
    if in_flight == "abort" and unfinished:
        raise EngineError(
            f"new weights arrived while {unfinished} responses are unfinished; call abort() first and submit them "
            "again with their prefix, or load with in_flight='keep'"
        )


@contextmanager
def lost_to_the_machine() -> Iterator[None]:
    """Turn the machine's refusals during computation into the loss of the engine; ``abort`` still returns all requests.

    Raises:
        EngineError: memory, threads or disk ran out.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, DapoError) and (told := of_the_machine(error, "making responses")):
            raise EngineError(str(told)) from error
        raise


class EngineInbox:
    """Waiting requests, and responses that ended before they were asked for, of one engine."""

    def __init__(self, gate: Gate) -> None:
        self.queue = Queue()
        self._gate = gate
        self._present: set[Key] = set()  # submitted, and not handed out yet
        self._ended: list[Response] = []  # of these, what the engine has no more to do with

    @property
    def unfinished(self) -> int:
        """Responses that wait or are being made."""
        return len(self._present) - len(self._ended)

    def accept(self, requests: Sequence[SampleRequest], tick: int) -> list[SampleRequest]:
        """Queue ``requests``; returns those that wait now (the others' prefix is whole).

        Raises:
            EngineError: See :func:`check_requests`; nothing is queued then.
        """
        check_requests(requests, self._gate, self._present)
        waiting = []
        for request in requests:
            self._present.add(request.key)
            done = ended_before(request, tick, self._gate.strings)
            if done is not None:
                self._ended.append(done)
                continue
            self.queue.push(request)
            waiting.append(request)
        return waiting

    def keep(self, events: Iterable[Response]) -> None:
        """Keep responses that ended and cannot be handed out yet."""
        self._ended += events

    def take_ended(self) -> list[Response]:
        """Return responses that ended without being decoded, each once."""
        events, self._ended = self._ended, []
        return events

    def hand_out(self, events: list[Response]) -> list[Response]:
        """``events`` as ``poll`` returns them, ordered by (tick, key); their keys are free again."""
        self._present.difference_update(event.key for event in events)
        return sorted(events, key=lambda event: (event.tick, event.key))

    def names(self, keys: Iterable[Key] | None) -> set[Key]:
        """Return the keys that an ``abort`` means: None is everything that has not come back."""
        return set(self._present) if keys is None else set(keys)

    def take_back(self, named: set[Key], tick: int) -> tuple[list[Response], list[SampleRequest]]:
        """Return what ``abort`` can answer of ``named`` without the engine, and the requests that waited."""
        events = [event for event in self._ended if event.key in named]
        self._ended = [event for event in self._ended if event.key not in named]
        waited = self.queue.take_out(named)
        events += [Response.empty(request.key, tick=tick) for request in waited]
        return events, waited
