"""The engine for a vLLM server that runs outside of dapo: tokens in and out over HTTP, weights through a shared folder.

The trainer's side keeps nothing that the server could lose: what is unfinished when a server dies is sent again from
its request's prefix to the server that comes back, after the last published weights. A slow server is waited for
as long as it lives, a dead one for ``patience`` seconds.
"""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from dapo.engines.inbox import EngineInbox, check_idle
from dapo.engines.requests import Gate
from dapo.engines.stops import StopStrings
from dapo.engines.vllm_dispatch import Dispatcher
from dapo.engines.vllm_http import Unreachable, Wire
from dapo.engines.vllm_lease import TRAINER, ServerLease
from dapo.engines.vllm_route import PublishedFolder
from dapo.engines.vllm_startup import ServerFacts, inspect
from dapo.engines.vllm_sums import together
from dapo.errors import EngineError
from dapo.http import Background
from dapo.models.weight_files import read_shapes
from dapo.types.batch import Key, Metrics, Response, SampleRequest, TensorSum, Ticket
from dapo.weights.routes import unknown_route
from dapo.weights.sets import SETS

_DEFAULT_SLOTS = 256
_RELEASE_SECONDS = 2.0
_SUM_SECONDS = 600.0
_T = TypeVar("_T")


class ServerEngine:
    """An ``Engine`` (``dapo.types.protocols``) over a vLLM server's HTTP routes.

    The clock is an estimate from below: a response that was sent at clock c and ends with n tokens says that at least
    c + n steps were taken. It is exact while the server decodes all that it was sent at once (``slots`` up to its
    ``--max-num-seqs``) and nothing is continued from lost work. ``busy_slot_steps`` are the tokens that arrived.

    Args:
        address: Such as ``http://127.0.0.1:8000``.
        work: What this trainer works on, such as its run folder; an error of another trainer names it.
        vocabulary: Rows of the model's embedding.
        longest: Tokens of prompt and response together that the run may ask for.
        config: The model's configuration, compared with the server's; None: not compared.
        slots: Requests at the server at once; the rest wait here.
        patience: Seconds that a server may be away, at the start and later.
        api_key: Sent with every request.
        heartbeat: Seconds of silence after which the server is asked whether it is well.
        strings: Finds stop strings in what the server made; None: no request may have any.

    Raises:
        EngineError: The server cannot be reached or cannot serve this run; each reason has its message.
    """

    shares_weights = False

    def __init__(
        self,
        address: str,
        work: str,
        *,
        vocabulary: int,
        longest: int,
        config: Mapping[str, Any] | None = None,
        slots: int | None = None,
        patience: float = 600.0,
        api_key: str | None = None,
        heartbeat: float = 5.0,
        strings: StopStrings | None = None,
    ) -> None:
        self.capacity = slots or _DEFAULT_SLOTS
        self.version = 0
        self._name = f"{TRAINER}{secrets.token_hex(4)}"
        self._published: PublishedFolder | None = None
        self._clock_seen = -1
        self._busy, self._since = 0.0, math.inf
        self._shapes: dict[str, list[int]] = {}
        self._patience = patience
        self._wire = Wire(address, api_key)
        self._lease = ServerLease(self._wire, self._name, work)
        self._background = Background(f"{self._name} server")
        try:
            asked = inspect(
                self._wire, self._lease, longest=longest, vocabulary=vocabulary, patience=patience, config=config
            )
            facts = self._call(asked)
            self._inbox = EngineInbox(Gate(vocabulary, facts.context, strings))
            self._dispatcher = self._call(self._dispatch(facts, heartbeat, strings))
        except BaseException:
            self._call(self._give_up())
            self._background.stop()
            raise

    @property
    def clock(self) -> int:
        """See the class."""
        self._clock_seen = self._dispatcher.clock  # which may grow between a poll's end and this look
        return self._clock_seen

    def submit(self, requests: Sequence[SampleRequest]) -> None:
        """Hand requests over, in order of (priority, arrival).

        Raises:
            EngineError: A key that is here already, a request that does not fit the model, or nothing published yet.
        """
        self._raise_failure()
        if self._published is None:
            raise EngineError(
                "requests came before the first publish; the server may hold another run's weights: publish first"
            )
        accepted = self._inbox.accept(requests, self.clock)
        self._call(self._dispatcher.submit([self._inbox.queue.pop() for _ in accepted]))
        self._mark()

    def poll(self, timeout: float | None = None) -> list[Response]:
        """Return ended responses; waits for them up to ``timeout`` seconds, with None until one has ended.

        Raises:
            EngineError: The server refused a request, or was away for too long. ``abort`` works then, too.
        """
        events = self._inbox.take_ended()
        if not events:
            self._call(self._dispatcher.wait(timeout))
        self._mark()
        # Taken here and not in the other thread: Ctrl-C while this thread waits must not lose events.
        ended = self._dispatcher.ended
        while ended:
            events.append(ended.popleft())
        if not events:
            self._raise_failure()
            for error in list(self._dispatcher.refused.values()):
                raise error
            return []
        if self._dispatcher.clock == self._clock_seen:
            self._dispatcher.clock += 1  # whoever waits for a later step while responses end shall see one
        self._clock_seen = self._dispatcher.clock
        return self._inbox.hand_out(events)

    def abort(self, keys: Iterable[Key] | None = None) -> list[Response]:
        """Take back responses with the tokens made so far. Keys unknown here are ignored.

        While the server is away they come back empty: what it had made is gone, or not worth the wait.
        """
        named = self._inbox.names(keys)
        events, _ = self._inbox.take_back(named, self.clock)
        events += self._call(self._dispatcher.abort(named))
        self._mark()
        return sorted(self._inbox.hand_out(events), key=lambda event: event.key)

    def load(self, ticket: Ticket, in_flight: Literal["abort", "keep"] = "abort") -> None:
        """Hand the ticket's folder to the server, and return when it runs these weights.

        With ``keep``, responses under way pause meanwhile and go on under the new weights.

        Raises:
            EngineError: ``abort`` while responses are unfinished; a server that does not take the weights, or is away.
        """
        self._check_open()
        check_idle(self._dispatcher.unfinished, in_flight)
        self._raise_failure()
        if ticket.route != "folder":
            raise unknown_route(ticket, "folder")
        folder = Path(ticket.address)
        try:
            self._shapes = read_shapes(folder)
        except FileNotFoundError as error:
            raise EngineError(f"the weights of version {ticket.version} cannot be loaded: {error}") from error
        label = f"{self._name}-{folder.name.removeprefix(SETS)}"  # by which the server knows whose weights it holds
        self._published = PublishedFolder(label, ticket.version, folder)  # what a server that was away has to be given
        self._call(self._dispatcher.publish(self._published))
        self.version = ticket.version

    def checksums(self) -> Mapping[str, TensorSum] | None:
        """Return checksums of the weights that the server's workers compute with; None if they lack dapo's extension.

        Raises:
            EngineError: Its model has tensors for which nothing was published, or derived some from old weights.
        """
        self._raise_failure()
        answers = self._call(self._sums())
        return None if answers is None else together(answers, f"the vLLM server at {self._wire.address}")

    def busy_seconds(self) -> float:
        """Seconds in which it had responses under way, as far as this process has seen."""
        return self._busy

    def _mark(self) -> None:
        now = time.monotonic()
        self._busy += max(0.0, now - self._since)
        self._since = now if self._dispatcher.unfinished else math.inf

    def sleep(self) -> None:
        """Nothing to hand back: the server's memory is the server's."""

    def stats(self) -> Metrics:
        """Counters since construction; steps are estimates, see the class."""
        counts, steps = self._dispatcher.counts, self.clock
        return {
            "decode_steps": float(steps),
            "generated_tokens": float(counts["generated_tokens"]),
            "prefill_tokens": float(counts["prefill_tokens"]),
            "slot_steps": float(steps * self.capacity),
            "busy_slot_steps": float(counts["generated_tokens"]),
        }

    def close(self) -> None:
        """Drop everything unfinished."""
        if self._background.closed:
            return
        self._call(self._dispatcher.close())
        self._background.stop()

    # ------------------------------------------------------------------ the other thread

    async def _give_up(self) -> None:
        await self._lease.release(_RELEASE_SECONDS)
        await self._wire.close()

    async def _dispatch(self, facts: ServerFacts, heartbeat: float, strings: StopStrings | None) -> Dispatcher:
        return Dispatcher(
            self._wire,
            name=self._name,
            slots=self.capacity,
            patience=self._patience,
            heartbeat=heartbeat,
            facts=facts,
            lease=self._lease,
            strings=strings,
        )

    async def _sums(self) -> list[Any] | None:
        """Return checksums of the published weights; None if they cannot be had, or the server was started again
        meanwhile."""
        try:
            answers = await self._wire.workers("weight_sums", max(self._patience, _SUM_SECONDS), shapes=self._shapes)
            label = await self._wire.weight_label(self._patience)
        except Unreachable:
            return None  # whoever samples next waits for it, and it gets the published weights again
        return answers if self._published is not None and label == self._published.label else None

    def _raise_failure(self) -> None:
        if self._dispatcher.failure is not None:
            raise self._dispatcher.failure

    def _call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run a coroutine in the loop's thread and wait for it."""
        try:
            self._check_open()
        except EngineError:
            work.close()
            raise
        return self._background.call(work)

    def _check_open(self) -> None:
        if self._background.closed:
            raise EngineError("the engine is closed; make a new one")
