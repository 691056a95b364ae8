"""Drop connections that hang: a request that comes a byte at a time, an answer that is never read.

uvicorn has a limit for the pause between two requests, which any byte ends, and none for a request's head or for an
answer. Each such connection would hold a file descriptor of this process for as long as the other side likes.
"""

from __future__ import annotations

import asyncio
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol

SECONDS = 15.0
"""For the whole head of a request, from the connection or the last answer on; and for each 64 kB of an answer. How long
it takes to make an answer does not count."""


class PatientProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with these two limits."""

    _head: asyncio.TimerHandle | None = None
    _taken: asyncio.TimerHandle | None = None
    _left: int | None = None  # bytes that had not been sent at the last look

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(cast(asyncio.Transport, transport))
        self._wait_for_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self.resume_writing()
        super().connection_lost(exc)

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not before and self._head is not None:
            self._head.cancel()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.response_complete and not self.transport.is_closing():
            self._wait_for_head()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._taken = self.loop.call_later(SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        if self._taken is not None:
            self._taken.cancel()
            self._taken = None
        super().resume_writing()

    def _wait_for_head(self) -> None:
        self._stop()
        self._left = None
        self._head = self.loop.call_later(SECONDS, self._late)

    def _late(self) -> None:
        left = self.transport.get_write_buffer_size()
        if left and (self._left is None or left < self._left):  # the end of an answer is still on its way
            self._left = left
            self._head = self.loop.call_later(SECONDS, self._late)
        else:
            self.transport.abort()

    def _stop(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None
