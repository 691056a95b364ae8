"""A learner whose answers come later: each call that computes waits at a gate, in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Later(Generic[T]):
    """A ``Handle`` whose work begins when its gate opens and the work ``after`` which it comes has ended."""

    def __init__(self, work: Callable[[], T], held: bool, after: Later[Any] | None = None) -> None:
        self.gate = threading.Event()
        if not held:
            self.gate.set()
        self._work, self._after, self._ended = work, after, threading.Event()
        self._value: Any = None
        self._error: BaseException | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        self.gate.wait()
        if self._after is not None:
            self._after._ended.wait()
        try:
            self._value = self._work()
        except BaseException as error:
            self._error = error
        self._ended.set()

    def done(self) -> bool:
        return self._ended.is_set()

    def result(self, timeout: float | None = None) -> T:
        if not self._ended.wait(timeout):
            raise TimeoutError
        if self._error is not None:
            raise self._error
        value: T = self._value
        return value


class LaterLearner:
    """Another learner, behind handles of which each may be held pending until its own gate opens.

    One gate for all of them would let the next handle's work begin while the one before it is being seen to. As any
    learner, it works in the order in which it was asked: what is saved is the state before a later step.

    Attributes:
        pending: handles that were given out, in order.
    """

    def __init__(self, learner: Any, held: bool = False) -> None:
        self._learner, self._held = learner, held
        self.pending: list[Later[Any]] = []

    def _later(self, work: Callable[[], Any]) -> Later[Any]:
        last = self.pending[-1] if self.pending else None
        self.pending.append(Later(lambda: work().result(), self._held, last))
        return self.pending[-1]

    def learn(self, step: Any) -> Later[Any]:
        return self._later(lambda: self._learner.learn(step))

    def logprobs(self, *arguments: Any, **named: Any) -> Later[Any]:
        return self._later(lambda: self._learner.logprobs(*arguments, **named))

    def save(self, folder: Any) -> Later[Any]:
        return self._later(lambda: self._learner.save(folder))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._learner, name)
