"""Watch a cluster's processes by connections, which end with the process or its machine.

Ray says nothing of a head that is gone before it ends the program that waits for it, and nothing at all of one that
hangs. Nothing here imports it.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from enum import Enum
from functools import partial
from typing import Any, Literal, TypeVar

from dapo.errors import ClusterError
from dapo.types.evidence import ClusterLost

T = TypeVar("T")


class _End(Enum):
    """End of a watched connection."""

    CLOSED = "there is to be no further look"
    THEIRS = "the other side ended it"
    OURS = "it is to be made again"
    SILENT = "it was not greeted"


_ATTEMPTS = 3  # in a row that find nobody
_BETWEEN = 1.0  # seconds
_PATIENCE = 5.0  # seconds of each
_ANSWER = 20.0  # seconds for a head that just starts
_ANEW = 30.0  # seconds after which a connection is made anew: who stands still greets nobody
_GREETING = 60.0  # seconds for the greeting of one that has greeted before
_SILENCE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A machine that is cut off or without power ends no connection: the system asks it, and gives it up after 25 s."""


def unanswered(address: str, patience: float = _ANSWER) -> str:
    """Return why no process takes a connection at ``HOST:PORT`` within ``patience`` seconds. Returns "" if one does, or
    if the address names no port. Ray itself waits two minutes for a head that is not there."""
    host, _, port = address.rpartition(":")
    if "://" in address or not port.isdecimal():
        return ""
    until = time.monotonic() + patience
    while True:
        try:
            socket.create_connection((host.strip("[]"), int(port)), _PATIENCE).close()
        except (OSError, OverflowError) as error:
            if time.monotonic() >= until:
                return f"nothing answered there for {patience:g} s ({getattr(error, 'strerror', None) or error})"
            time.sleep(min(_BETWEEN, max(0.0, until - time.monotonic())))
        else:
            return ""


def unreachable(address: str, why: str) -> str:
    """Return the next move for a Ray cluster that cannot be joined."""
    return (
        f"the Ray cluster at {address} cannot be joined: {why}. The driver has to run on a machine of the cluster "
        "(`ray start --address=HOST:PORT` adds one); cluster.address=null without RAY_ADDRESS starts a cluster of "
        "this machine alone"
    )


class Watch:
    """Thread that holds a connection and reports once that its other end is gone, or no longer greets.

    Ray's processes greet each client at once (HTTP/2 begins with the server's settings), so each new connection
    asks whether they work. Where the first one is not greeted, as with TLS, none is waited for: a process that stands
    still is not seen then.
    """

    def __init__(self, address: str, lost: Callable[[bool], None]) -> None:
        """``address``: ``HOST:PORT``; ``lost``: called in the thread, with whether the process is there and silent."""
        host, _, port = address.rpartition(":")
        self._address, self._lost = (host.strip("[]"), int(port)), lost
        self._greets = False
        self._closed, self._closing = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name=f"watch of {address}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Look no more. Not called by what ``lost`` does; may be called twice."""
        self._closing.close()
        self._thread.join()

    def _run(self) -> None:
        missed = 0
        with self._closed:
            while missed < _ATTEMPTS:
                connection = self._connected()
                missed = 0 if connection else missed + 1
                end = self._hold(connection) if connection else _End.THEIRS
                if end is _End.SILENT:
                    self._lost(True)
                    return
                if end is _End.CLOSED or (end is _End.THEIRS and self._is_closed_within(_BETWEEN)):
                    return
            self._lost(False)

    def _connected(self) -> socket.socket | None:
        with suppress(OSError):
            connection = socket.create_connection(self._address, _PATIENCE)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _SILENCE.items():
                if hasattr(socket, name):  # else by the system's own, later
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            return connection
        return None

    def _hold(self, connection: socket.socket) -> _End:
        """Until it ends, is to be made anew, or should have been greeted."""
        waits = self._greets
        until = time.monotonic() + (_GREETING if waits else _ANEW)
        with connection, selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            selector.register(self._closed, selectors.EVENT_READ)
            while (left := until - time.monotonic()) > 0:
                ready = [key.fileobj for key, _ in selector.select(left)]
                if self._closed in ready:
                    return _End.CLOSED
                if not ready:
                    continue
                if not self._heard(connection):
                    return _End.THEIRS
                self._greets = True
                if waits:
                    waits, until = False, time.monotonic() + _ANEW
        return _End.SILENT if waits else _End.OURS

    @staticmethod
    def _heard(connection: socket.socket) -> bytes:
        """Return the bytes received; none if the connection has ended."""
        with suppress(OSError):
            return connection.recv(4096)
        return b""

    def _is_closed_within(self, seconds: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._closed, selectors.EVENT_READ)
            return bool(selector.select(seconds))


class Life:
    """Watch of a cluster's two processes without which nothing starts on it.

    Attributes:
        address: of its head.
        lost: has how it was lost, once it was.
    """

    def __init__(self, address: str, machine: str) -> None:
        """``machine``: ``HOST:PORT`` of the raylet of the driver's machine."""
        self.address = address
        self.lost: Future[ClusterLost] = Future()
        self._watches = [
            Watch(address, partial(self._lose, "head")),
            Watch(machine, partial(self._lose, "machine")),
        ]

    def asked(self, question: Callable[[], T]) -> T:
        """Return the head's answer. Without this watch, a question to a lost head may wait without end.

        Raises:
            ClusterError: the cluster is lost, now or meanwhile.
        """
        answer: Future[T] = Future()

        def ask() -> None:
            try:
                answer.set_result(question())
            except BaseException as error:
                answer.set_exception(error)

        if not self.lost.done():
            threading.Thread(target=ask, daemon=True).start()
            either: list[Future[Any]] = [answer, self.lost]
            wait(either, return_when=FIRST_COMPLETED)
        if not answer.done():
            raise ClusterError(lost_said(self.lost.result()))
        return answer.result()

    def close(self) -> None:
        """Look no more. May be called twice."""
        for watch in self._watches:
            watch.close()

    def _lose(self, part: Literal["head", "machine"], silent: bool) -> None:
        with suppress(InvalidStateError):  # the other one was before
            self.lost.set_result(ClusterLost(part, self.address, silent))


def lost_said(lost: ClusterLost) -> str:
    """Return how a cluster was lost, in words."""
    how = "does not answer" if lost.silent else "is gone"
    if lost.part == "head":
        return f"the head of the Ray cluster at {lost.address} (its gcs_server) {how}"
    return f"this machine's raylet, its part of the Ray cluster at {lost.address}, {how}"
