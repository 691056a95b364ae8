"""The driver's side of a learner over ranks: plans for all of them, sends each its share, puts together what they say.

It stands on a ``Transport`` and knows no way in particular; no tensor comes here. Ranks live and die together: when one
is lost, fails or gives no sign, the others wait for it inside of a collective call, so all of them are ended.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from dapo.config import schema
from dapo.contracts.handle import Done, Handle
from dapo.contracts.remote import Call, HostLost, HostSpec, Transport
from dapo.contracts.stats import merge
from dapo.contracts.types import FloatArray, HasTokens, Learned, LearnStep, Of, SavedFile, Ticket
from dapo.errors import DapoError, LearnerLost
from dapo.learner.plan import Pass, check_in_step, plan_passes, plan_step
from dapo.models.checksum import together
from dapo.models.weights import WeightFolder

T = TypeVar("T")

_ECHO = re.compile(
    r"reset by peer|closed by peer|Connection refused|gloo|NCCL|TCPStore|Timed out waiting", re.IGNORECASE
)
"""What a rank says when another one is gone or silent."""
_TOGETHER = 30.0  # seconds within which all ranks raise an error that is everybody's, such as gradients of nan
_LAST_WORDS = 2.0  # seconds for the other ranks to say what they saw, once one has failed on its own


class LearnerGroup:
    """A learner (``dapo.contracts.protocols.Learner``) of several ranks.

    Args:
        transport: on which the ranks live.
        specs: one for each rank, in order; what they make is a ``dapo.learner.rank.Rank``.
        settings: the recipe's ``learner`` section.
        weights_folder: through which weights are published.
        asynchronous: write checkpoints while training goes on.

    Raises:
        LearnerLost: a rank could not be started.
        DapoError: what the ranks raised: a model that cannot be loaded, say.
    """

    def __init__(
        self,
        transport: Transport,
        specs: Sequence[HostSpec],
        settings: schema.Learner,
        weights_folder: Path,
        *,
        asynchronous: bool = False,
    ) -> None:
        self._transport, self.settings, self._asynchronous = transport, settings, asynchronous
        self._folder = WeightFolder(weights_folder)
        self._saving: _Saving | None = None
        self._lost: LearnerLost | None = None
        self.ranks = len(specs)
        self._hosts = [transport.start(spec) for spec in specs]
        try:
            self.facts = self._all("describe")
        except BaseException:
            self._end()
            raise

    def learn(self, step: LearnStep) -> Handle[Learned]:
        """A whole training step: each rank gets its own rows and passes, in one message.

        Raises:
            LearnerError: by ``result``: too many gradients in a row were not finite.
            LearnerLost: by ``result``: a rank was lost, failed or gave no sign.
        """
        plans = plan_step(
            step,
            self.settings.microbatch_tokens,
            ranks=self.ranks,
            packed=self.facts[0].packed,
            zero_advantage_is_free=self.facts[0].zero_advantage_is_free,
        )
        return self._each("learn", [(plan,) for plan in plans], _learned)

    def logprobs(self, rows: Sequence[HasTokens], of: Of = "policy") -> Handle[list[FloatArray]]:
        """Log-probability of every response token under the present weights, in the order of ``rows``."""
        if not rows:
            return Done([])
        planned = plan_passes(rows, self.settings.microbatch_tokens, ranks=self.ranks, packed=self.facts[0].packed)
        check_in_step(planned)
        own = [sorted(number for one in passes for number in one.rows) for passes in planned]

        def in_order(answers: Sequence[list[FloatArray]]) -> list[FloatArray]:
            found: dict[int, FloatArray] = {}
            for mine, answer in zip(own, answers, strict=True):
                found.update(zip(mine, answer, strict=True))
            return [found[number] for number in range(len(rows))]

        asked = [
            ([rows[n] for n in mine], _renumbered(passes, mine), of) for mine, passes in zip(own, planned, strict=True)
        ]
        return self._each("logprobs", asked, in_order)

    def publish(self, version: int) -> Ticket:
        """Every rank writes its slices into one new folder; no rank waits for another.

        Raises:
            EngineError: they cannot be written.
        """
        self._folder.keep_newest()
        folder = self._folder.new(version)
        self._all("publish", folder)
        return Ticket(version, "folder", str(folder), self.facts[0].names)

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """Of the named weights, added up from the slices where they lie; see the protocol."""
        shares = self._all("checksums", dict(dtypes))
        return {name: together(share[name] for share in shares) for name in dtypes if name in shares[0]}

    def save(self, folder: Path) -> Handle[list[SavedFile]]:
        """Each rank writes what it holds. Where it is asynchronous, the tensors are copied when this returns."""
        if not self._asynchronous:
            return self._each("save", [(folder,)] * self.ranks, _files)
        self._all("save", folder, True)
        self._saving = _Saving(self)
        return self._saving

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, here, over another number of ranks, or in one process.

        Raises:
            CheckpointError: it is incomplete or belongs to another model; no rank has changed anything.
        """
        self._all("check", folder)
        self._all("load", folder)

    def export(self, folder: Path) -> None:
        """A Hugging Face folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load."""
        self._all("export", folder)

    def close(self) -> None:
        """End the ranks; what they are writing is finished first. Delete published weights."""
        if self._hosts:
            try:
                self._all("close")
            except DapoError:
                pass  # they are ended anyway
            finally:
                self._end()
        self._folder.clear()

    # ------------------------------------------------------------------ all ranks

    def _all(self, method: str, *args: Any) -> list[Any]:
        found: list[Any] = self._each(method, [args] * self.ranks, list).result()
        return found

    def _each(self, method: str, args: Sequence[tuple[Any, ...]], combine: Callable[[Sequence[Any]], T]) -> _Pending[T]:
        if self._lost is not None:
            raise self._lost
        calls = [self._transport.call(host, method, *own) for host, own in zip(self._hosts, args, strict=True)]
        return _Pending(self, method, calls, combine)

    def lose(self, why: str) -> LearnerLost:
        """No rank is asked from now on; all of them are ended."""
        self._end()
        self._lost = LearnerLost(f"{why}. All ranks were ended: a rank alone cannot go on")
        return self._lost

    def _end(self) -> None:
        for host in self._hosts:
            self._transport.kill(host)
        self._hosts = []


class _Pending(Generic[T]):
    """One call to every rank."""

    def __init__(
        self, group: LearnerGroup, method: str, calls: Sequence[Call], combine: Callable[[Sequence[Any]], T]
    ) -> None:
        self._group, self._method, self._combine = group, method, combine
        self._open = dict(enumerate(calls))
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
        """What the ranks said, put together."""
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
        transport = self._group._transport
        ranks = list(self._open)
        for index in transport.wait([self._open[rank] for rank in ranks], timeout=timeout):
            rank = ranks[index]
            try:
                self._answers[rank] = transport.get(self._open.pop(rank))
            except Exception as error:
                self._errors[rank] = error
            self._latest = self._deadline()

    def _deadline(self) -> float:
        """Where one rank has answered, the others are about to; where one failed, they only wait for it."""
        patience = self._group.settings.timeout
        if self._errors:
            alone = not all(_is_everybodys(error) for error in self._errors.values())
            patience = min(patience, _LAST_WORDS if alone else _TOGETHER)
        limit = time.monotonic() + patience
        return limit if self._latest is None or not self._errors else min(limit, self._latest)

    def _end(self) -> None:
        self._ended = True
        if not self._errors:
            self._value = self._combine([self._answers[rank] for rank in sorted(self._answers)])
        elif len(self._errors) == self._group.ranks and all(map(_is_everybodys, self._errors.values())):
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
        seconds = f"{self._group.settings.timeout:g}"
        self._failure = self._group.lose(
            f"{silent} of {self._group.ranks} did not answer `{self._method}` within {seconds} s (learner.timeout) "
            "of the others: frozen, or cut off"
        )

    def _failed(self) -> DapoError:
        """The group's end, told by the rank that caused it."""
        rank = min(self._errors, key=lambda rank: _echo(self._errors[rank]))  # of equals the first that came
        error, ranks = self._errors[rank], self._group.ranks
        if _echo(error) == _ECHOED and self._open:
            silent = ", ".join(f"rank {rank}" for rank in self._open)
            why = f"{silent} of {ranks} gave no sign in `{self._method}`; rank {rank} waited for it ({_words(error)})"
        else:
            why = f"rank {rank} of {ranks} failed first in `{self._method}`: {_words(error)}"
        lost = self._group.lose(why)
        if _is_everybodys(error):
            return error  # type: ignore[return-value]
        lost.__cause__ = error
        return lost


class _Saving:
    """A checkpoint that is written while training goes on."""

    def __init__(self, group: LearnerGroup) -> None:
        self._group = group
        self._asked: _Pending[bool] | None = None
        self._files: list[SavedFile] | None = None

    def done(self) -> bool:
        """Whether every rank has written its part. The ranks answer behind what they do; the asker does not wait."""
        if self._files is not None:
            return True
        if self._asked is None:
            self._asked = self._group._each("is_saved", [()] * self._group.ranks, all)
        if not self._asked.done():
            return False
        found, self._asked = self._asked.result(), None
        return found

    def result(self, timeout: float | None = None) -> list[SavedFile]:
        """The files, waited for."""
        if self._files is None:
            self._files = self._group._each("saved", [()] * self._group.ranks, _files).result(timeout)
        return self._files


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


def _learned(answers: Sequence[Any]) -> Learned:
    """Sums of all ranks; traces by minibatch, then by rank."""
    minibatches = zip(*(traces for _, traces in answers), strict=True)
    return Learned(
        merge(stats for stats, _ in answers),
        [trace for parts in minibatches for own in parts for trace in own],
    )


def _files(answers: Sequence[list[SavedFile]]) -> list[SavedFile]:
    return [file for files in answers for file in files]


def _renumbered(passes: Sequence[Pass], own: Sequence[int]) -> list[Pass]:
    place = {number: index for index, number in enumerate(own)}
    return [Pass(tuple(place[number] for number in one.rows), one.backward) for one in passes]
