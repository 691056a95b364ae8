"""Work under way: a learner elsewhere computes while the driver does something else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Handle(Protocol[T_co]):
    """The result of a call that may still be running."""

    def done(self) -> bool:
        """Whether ``result`` would answer at once."""

    def result(self, timeout: float | None = None) -> T_co:
        """Wait for the result, at most ``timeout`` seconds.

        Raises:
            TimeoutError: it is not there yet; the work goes on.
            Exception: what the work itself raised.
        """


class Done(Generic[T_co]):
    """A result that is there already."""

    def __init__(self, value: T_co) -> None:
        self._value = value

    def done(self) -> bool:
        return True

    def result(self, timeout: float | None = None) -> T_co:
        """The value, at once."""
        return self._value


class Mapped(Generic[T, T_co]):
    """What comes of a result, once it is there."""

    def __init__(self, handle: Handle[T], function: Callable[[T], T_co]) -> None:
        self._handle, self._function = handle, function

    def done(self) -> bool:
        return self._handle.done()

    def result(self, timeout: float | None = None) -> T_co:
        """The function of the result, waited for."""
        return self._function(self._handle.result(timeout))
