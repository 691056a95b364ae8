"""Play episodes in guarded worker processes, with a time limit for each call and a memory limit for each process.

All progress on the driver's side happens inside ``ask`` and ``poll``, in one thread. An episode stays with its worker,
and with its group where an environment compares: such a worker keeps an episode that ended until it is dropped.
When a worker is lost, its other episodes are played again elsewhere: a question has all turns that came before it.

==========================  ===========================================================
a call takes too long       that question failed ("timeout"); the worker is killed
a worker ends by itself     the question at work is tried again, ``RETRIES`` times
``MOST_ENDS`` in a row end  ``EpisodeError``: every try ends its worker
the others of that worker   are played again with their next question
==========================  ===========================================================
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

from dapo.environments.homes import Homes
from dapo.environments.messages import MAX_FRAME, Answered, Closed, FromWorker, ReadyEnvironment, Refused, read_messages
from dapo.environments.worker import CLOSING, Ask, Drop, Load
from dapo.errors import EpisodeError, RecipeError
from dapo.processes.guarded import GuardedProcess
from dapo.processes.wire import WireError
from dapo.processes.workers import MOST_ENDS, START_LIMIT, TICK, GuardedPool, GuardedWorker, Loading
from dapo.types.batch import Key, Metrics
from dapo.types.environment import Abilities, Answer, Question

log = logging.getLogger(__name__)

RETRIES = 2
"""Times that a question is asked again whose worker ended."""
_AT_ONCE = 64  # questions that a worker has at most
_AHEAD = 0.05  # seconds of work that a synchronous environment is given beyond the question at work
_SLACK = 2.0  # seconds that a worker has to report a time-out of its own


@dataclass(slots=True)
class _Pending:
    number: int
    key: Key
    question: Question | None  # None: close the episode
    tries: int = 0
    since: float = 0.0  # monotonic time at which it was sent, or at which the answer before it was heard


class _Worker(GuardedWorker):
    def __init__(self, process: GuardedProcess) -> None:
        super().__init__(process, MAX_FRAME)
        self.queue: deque[_Pending] = deque()
        self.sent: dict[int, _Pending] = {}
        self.held: dict[Key, int] = {}  # episodes -> turns that they answered
        self.pace = math.inf  # seconds that its last answer took


class EnvironmentPool(GuardedPool[_Worker, FromWorker, Answer]):
    """``Players`` (``dapo.types.environment``) in worker processes.

    Attributes:
        abilities: what the environment can do; known once ``start`` returned.
        replayed: turns that were played again.
        timeouts: calls that took too long.
        restarts: workers that were lost.
    """

    abilities: Abilities

    def __init__(
        self, what: Load, *, workers: int = 1, memory_mib: int | None = None, output: Path | None = None
    ) -> None:
        """Describe the pool; processes start with ``start``.

        Args:
            what: the environment.
            workers: processes at most.
            memory_mib: memory limit of each process; None: none.
            output: file for what environments print; None: it is dropped.
        """
        super().__init__(
            _Worker, "dapo.environments.worker", read_messages, output=output, memory_mib=memory_mib, patience=CLOSING
        )
        self._what, self._limit = what, workers
        self._homes = Homes[_Worker]()
        self._waiting: dict[Key, int] = {}  # questions that were asked and not answered, by their numbers
        self._next = 0
        self._concurrent = False
        self.replayed = self.timeouts = self.restarts = 0

    def start(self) -> Abilities:
        """Start one worker and return what its environment can do.

        Raises:
            RecipeError: it cannot be loaded.
        """
        while not self._loaded:
            if not self._workers:
                self._start(self._what)
            self._step(TICK)
        return self.abilities

    def ask(self, question: Question) -> None:
        """Queue a question; it goes to the worker that holds the episode, else to the one with the least to do."""
        pending = self._numbered(question.key, question)
        self._waiting[question.key] = pending.number
        self._place(pending)
        self._send_some()

    def drop(self, key: Key) -> None:
        """Close an episode, if there is one, and forget a question about it."""
        self._waiting.pop(key, None)
        self._answers = [answer for answer in self._answers if answer.key != key]
        worker = self._homes.pop(key)
        if worker is None:
            return
        worker.queue = deque(one for one in worker.queue if one.key != key)
        self._close_episode(worker, key)
        self._send_some()

    def counters(self) -> Metrics:
        """Return counts since construction."""
        return {"replayed": float(self.replayed), "timeouts": float(self.timeouts)}

    def close(self) -> None:
        """End all workers."""
        super().close()
        self._homes = Homes()
        self._waiting.clear()

    # ------------------------------------------------------------------ workers

    def _numbered(self, key: Key, question: Question | None) -> _Pending:
        self._next += 1
        return _Pending(self._next, key, question)

    def _close_episode(self, worker: _Worker, key: Key) -> None:
        """Let a worker close an episode before anything else."""
        self._homes.pop(key)
        if worker.held.pop(key, None) is not None:
            worker.queue.appendleft(self._numbered(key, None))

    def _place(self, pending: _Pending) -> None:
        key = pending.key
        worker = self._homes.find(key)
        if worker is None:
            idle = [one for one in self._workers if not one.queue and not one.sent]
            if not idle and len(self._workers) < self._limit:
                self._start(self._what)
            worker = min(self._workers, key=lambda one: len(one.queue) + len(one.sent) + len(one.held) / 1e6)
        self._homes.put(key, worker)
        worker.queue.append(pending)

    def _room(self, worker: _Worker) -> int:
        """Return how many questions a worker may have.

        A synchronous environment answers one after the other. It has some more while it is quick, so that it need not
        wait for a driver that looks once in a turn of the engine; one that is slow would go on with what was dropped.
        """
        return _AT_ONCE if self._concurrent else min(_AT_ONCE, 1 + int(_AHEAD / max(worker.pace, 1e-6)))

    def _at_work(self, worker: _Worker) -> list[_Pending]:
        """Return the questions that a worker computes: of a synchronous environment the oldest."""
        return list(worker.sent.values())[: None if self._concurrent else 1]

    def _send_some(self) -> None:
        for worker in self._workers:
            if not worker.ready:
                continue
            while worker.queue and len(worker.sent) < self._room(worker):
                pending = worker.queue.popleft()
                question, key = pending.question, pending.key
                pending.since = time.monotonic()
                worker.sent[pending.number] = pending
                if question is None:
                    worker.send([Drop(pending.number, key)])
                    continue
                if question.members:
                    worker.send([Ask(pending.number, question, False)])
                    continue
                fresh = worker.held.get(key) != len(question.past)
                worker.held[key] = len(question.past) + (question.turn is not None)
                worker.send([Ask(pending.number, question, fresh)])

    def _allowed(self, pending: _Pending) -> float:
        """Return the seconds that a question may take: those of each call that it may need."""
        if pending.question is None:
            return CLOSING + _SLACK
        return self._what.timeout * (1 + len(pending.question.past)) + (_SLACK if self._concurrent else 0.0)

    def _awaits(self) -> bool:
        return bool(self._waiting)

    def _step(self, seconds: float) -> None:
        for worker, why in self._exchange(seconds):
            now = time.monotonic()
            late = [one for one in self._at_work(worker) if now - one.since > self._allowed(one)]
            if why is not None:
                self._lose(worker, why)
            elif late:
                self._lose(worker, f"timeout: no answer within {self._what.timeout:g} s", late[0])
            elif not worker.ready and now - worker.since > START_LIMIT:
                self._lose(worker, f"not loaded within {START_LIMIT:g} s: {worker.loading or 'the interpreter'}")
        self._send_some()

    def _take(self, worker: _Worker, message: FromWorker) -> None:
        match message:
            case Loading(name=name) if not worker.ready:
                worker.loading = name
            case ReadyEnvironment() if not worker.ready:
                worker.ready, self._failed_starts = True, 0
                if not self._loaded:
                    self._loaded, self._concurrent = True, message.concurrent
                    self.abilities, self._homes.grouped = message.abilities, message.abilities.compares
            case Refused(error=error) if not worker.ready:
                if not self._loaded:
                    self.close()
                    raise RecipeError(error)
                self._lose(worker, error)
            case Answered(number=number) if number in worker.sent:
                worker.pace, self._ends = message.seconds, 0
                self._answered(worker, self._heard(worker, number), message)
            case Closed(number=number) if number in worker.sent:
                self._heard(worker, number)
            case _:
                raise WireError(f"a message that is not due: {message.type}")

    def _heard(self, worker: _Worker, number: int) -> _Pending:
        """Take out what was answered; the time of the next one of a synchronous environment begins."""
        pending = worker.sent.pop(number)
        if not self._concurrent:
            for following in self._at_work(worker):
                following.since = time.monotonic()
        return pending

    def _answered(self, worker: _Worker, pending: _Pending, message: Answered) -> None:
        key = pending.key
        done = message.reply is not None and message.reply.done
        if pending.question is None:
            raise WireError("an answer to no question")
        if self._is_awaited(pending) and (
            message.failure or ((done or pending.question.end) and not self._homes.grouped)
        ):
            self._close_episode(worker, key)
        if (message.failure or "").startswith("timeout"):
            self.timeouts += 1
        if message.replayed is not None:
            self.replayed += len(pending.question.past)
        replayed = (
            None
            if message.replayed is None
            else tuple(None if each is None else each.said() for each in message.replayed)
        )
        self._tell(
            pending,
            Answer(
                key,
                None if message.reply is None else message.reply.said(),
                replayed,
                message.state,
                message.seconds,
                message.failure,
                tuple(each.said() for each in message.members),
            ),
        )

    def _is_awaited(self, pending: _Pending) -> bool:
        """Return False where the episode was dropped meanwhile, and perhaps begun again."""
        return self._waiting.get(pending.key) == pending.number

    def _tell(self, pending: _Pending, answer: Answer) -> None:
        if self._is_awaited(pending):
            del self._waiting[answer.key]
            self._answers.append(answer)

    def _lose(self, worker: _Worker, reason: str, late: _Pending | None = None) -> None:
        """Kill a worker. ``late``: the question that took too long; others are asked again elsewhere."""
        self._end(worker)
        self.restarts += 1
        self._homes.lose(worker)
        self._ends += worker.ready and late is None
        if self._ends >= MOST_ENDS:
            self.close()
            raise EpisodeError(
                f"{self._ends} workers for environments ended one after another, and none of them answered "
                f"({reason}){self._seen_in}. Fix what ends them, then continue with `dapo train --resume`"
            )
        if not worker.ready:
            self._failed_starts += 1
            if not self._loaded or self._failed_starts >= 3:
                self.close()
                raise RecipeError(f"a worker for environments does not start: {reason}{self._seen_in}")
        if late is not None:
            del worker.sent[late.number]
            if late.question is not None:
                self.timeouts += 1
                self._tell(late, Answer(late.key, failure=reason))
        computed = {one.number for one in self._at_work(worker)}
        for pending in [*worker.sent.values(), *worker.queue]:
            at_work = pending.number in computed
            if pending.question is None:
                continue  # its environment ended with the worker
            if at_work and late is None and pending.tries >= RETRIES:
                self._tell(pending, Answer(pending.key, failure=reason))
                continue
            pending.tries += at_work and late is None
            if self._is_awaited(pending):
                self._place(pending)
