"""How long a vLLM server that does not answer is waited for, and what the log says meanwhile."""

from __future__ import annotations

import asyncio
import logging
import time

log = logging.getLogger(__name__)

AGAIN = 60.0  # seconds between two lines on one outage, or on several in a row
ANSWER = 30.0  # seconds that one answer may take
_FIRST_PAUSE, _PAUSE = 0.1, 2.0  # seconds between two looks: the first, the longest


class Outage:
    """Waits for one server.

    Args:
        address: The server's.
        patience: Seconds that it may be away at a time.
        setting: That says how many.
    """

    def __init__(self, address: str, patience: float, setting: str = "rollout.server.patience") -> None:
        self._address, self._patience, self._setting = address, patience, setting
        self._start, self._next_line, self._pause = time.monotonic(), 0.0, _FIRST_PAUSE

    @property
    def timeout(self) -> float:
        """Seconds for its next answer."""
        return max(_FIRST_PAUSE, min(self._left, ANSWER))

    @property
    def _left(self) -> float:
        return self._start + self._patience - time.monotonic()

    async def wait(self, reason: str) -> bool:
        """Sleep until the next look at the server, and log why at times; False: patience is spent."""
        if self._left < 0:
            return False
        if time.monotonic() >= self._next_line:
            self._next_line = time.monotonic() + AGAIN
            log.warning(
                "waiting for the vLLM server at %s, for up to %.0f s more (%s): %s",
                self._address,
                self._left,
                self._setting,
                reason,
            )
        await asyncio.sleep(min(self._pause, max(0.0, self._left)))
        self._pause = min(2 * self._pause, _PAUSE)
        return True

    def over(self) -> None:
        """Begin anew: the server answers. One that loses every other request is reported once in ``AGAIN``."""
        self._start, self._pause = time.monotonic(), _FIRST_PAUSE
