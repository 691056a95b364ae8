"""Worker processes for verifiers, with a time limit per item and a memory limit per process.

One thread, no callbacks: all progress on the driver's side happens inside ``submit`` and ``poll``, and none of it waits
for a worker that does not read or write. A worker holds one batch at a time and answers item by item, so when it hangs
or dies, the item it was at is known: that one failed, those after it go to the next worker. An item whose worker was
killed from outside is tried once more: it may have had nothing to do with it.

``dapo.processes.workers`` starts and ends the processes.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dapo.errors import RewardError
from dapo.processes.guarded import GuardedProcess
from dapo.processes.wire import WireError
from dapo.processes.workers import ENDED, MOST_ENDS, OUTSIDE, START_LIMIT, TICK, GuardedPool, GuardedWorker, Loading
from dapo.rewards.function import read_values
from dapo.rewards.judges import Asked, Outcomes, Verifier
from dapo.rewards.messages import Began, Failed, Judged, Message, Ready, Warming, read_messages
from dapo.rewards.question import Question, Questions
from dapo.system import limits_memory
from dapo.types.batch import Prompt, Response

log = logging.getLogger(__name__)

MEMORY_MIB = 4096  # default limit of a worker process
_MAX_BATCH = 16
_START_TOLD = 10.0  # seconds after which a worker that still imports is told
_MOST_GATHERED = 0.005  # seconds for each verdict that is still to come, before the driver looks again
_PATIENCE = 5.0  # seconds for a guard to end what it guards
TOLD_SECONDS = 60.0  # lost, after which that is said, and again at each doubling
_MAX_HOPELESS = 4096  # verdicts remembered as not to be had


@dataclass(slots=True)
class _Item:
    id: int
    verifier: int
    seconds: float  # time limit
    question: Question
    members: int | None = None  # responses of a group; None: it is about one response
    again: bool = False  # its worker was killed, and it is tried once more


class _Worker(GuardedWorker):
    def __init__(self, process: GuardedProcess) -> None:
        super().__init__(process)
        self.batch: deque[_Item] = deque()  # sent and not answered, in order
        self.digest: str | None = None  # of the verdict it is at
        self.warming = False  # in a function's first call, which no response is charged for
        self.warmed = 0  # such calls that it began
        self.told = 0  # how many of the pool's hopeless verdicts it knows


@dataclass(frozen=True, slots=True)
class Finished:
    """An item's verdict."""

    item: int
    outcome: Outcomes
    answer: str | None = None  # for majority votes


class WorkerPool(GuardedPool[_Worker, Message, Finished]):
    """Runs verifiers on (prompt, completion) pairs in worker processes."""

    def __init__(
        self,
        verifiers: Sequence[Verifier],
        *,
        workers: int = 1,
        output: Path | None = None,
        memory_mib: int | None = MEMORY_MIB,
    ) -> None:
        """Describe the pool; processes start with the first item, or at ``start``.

        Args:
            verifiers: what the workers load; items name them by index.
            workers: processes at most.
            output: file to which whatever verifiers print is appended, up to a limit; None: it is dropped.
            memory_mib: limit of each worker process (and of each process it starts) in MiB of writable memory; None:
                none.
        """
        super().__init__(
            _Worker, "dapo.rewards.worker", read_messages, output=output, memory_mib=memory_mib, patience=_PATIENCE
        )
        self._verifiers = list(verifiers)
        self._limit = workers
        self._questions = Questions()
        self._queue: deque[_Item] = deque()
        self._told_start = False
        self._told_memory = False
        self._warms = True  # functions are called once before their first response, as that ended no worker yet
        self._pace = 0.0  # seconds of a verdict, as they were lately
        self._hopeless: dict[str, None] = {}  # digests of verdicts that cost a worker, in order of coming
        self.losses = Losses(workers)

    @property
    def pending(self) -> int:
        """Items submitted and not yet returned by ``poll``."""
        return len(self._queue) + sum(len(worker.batch) for worker in self._workers) + len(self._answers)

    def start(self) -> None:
        """Start one worker and wait until it has loaded everything.

        Raises:
            RewardError: it could not.
        """
        if not self._workers:
            self._start_worker()
        while self._workers and not self._workers[0].ready:
            self._step(TICK)
        if not self._workers:
            self.start()

    def submit(self, item: int, verifier: int, seconds: float, prompt: Prompt, completion: Asked) -> None:
        """Queue one item; it goes to a worker in company, by ``poll`` at the latest. ``seconds``: its time limit."""
        question = self._questions.make(self._verifiers[verifier].kind, prompt, completion)
        members = None if isinstance(completion, Response) else len(completion)
        self._queue.append(_Item(item, verifier, seconds, question, members))
        if not self._workers or len(self._queue) >= _MAX_BATCH:
            self._dispatch()

    def close(self) -> None:
        """End all workers; items that are pending are forgotten."""
        self._queue.clear()
        super().close()

    # ------------------------------------------------------------------ the machinery

    def _awaits(self) -> bool:
        return self.pending > 0

    def _step(self, seconds: float) -> None:
        shortest = min((len(worker.batch) for worker in self._workers if worker.batch), default=1)
        gather = self._pace * (shortest - 1)  # about until the first worker has nothing left to do
        for worker, why in self._exchange(seconds, gather):
            now = time.monotonic()
            if why is not None:
                self._lose(worker, why)
            elif worker.warming or not worker.ready:
                self._mind_start(worker, now - worker.since)
            elif worker.batch and now - worker.since > worker.batch[0].seconds:
                self._lose(worker, f"timeout: no answer within {worker.batch[0].seconds:g} s")
        self._dispatch()

    def _take(self, worker: _Worker, message: Message) -> None:
        match message:
            case Loading(name=name) if not worker.ready:
                worker.loading = name
            case Ready() if not worker.ready:
                worker.ready = self._loaded = True
                self._failed_starts = 0
                self.losses.started(time.monotonic() - worker.since)
            case Failed(error=error) if not worker.ready:
                self._refuse(worker, error)
            case Began(item=item, digest=digest) if worker.batch and worker.batch[0].id == item:
                worker.digest = digest
            case Warming(done=False) if worker.batch and not worker.warming and worker.warmed < len(self._verifiers):
                worker.loading = "the first call of a reward function"
                worker.warming, worker.warmed, worker.since = True, worker.warmed + 1, time.monotonic()
            case Warming(done=True) if worker.warming:
                worker.warming, worker.since = False, time.monotonic()
            case Judged(item=item, outcome=outcome) if worker.batch and worker.batch[0].id == item:
                outcome = _checked(outcome, self._verifiers[worker.batch[0].verifier].name, worker.batch[0].members)
                worker.batch.popleft()
                worker.digest = None
                self._ends = 0
                self._answers.append(Finished(item, outcome, message.answer))
                # The next item began when this one ended, which may have been a while ago, and never in the future.
                ended = max(worker.since, min(message.time, time.monotonic()))
                self._pace += (min(ended - worker.since, _MOST_GATHERED) - self._pace) / _MAX_BATCH
                worker.since = ended
            case _:
                raise WireError(f"a message that is not due: {message.type}")

    def _mind_start(self, worker: _Worker, seconds: float) -> None:
        """Warn of a worker that takes long to load, and give up in the end."""
        if seconds > START_LIMIT:
            self._lose(worker, f"timeout: not loaded within {START_LIMIT:g} s: {worker.loading or 'starting'}")
        elif seconds > _START_TOLD and not self._told_start:
            self._told_start = True
            log.warning(
                "a worker for rewards is still starting after %.0f s, at: %s. It is given %.0f s; if its module waits "
                "for a network or a lock at import, it never ends.",
                seconds,
                worker.loading or "the interpreter",
                START_LIMIT,
            )

    def _refuse(self, worker: _Worker, message: str) -> None:
        """Handle a worker that could not load its verifiers. At the first attempt that is the recipe's fault."""
        if not self._loaded:
            self.close()
            raise RewardError(message)
        self._lose(worker, f"exception: {message}")

    def _lose(self, worker: _Worker, reason: str) -> None:
        """Kill a worker; its present item failed for ``reason``, later ones are tried again."""
        if worker not in self._workers:
            return
        exit_code = None
        if reason == ENDED:
            exit_code = worker.process.exit_code(2.0)  # its connection ends a moment before the process does
        self._end(worker)
        self.losses.restarts += 1
        if exit_code is not None:
            reason = f"crash: the process ended with code {exit_code}"
        if worker.warming:  # the response is innocent: it is asked without such a call
            self._warms = False
            self._queue.extendleft(reversed(worker.batch))
            return
        if worker.ready:
            self._ends += 1
            if worker.batch:
                item = worker.batch[0]
                if exit_code in OUTSIDE and not item.again and self._ends < MOST_ENDS:
                    item.again = True
                else:
                    self._fail(worker.batch.popleft(), reason, worker.digest)
            self._queue.extendleft(reversed(worker.batch))
            return
        self._failed_starts += 1
        hung = reason.startswith("timeout")  # it would hang again
        if not self._loaded and (hung or self._failed_starts >= 3):
            self.close()
            raise RewardError(f"a worker for reward functions does not start: {reason}{self._seen_in}")
        if self._failed_starts >= 3:
            self._answers += [Finished(item.id, f"crash: workers no longer start: {reason}") for item in self._queue]
            self._queue.clear()
            self._failed_starts = 0

    def _fail(self, item: _Item, reason: str, digest: str | None) -> None:
        """Fail an item that cost its worker, so that equal ones do not cost another."""
        self._answers.append(Finished(item.id, reason))
        if digest is not None and len(self._hopeless) < _MAX_HOPELESS:
            self._hopeless[digest] = None
        if reason.startswith("timeout"):
            self.losses.timed_out(item.seconds)

    def _dispatch(self) -> None:
        """Give idle workers a batch, and start workers while there is more to do than there are hands."""
        for worker in self._workers:
            if self._queue and worker.ready and not worker.batch:
                size = max(1, min(_MAX_BATCH, len(self._queue) // self._limit))
                worker.batch.extend(self._queue.popleft() for _ in range(min(size, len(self._queue))))
                worker.since = time.monotonic()
                items = [(item.id, item.verifier, item.question) for item in worker.batch]
                new = list(self._hopeless)[worker.told :]
                worker.told = len(self._hopeless)
                worker.send((items, new, self._warms))
        idle = sum(not worker.batch for worker in self._workers)
        while len(self._workers) < self._limit and idle < len(self._queue):
            self._start_worker()
            idle += 1

    def _start_worker(self) -> None:
        if self._memory_mib and not limits_memory() and not self._told_memory:
            self._told_memory = True
            log.warning(
                "run.reward_memory_mib = %d has no effect: this system does not limit the memory of a process",
                self._memory_mib,
            )
        self._start(self._verifiers)


def _checked(outcome: Outcomes, name: str, members: int | None) -> Outcomes:
    """Return what a worker says of a response, or of each of so many ``members``.

    Raises:
        WireError: it cannot be that.
    """
    if isinstance(outcome, str):
        return outcome
    if isinstance(outcome, list) != (members is not None) or len(outcome) != (members or len(outcome)):
        raise WireError(f"{len(outcome)} verdicts for {members or 'one'} responses")
    try:
        if isinstance(outcome, dict):
            return read_values(outcome, name)
        return [each if isinstance(each, str) else read_values(each, name) for each in outcome]
    except ValueError as error:
        raise WireError(str(error)) from None


class Losses:
    """Counts of a pool. The run goes on whatever is lost: the verdicts are unscored, and metrics count them.

    Attributes:
        restarts: workers lost to a hang or a crash.
        timeouts: items that ran into their time limit.
    """

    def __init__(self, workers: int) -> None:
        """``workers``: processes at most."""
        self.restarts = self.timeouts = 0
        self._workers = workers
        self._limits, self._starts = 0.0, 0.0  # seconds lost to time limits; to starting others in lost workers' place
        self._tell_limits_at = self._tell_starts_at = TOLD_SECONDS

    def timed_out(self, seconds: float) -> None:
        """Count an item that ran into its time limit of ``seconds``."""
        self.timeouts += 1
        self._limits += seconds
        if self._limits >= self._tell_limits_at:
            self._tell_limits_at = 2 * self._limits
            log.warning(
                "%d responses ran into the time limit of their reward, which took %.0f s of %d worker(s). A lower "
                "`timeout` of that reward, or a higher run.reward_workers, bounds what such responses cost.",
                self.timeouts,
                self._limits,
                self._workers,
            )

    def started(self, seconds: float) -> None:
        """Count a worker that is ready ``seconds`` after its start; when others were lost, it replaces one."""
        if not self.restarts:
            return
        self._starts += seconds
        if self._starts >= self._tell_starts_at:
            self._tell_starts_at = 2 * self._starts
            log.warning(
                "%d worker processes for rewards were lost, %d of them to a time limit, and starting others took "
                "%.0f s. What ends a process (a crash, exit, too much memory) is better caught in the reward; modules "
                "that import quickly make a loss cheaper.",
                self.restarts,
                self.timeouts,
                self._starts,
            )
