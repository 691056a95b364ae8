"""Messages while dapo waits for a vLLM server: at once, then rarely, and when it answers again."""

from __future__ import annotations

import logging
import time

from dapo.errors import EngineError

log = logging.getLogger(__name__)

AGAIN = 60.0  # seconds between two lines on one outage
_MUTE = 5.0  # seconds that the first answer may take
_LEAST = 0.1  # seconds that any answer may take


class Waiting:
    """One outage: how long the server is waited for, and what is said meanwhile.

    Args:
        address: The server's.
        patience: Seconds that it is waited for.
        silent: Seconds before the first line.
    """

    def __init__(self, address: str, patience: float, silent: float = 0.0) -> None:
        self._address, self._patience = address, patience
        self._start = time.monotonic()
        self._next, self._told = self._start + silent, False
        self._mute = silent or _MUTE

    @property
    def left(self) -> float:
        """Seconds that it is waited for yet; negative once patience is spent."""
        return self._start + self._patience - time.monotonic()

    @property
    def timeout(self) -> float:
        """Seconds for its next answer: few, until a line has said that it is waited for."""
        return max(_LEAST, min(self.left, AGAIN if self._told else min(self._mute, AGAIN)))

    def tell(self, reason: str, unfinished: int | None = None) -> None:
        """Report that the server does not answer.

        Args:
            reason: What came instead.
            unfinished: Responses that were under way, once there may be some.
        """
        now = time.monotonic()
        if now < self._next:
            return
        self._next, self._told = now + AGAIN, True
        kept = "" if unfinished is None else f"; {unfinished} responses wait for it, and none is lost"
        log.warning(
            "waiting for the vLLM server at %s, for up to %.0f s more (rollout.server.patience): %s%s",
            self._address,
            max(0.0, self.left),
            reason,
            kept,
        )

    def gone(self, last: str, unfinished: int) -> EngineError:
        """Return the error that ends the run when patience is spent."""
        return EngineError(
            f"the vLLM server at {self._address} did not answer for {self._patience:.0f} s (last: {last}) while "
            f"{unfinished} responses were under way. Start it again and continue with `dapo train --resume`: what was "
            "finished is kept. If it only needs longer to come back, raise `rollout.server.patience`"
        )

    def over(self) -> None:
        """Report that the server answers again."""
        if self._told:
            log.warning("the vLLM server at %s answers, after %.0f s", self._address, time.monotonic() - self._start)
            self._told, self._next = False, 0.0


def tell_slow(address: str, unfinished: int, silence: float) -> None:
    """Warn of a server that reports good health and ends no response."""
    log.warning(
        "the vLLM server at %s calls itself well and has ended none of %d responses for %.0f s; still waiting for it",
        address,
        unfinished,
        silence,
    )
