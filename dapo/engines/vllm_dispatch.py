"""Keeps a vLLM server busy, and in possession of the right weights, whatever happens to it. Runs in one asyncio loop.

Every response is in exactly one place: waiting, in flight (one POST), ended, or refused. Every set of published
weights has a label that no other set and no other trainer uses. The server is *well* while it is known to hold the
weights wanted; only then is anything sent. Whatever casts doubt on that (a broken connection, an ill server, tokens
with a strange label, new weights) starts ``_mend``, which alone makes the server well again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from dapo.engines.requests import Queue, sequence_of
from dapo.engines.stops import StopStrings
from dapo.engines.vllm_http import (
    ABORT,
    GENERATE,
    LATER,
    ServerResponse,
    Unreachable,
    Wire,
    generate_body,
    refusal,
    words,
)
from dapo.engines.vllm_lease import ServerLease
from dapo.engines.vllm_route import PublishedFolder, ServerWeights
from dapo.engines.vllm_startup import ServerFacts
from dapo.engines.vllm_waiting import AGAIN, Outage
from dapo.errors import EngineError
from dapo.types.batch import Key, Response, SampleRequest
from dapo.types.enums import FinishReason

log = logging.getLogger(__name__)

_MOST_LOSSES = 5  # of one request while the server is well: something on the way drops it, and always will
_MOST_DEATHS = 5  # of the server with the same request in flight: the request may be what kills it
_FIRST_PAUSE = 0.1  # seconds; three times as long after each further loss of the same request
_LOAD_SECONDS = 600.0  # a server that takes longer over new weights hangs
_RELEASE_SECONDS = 2.0
_ABORT_AGAIN = 0.5  # seconds; an abort that overtakes its request finds nothing to abort
_ABORT_PATIENCE = 5.0  # seconds that an abort waits for a server in doubt before it gives the partial tokens up


@dataclass(slots=True)
class _Flight:
    request: SampleRequest
    id: str
    started: int  # the clock when it was sent
    task: asyncio.Task[None] | None = None


class Dispatcher:
    """See the module. All methods and attributes belong to the loop's thread, except ``ended.popleft``.

    Args:
        wire: To the server.
        name: Of this trainer among those that may have used the server; begins labels and request ids.
        slots: Requests in flight at once.
        patience: Seconds that a server may be away.
        heartbeat: Seconds of silence after which the server is asked whether it is well.
        facts: What the start-up checks found out about the server.
        lease: This trainer's on the server; renewed here.
        strings: Finds stop strings in what the server made; None: no request has any.
    """

    def __init__(
        self,
        wire: Wire,
        *,
        name: str,
        slots: int,
        patience: float,
        heartbeat: float,
        facts: ServerFacts,
        lease: ServerLease,
        strings: StopStrings | None = None,
    ) -> None:
        self.waiting, self.flights = Queue(), dict[Key, _Flight]()
        self.ended, self.refused = deque[Response](), dict[Key, EngineError]()
        self.failure: EngineError | None = None
        self.clock = 0
        self.counts = Counter[str]()
        self._wire, self._name, self._slots, self._facts = wire, name, slots, facts
        self._patience, self._heartbeat, self._strings = patience, heartbeat, strings
        self._wanted: PublishedFolder | None = None
        self._loaded: PublishedFolder | None = None
        self._published: dict[str, int] = {}  # version by label
        self._well = False
        self._mending: asyncio.Task[None] | None = None
        self._route, self._lease = ServerWeights(wire), lease
        self._aborting: set[Key] = set()
        self._losses = Counter[Key]()  # since the server was started
        self._deaths = Counter[Key]()
        self._sent = 0
        self._news = asyncio.Event()
        self._last_news = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._start(self._watch())

    # ------------------------------------------------------------------ what the engine asks for

    @property
    def unfinished(self) -> int:
        """Responses that have not ended."""
        return len(self.waiting) + len(self.flights) + len(self.refused)

    async def submit(self, requests: list[SampleRequest]) -> None:
        for request in requests:
            self.waiting.push(request)
        self._fill()

    async def wait(self, timeout: float | None) -> None:
        """Until a response has ended, something is wrong, or nothing is unfinished."""
        with suppress(TimeoutError):
            await self._until(lambda: bool(self.ended or self.failure or self.refused or not self.unfinished), timeout)

    async def publish(self, weights: PublishedFolder) -> None:
        """Publish ``weights`` and return when the server holds them."""
        self._published[weights.label] = weights.version
        self._wanted = weights
        self._doubt("new weights")
        await self._until(lambda: self.failure is not None or (self._loaded is weights and self._well), None)
        if self.failure is not None:
            raise self.failure

    async def abort(self, named: set[Key]) -> list[Response]:
        taken = [request.key for request in self.waiting.take_out(named)]
        taken += [key for key in list(self.refused) if key in named and self.refused.pop(key)]
        for key in taken:
            self._forget(key)
        self._aborting |= named & self.flights.keys()
        try:
            await self._abort_flights()
        finally:
            self._aborting.clear()
        events = [Response.empty(key, tick=self.clock) for key in taken]
        events += [event for event in self.ended if event.key in named]
        kept = [event for event in self.ended if event.key not in named]
        self.ended.clear()
        self.ended.extend(kept)
        self._fill()
        return events

    async def close(self) -> None:
        """Let go of everything. A server aborts requests whose connection is gone."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._lease.release(_RELEASE_SECONDS)
        await self._wire.close()

    # ------------------------------------------------------------------ one request

    def _fill(self) -> None:
        """Send what waits, as far as there are slots."""
        while self._well and self.failure is None and len(self.waiting) and len(self.flights) < self._slots:
            request = self.waiting.pop()
            self._sent += 1
            flight = _Flight(request, f"{self._name}-{self._sent}", self.clock)
            self.flights[request.key] = flight
            flight.task = self._start(self._fly(flight))

    async def _fly(self, flight: _Flight) -> None:
        """One POST, from its sending to the response's end or loss."""
        body = generate_body(flight.request, flight.id, priority=self._facts.priority)
        try:
            status, payload = await self._wire.call("POST", GENERATE, body, tokens=flight.request.sampling.max_tokens)
        except Unreachable as error:
            return self._lose(flight, str(error))
        self._last_news = asyncio.get_running_loop().time()
        if self.flights.get(flight.request.key) is not flight:
            return None  # taken back in the meantime
        if status != 200:
            return await self._refuse(flight, status, payload)
        try:
            answer = ServerResponse.read(payload).up_to_stop(flight.request, self._strings)
        except ValueError as error:
            return self._lose(flight, f"an answer that cannot be read: {error}")
        versions = answer.versions(self._published)
        if versions is None:
            return self._lose(flight, f"tokens of weights {answer.labels}, which were never published")
        if answer.finish == "abort" and flight.request.key not in self._aborting:
            return self._lose(flight, "the server aborted a request unasked")
        if (fault := answer.fault(flight.request, self._facts.vocabulary, self._facts.context)) is not None:
            return self._lose(flight, fault)
        (finish, reason), made = answer.ended(), answer.finite
        self.clock = max(self.clock, flight.started + made)
        self.counts["generated_tokens"] += made
        if len(versions):  # else it never ran
            changes = np.flatnonzero(np.diff(versions[:made])) + 1  # what stood before each was computed anew
            starts = len(sequence_of(flight.request)) + np.concatenate([[0], changes])
            self.counts["prefill_tokens"] += int(starts.sum()) - answer.cached
        arrays = (answer.token_ids[:made], answer.logprobs[:made], versions[:made])
        return self._end(Response(*arrays, finish, key=flight.request.key, tick=self.clock, reason=reason))

    async def _refuse(self, flight: _Flight, status: int, payload: Any) -> None:
        """Handle an answer that is not 200. Below 500 the request is at fault; with 500 the request or the server,
        which is asked."""
        key, said = flight.request.key, refusal(self._wire.address, GENERATE, status, payload)
        if status > 500 or status in LATER:
            return self._lose(flight, f"{status}: {words(payload)}")
        if status < 500:
            del self.flights[key]
            self.refused[key] = EngineError(f"request {key} ({flight.id}) was refused: {said}")
            self._fill()
            return self._tell()
        believed = self._loaded
        try:
            label = await self._wire.weight_label(self._patience)
        except (Unreachable, EngineError) as error:
            return self._lose(flight, f"{status}: {words(payload)}; then {error}")
        if believed is None or label != believed.label:
            return self._lose(flight, f"{status}: {words(payload)}")
        return self._fail(key, said)

    def _fail(self, key: Key, reason: str) -> None:
        self._end(Response.empty(key, FinishReason.FAILED, tick=self.clock, reason=reason))

    def _forget(self, key: Key) -> None:
        self._losses.pop(key, None)
        self._deaths.pop(key, None)

    def _end(self, event: Response) -> None:
        self.flights.pop(event.key, None)
        self._forget(event.key)
        self.ended.append(event)
        self._fill()
        self._tell()

    def _lose(self, flight: _Flight, reason: str) -> None:
        """Send a request again once the server is well, since it failed through no fault of its own."""
        key = flight.request.key
        if self.flights.get(key) is not flight:
            return  # taken back in the meantime
        self._losses[key] += 1
        if key in self._aborting:
            self._end(Response.empty(key, tick=self.clock))
        elif self._losses[key] > _MOST_LOSSES:
            reason = f"sent {self._losses[key]} times to a server that stays well, and lost each time: {reason}"
            self._fail(key, reason)
        else:
            del self.flights[key]
            self.waiting.push_front([flight.request])  # it has waited already
        self._doubt(reason)

    def _ground(self) -> None:
        """Take everything in flight back: a server that is not the one it was knows nothing of it, or wrong things."""
        flights = list(self.flights.values())
        self.flights.clear()
        for flight in flights:
            if flight.task is not None:
                flight.task.cancel()
            if flight.request.key in self._aborting:
                self._end(Response.empty(flight.request.key, tick=self.clock))
        self.waiting.push_front([flight.request for flight in flights if flight.request.key not in self._aborting])
        self._tell()

    def _count_death(self) -> None:
        """Count a death of the server. A request that was there each time may be what kills it, or a neighbour of that.

        Either way the response fails and not the run, which would meet the same request again when it is resumed.
        """
        self._deaths.update({*self._losses, *self.flights})  # lost: when connections broke, before we knew why
        self._losses.clear()
        self._ground()
        suspects = {key for key, deaths in self._deaths.items() if deaths > _MOST_DEATHS}
        for request in self.waiting.take_out(suspects):
            deaths = self._deaths[request.key]
            self._fail(request.key, f"the server died {deaths} times while it was in flight; its log may say why")

    async def _abort_flights(self) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + _ABORT_PATIENCE
        while left := self._aborting & self.flights.keys():
            if self._well:
                give_up = loop.time() + _ABORT_PATIENCE
                ids = [self.flights[key].id for key in left]
                body = {"request_ids": [*ids, *(f"generate-tokens-{id}" for id in ids)]}  # the latter is vLLM's name
                try:
                    await self._wire.must("POST", ABORT, body, timeout=self._patience)
                except (Unreachable, EngineError) as error:
                    self._doubt(str(error))
            elif self.failure is not None or loop.time() > give_up:
                for key in left:
                    flight = self.flights[key]
                    if flight.task is not None:
                        flight.task.cancel()
                    self._end(Response.empty(key, tick=self.clock))
            with suppress(TimeoutError):
                await self._until(lambda: not self._aborting & self.flights.keys(), _ABORT_AGAIN)

    # ------------------------------------------------------------------ the server's health and weights

    def _doubt(self, reason: str) -> None:
        self._well = False
        if self._mending is None and self.failure is None and self._wanted is not None:
            self._mending = self._start(self._mend(reason))
        self._tell()

    async def _mend(self, reason: str) -> None:
        """Ask the server until it answers, and see to it that it holds the weights wanted."""
        try:
            if self._losses:  # one that is about to go down still calls itself well for a moment
                await asyncio.sleep(_FIRST_PAUSE * 3 ** (min(max(self._losses.values()), _MOST_LOSSES) - 1))
            outage = Outage(self._wire.address, self._patience)
            while not self._well:
                try:
                    await self._look(reason, outage)
                    outage.over()
                except Unreachable as error:
                    if not await outage.wait(str(error)):
                        raise self._gone(str(error)) from error
        except EngineError as error:
            self.failure = error
            self._ground()
        finally:
            self._mending = None
            self._tell()
        self._fill()

    async def _look(self, reason: str, outage: Outage) -> None:
        """Load the wanted weights if the server lacks them; it is well if it had them when we looked."""
        wanted = self._wanted
        assert wanted is not None
        label = await self._wire.weight_label(outage.timeout)
        if label == wanted.label:
            await self._route.resume(self._patience)
            self._loaded = wanted
            self._well = wanted is self._wanted
            return
        if self._loaded is not None and not label.startswith(self._name):
            self._lease.refuse_label(label)
            log.warning("the server at %s was started again (%s)", self._wire.address, reason)
            self.counts["restarts"] += 1
            self._route = ServerWeights(self._wire)
            self._count_death()
        elif self._loaded is None or label != self._loaded.label:  # a load of ours that ended half-way
            self._ground()
        await self._route.load(wanted, max(self._patience, _LOAD_SECONDS))
        self._loaded = wanted

    def _gone(self, last: str) -> EngineError:
        return EngineError(
            f"the vLLM server at {self._wire.address} did not answer for {self._patience:.0f} s (last: {last}) while "
            f"{self.unfinished} responses were under way. Start it again and continue with `dapo train --resume`: what "
            "was finished is kept. If it only needs longer to come back, raise `rollout.server.patience`"
        )

    async def _watch(self) -> None:
        """Keep the lease; and while nothing returns, look whether the server still is who it was."""
        loop, slow = asyncio.get_running_loop(), AGAIN
        while True:
            await asyncio.sleep(self._heartbeat)
            await self._lease.renew(self._patience)
            believed, silence = self._loaded, loop.time() - self._last_news
            if not (self.flights and self._well and believed) or silence < self._heartbeat:
                slow = AGAIN
                continue
            if silence > slow:
                slow = 2 * silence
                said = "the vLLM server at %s has ended none of %d responses for %.0f s; still waiting for it"
                log.warning(said, self._wire.address, len(self.flights), silence)
            try:
                label = await self._wire.weight_label(self._patience)
                paused = await self._wire.is_paused(self._patience)
            except (Unreachable, EngineError) as error:
                self._doubt(str(error))
                continue
            if self._well and self._loaded is believed and (paused or label != believed.label):
                self._doubt("it stands still" if paused else f"its weights are called {label!r}")

    # ------------------------------------------------------------------ the loop

    def _start(self, work: Any) -> asyncio.Task[None]:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self.failure is None:
            self.failure = EngineError(f"the dispatcher of {self._wire.address} broke: {error!r}; please report it")
            self.failure.__cause__ = error
            self._tell()

    def _tell(self) -> None:
        self._news.set()

    async def _until(self, done: Callable[[], bool], timeout: float | None) -> None:
        async with asyncio.timeout(timeout):
            while not done():
                self._news.clear()
                await self._news.wait()
