"""Workers of a learner, asked by the driver: what one says, or all of them put together.

``LearnerHosts`` are processes that live and die together. They stand on a ``Transport`` and know no way in particular;
no tensor comes here. When one of several is lost, fails or gives no sign, the others wait for it inside of a collective
call, so all of them are ended. ``WorkerHere`` is one worker of the driver's own process.
"""

from __future__ import annotations

import os
import re
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from dapo.errors import DapoError, LearnerLost
from dapo.processes.transport import Call, Host, HostLost, HostSpec, Transport
from dapo.system import memory_of
from dapo.types.batch import SavedFile
from dapo.types.protocols import Done, Handle, ProcessState

if TYPE_CHECKING:  # torch comes with it
    from dapo.learner.worker import Worker, WorkerFacts

T = TypeVar("T")

_ECHO = re.compile(
    r"reset by peer|closed by peer|Connection refused|gloo|NCCL|TCPStore|Timed out waiting", re.IGNORECASE
)
"""What a rank says when another one is gone or silent."""
_TOGETHER = 30.0  # seconds within which all ranks raise an error that is everybody's, such as gradients of nan
_WAITS = ("describe", "is_saved", "close")
"""Calls in which a worker does nothing that a timeline should show."""
_MOST_CALLS = 2000  # of a worker, that are kept until a reader asks for them
_LAST_WORDS = 2.0  # seconds for the other ranks to say what they saw, once one has failed on its own


class Workers(Protocol):
    """All workers of one learner."""

    ranks: int
    """How many there are."""
    facts: list[WorkerFacts]
    """What each answered to ``describe``."""

    def ask(self, method: str, *args: Any) -> list[Any]:
        """Ask all of them the same and wait."""

    def each(self, method: str, args: Sequence[tuple[Any, ...]], combine: Callable[[Sequence[Any]], T]) -> Handle[T]:
        """Ask each its own question and do not wait."""

    def collect(self, folder: str) -> tuple[Any, ...]:
        """Take files that they wrote away from their machines; return the parts of a ``Shipment``."""

    def processes(self) -> list[ProcessState]:
        """Return the processes of their own as they are now, with their calls since this was asked last."""

    def close(self) -> None:
        """End them; what they are writing is finished first."""


class WorkerHere:
    """One worker of this process: a call is a call, and what it raises is raised at once.

    Args:
        worker: that holds the whole model.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, self.ranks, self.facts = worker, 1, [worker.describe()]

    def ask(self, method: str, *args: Any) -> list[Any]:
        return [getattr(self._worker, method)(*args)]

    def each(self, method: str, args: Sequence[tuple[Any, ...]], combine: Callable[[Sequence[Any]], T]) -> Handle[T]:
        (own,) = args
        return Done(combine(self.ask(method, *own)))

    def collect(self, folder: str) -> tuple[Any, ...]:
        raise AssertionError("files of this process are where the engines look for them")

    def processes(self) -> list[ProcessState]:
        return []

    def close(self) -> None:
        self._worker.close()


class LearnerHosts:
    """One call to each of a learner's processes, and one end for all of them.

    Args:
        transport: on which they live.
        specs: one for each, in order.
        patience: seconds in which the others have to answer once one has; of a single one nothing.

    Raises:
        LearnerLost: one could not be started.
        DapoError: what making one raised: a model that cannot be loaded, say.

    Attributes:
        ranks: how many there are.
        facts: what each answered to ``describe``.
    """

    def __init__(self, transport: Transport, specs: Sequence[HostSpec], patience: float = 0.0) -> None:
        self.transport, self.patience = transport, patience
        self._lost: LearnerLost | None = None
        self.ranks = len(specs)
        self._hosts: list[Host] = []
        self._names = [spec.name for spec in specs]
        self._calls: list[deque[tuple[float, float]]] = [deque(maxlen=_MOST_CALLS) for _ in specs]
        self._starts: list[tuple[float, float]] = []  # start and seconds of each, until they are asked for
        self._last: dict[int, tuple[float, float]] = {}  # start and seconds of each rank's last call
        began = []
        try:
            for spec in specs:
                began.append(time.time())
                self._hosts.append(transport.start(spec))
            self.facts: list[WorkerFacts] = self.ask("describe")
            self._starts = [(start, time.time() - start) for start in began]
        except BaseException:
            self.end()
            raise

    def ask(self, method: str, *args: Any) -> list[Any]:
        """Ask all of them the same and wait."""
        found: list[Any] = self.each(method, [args] * self.ranks, list).result()
        return found

    def each(self, method: str, args: Sequence[tuple[Any, ...]], combine: Callable[[Sequence[Any]], T]) -> Pending[T]:
        """Ask each its own question and do not wait.

        Raises:
            LearnerLost: one of them was lost before.
        """
        if self._lost is not None:
            raise self._lost
        calls = [self.transport.call(host, method, *own) for host, own in zip(self._hosts, args, strict=True)]
        return Pending(self, method, calls, combine)

    def answered(self, rank: int, method: str, began: float) -> None:
        """Take note that a rank has just answered what it was asked at ``began`` (since 1970)."""
        if method not in _WAITS:
            self._last[rank] = began, time.time() - began
            self._calls[rank].append(self._last[rank])

    def processes(self) -> list[ProcessState]:
        """Return each rank as it is now, with its calls since this was asked last."""
        found, here = [], os.uname().nodename
        for rank, (name, facts) in enumerate(zip(self._names, self.facts, strict=True)):
            began, seconds = self._last.get(rank, (None, None))
            found.append(
                ProcessState(
                    name,
                    "learner",
                    facts.machine,
                    facts.process,
                    alive=bool(self._hosts),
                    last_turn=None if began is None or seconds is None else began + seconds,
                    turn_seconds=seconds,
                    memory_mib=memory_of(facts.process) if facts.machine == here else None,
                    turns=tuple(self._calls[rank]),
                    starts=tuple(self._starts[rank : rank + 1]),
                )
            )
            self._calls[rank].clear()
        self._starts = []
        return found

    def collect(self, folder: str) -> tuple[Any, ...]:
        """Take files that they wrote away from their machines; return the parts of a ``Shipment``.

        Raises:
            LearnerLost: one of them is gone.
            ClusterError: they cannot be taken.
        """
        try:
            return self.transport.collect(self._hosts, folder)
        except HostLost as error:
            raise self.lose(str(error)) from error

    def lose(self, why: str) -> LearnerLost:
        """End all of them: none is asked from now on."""
        self.end()
        what = "All ranks were ended: a rank alone cannot go on" if self.ranks > 1 else "It was ended"
        self._lost = LearnerLost(f"{why}. {what}")
        return self._lost

    def close(self) -> None:
        """End them; what they are writing is finished first."""
        if self._hosts:
            try:
                self.ask("close")
            except DapoError:
                pass  # they are ended anyway
            finally:
                self.end()

    def end(self) -> None:
        """At once."""
        for host in self._hosts:
            self.transport.kill(host)
        self._hosts = []


class Pending(Generic[T]):
    """One call to every process."""

    def __init__(
        self, hosts: LearnerHosts, method: str, calls: Sequence[Call], combine: Callable[[Sequence[Any]], T]
    ) -> None:
        self._hosts, self._method, self._combine = hosts, method, combine
        self._open = dict(enumerate(calls))
        self._began = time.time()
        self._answers: dict[int, Any] = {}
        self._errors: dict[int, Exception] = {}  # by rank, in the order in which they came
        self._latest: float | None = None  # when the ranks that are left have to answer
        self._value: T
        self._failure: DapoError | None = None
        self._ended = False

    def done(self) -> bool:
        """Whether every rank has answered, or one of them will not."""
        return self._progress(0.0)

    def result(self, timeout: float | None = None) -> T:
        """Return what the ranks said, put together."""
        if not self._progress(timeout):
            raise TimeoutError(f"{len(self._open)} of the learner's ranks have not answered `{self._method}` yet")
        if self._failure is not None:
            raise self._failure
        return self._value

    def _progress(self, timeout: float | None) -> bool:
        until = None if timeout is None else time.monotonic() + timeout
        while not self._ended:
            limits = [limit - time.monotonic() for limit in (until, self._latest) if limit is not None]
            self._take(max(0.0, min(limits)) if limits else None)
            if not self._open:
                self._end()
            elif self._latest is not None and time.monotonic() >= self._latest:
                self._give_up()
            elif until is not None and time.monotonic() >= until:
                return False
        return True

    def _take(self, timeout: float | None) -> None:
        """Answers that are there, waited for at most so long."""
        transport = self._hosts.transport
        ranks = list(self._open)
        for index in transport.wait([self._open[rank] for rank in ranks], timeout=timeout):
            rank = ranks[index]
            try:
                self._answers[rank] = transport.get(self._open.pop(rank))
                self._hosts.answered(rank, self._method, self._began)
            except Exception as error:
                self._errors[rank] = error
            self._latest = self._deadline()

    def _deadline(self) -> float:
        """Return the time at which waiting ends: soon if one rank has answered, since the others are about to."""
        patience = self._hosts.patience
        if self._errors:
            alone = not all(_is_everybodys(error) for error in self._errors.values())
            patience = min(patience, _LAST_WORDS if alone else _TOGETHER)
        limit = time.monotonic() + patience
        return limit if self._latest is None or not self._errors else min(limit, self._latest)

    def _end(self) -> None:
        self._ended = True
        if not self._errors:
            self._value = self._combine([self._answers[rank] for rank in sorted(self._answers)])
        elif len(self._errors) == self._hosts.ranks and all(map(_is_everybodys, self._errors.values())):
            failure = self._errors[min(self._errors)]  # all ranks agree, and are where they were
            assert isinstance(failure, DapoError)
            self._failure = failure
        else:
            self._failure = self._failed()

    def _give_up(self) -> None:
        self._ended = True
        if self._errors:
            self._failure = self._failed()
            return
        silent = ", ".join(f"rank {rank}" for rank in self._open)
        seconds = f"{self._hosts.patience:g}"
        self._failure = self._hosts.lose(
            f"{silent} of {self._hosts.ranks} did not answer `{self._method}` within {seconds} s (learner.timeout) "
            "of the others: frozen, or cut off"
        )

    def _failed(self) -> DapoError:
        """End the group; return the error of the rank that caused it."""
        rank = min(self._errors, key=lambda rank: _echo(self._errors[rank]))  # of equals the first that came
        error, ranks = self._errors[rank], self._hosts.ranks
        if _echo(error) == _ECHOED and self._open:
            silent = ", ".join(f"rank {rank}" for rank in self._open)
            why = f"{silent} of {ranks} gave no sign in `{self._method}`; rank {rank} waited for it ({_words(error)})"
        elif ranks == 1:
            why = f"the learner's process failed in `{self._method}`: {_words(error)}"
        else:
            why = f"rank {rank} of {ranks} failed first in `{self._method}`: {_words(error)}"
        lost = self._hosts.lose(why)
        if _is_everybodys(error):
            return error  # type: ignore[return-value]
        lost.__cause__ = error
        return lost


class PendingSave:
    """A checkpoint that is written while training goes on; its tensors are copied."""

    def __init__(self, hosts: Workers) -> None:
        self._hosts = hosts
        self._asked: Handle[bool] | None = None
        self._files: list[SavedFile] | None = None

    def done(self) -> bool:
        """Whether every rank has written its part. The ranks answer behind what they do; the asker does not wait."""
        if self._files is not None:
            return True
        if self._asked is None:
            self._asked = self._hosts.each("is_saved", [()] * self._hosts.ranks, all)
        if not self._asked.done():
            return False
        found, self._asked = self._asked.result(), None
        return found

    def result(self, timeout: float | None = None) -> list[SavedFile]:
        """Return the files, waited for."""
        if self._files is None:
            self._files = self._hosts.each("saved", [()] * self._hosts.ranks, all_files).result(timeout)
        return self._files


def all_files(answers: Sequence[list[SavedFile]]) -> list[SavedFile]:
    """Return the files that all processes saved."""
    return [file for files in answers for file in files]


_LOST, _OWN, _ECHOED = range(3)


def _echo(error: Exception) -> int:
    """How far an error is from the cause: a lost host, a failure of its own, or what a rank says of another's."""
    if isinstance(error, HostLost):
        return _LOST
    return _ECHOED if not isinstance(error, DapoError) and _ECHO.search(str(error)) else _OWN


def _is_everybodys(error: Exception) -> bool:
    """Whether the program raised it on purpose: what one rank refuses, all do."""
    return isinstance(error, DapoError) and not isinstance(error, HostLost)


def _words(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    return lines[0] if isinstance(error, DapoError) else f"{type(error).__name__}: {lines[0]}"
