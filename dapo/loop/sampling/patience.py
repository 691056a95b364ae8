"""Wait for an engine, a verifier or an environment, and look meanwhile whether the run is asked to end."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

LOOK = 1.0
"""Seconds of a wait between two looks whether the run is asked to end."""


def patiently(
    poll: Callable[[float | None], list[T]],
    timeout: float | None,
    look: Callable[[], None] | None,
    clock: Callable[[], int] = lambda: 0,
) -> list[T]:
    """Return ``poll(timeout)``, and call ``look`` every ``LOOK`` seconds of a wait without limit.

    An answer that is empty before the time is over, while ``clock`` stands, says that nothing is owed. ``poll(None)``
    then proves it.
    """
    if look is None or timeout is not None:
        return poll(timeout)
    while True:
        look()
        began, tick = time.monotonic(), clock()
        found = poll(LOOK)
        if not found and time.monotonic() - began < LOOK and clock() == tick:
            return poll(None)
        if found:
            return found
