"""Messages while dapo waits for a vLLM server: at once, then rarely, and when it answers again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from dapo.errors import EngineError

log = logging.getLogger(__name__)

AGAIN = 60.0  # seconds between two lines on one outage
_MUTE = 5.0  # seconds that an answer may take before it is waited for aloud
_T = TypeVar("_T")


class Waiting:
    """One outage.

    Args:
        address: The server's.
        silent: Seconds before the first line.
    """

    def __init__(self, address: str, silent: float = 0.0) -> None:
        self.told = False
        self._address, self._start = address, time.monotonic()
        self._next = self._start + silent

    def tell(self, reason: str, left: float, unfinished: int | None = None) -> None:
        """Report that the server does not answer.

        Args:
            reason: What came instead.
            left: Seconds that it will be waited for yet.
            unfinished: Responses that were under way, once there may be some.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next, self.told = now + AGAIN, True
        kept = "" if unfinished is None else f"; {unfinished} responses wait for it, and none is lost"
        log.warning(
            "waiting for the vLLM server at %s, for up to %.0f s more (rollout.server.patience): %s%s",
            self._address,
            max(0.0, left),
            reason,
            kept,
        )

    async def answer(self, request: Coroutine[Any, Any, _T], left: Callable[[], float], unfinished: int) -> _T:
        """Wait for an answer, and say so while it does not come.

        Raises:
            Exception: What ``request`` raises.
        """
        task = asyncio.ensure_future(request)
        try:
            while not (await asyncio.wait({task}, timeout=min(_MUTE, AGAIN)))[0]:
                self.tell("no answer yet", left(), unfinished)
            return task.result()
        finally:
            task.cancel()

    def gone(self, last: str, patience: float, unfinished: int) -> EngineError:
        """Return the error that ends the run when patience is spent."""
        return EngineError(
            f"the vLLM server at {self._address} did not answer for {patience:.0f} s (last: {last}) while {unfinished} "
            "responses were under way. Start it again and continue with `dapo train --resume`: what was finished is "
            "kept. If it only needs longer to come back, raise `rollout.server.patience`"
        )

    def over(self) -> None:
        """Report that the server answers again."""
        if self.told:
            log.warning("the vLLM server at %s answers, after %.0f s", self._address, time.monotonic() - self._start)
            self.told, self._next = False, 0.0


def tell_slow(address: str, unfinished: int, silence: float) -> None:
    """Warn of a server that reports good health and ends no response."""
    log.warning(
        "the vLLM server at %s calls itself well and has ended none of %d responses for %.0f s; still waiting for it",
        address,
        unfinished,
        silence,
    )
