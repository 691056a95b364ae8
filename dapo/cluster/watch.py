"""Whether a process of a cluster lives, seen by a connection to it: it ends with the process, or with the machine.

Ray says nothing of a head that is gone before it ends the program that waits for it. Nothing here imports it.
"""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, InvalidStateError, wait
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from dapo.contracts.evidence import ClusterLost
from dapo.contracts.words import lost_said
from dapo.errors import ClusterError

T = TypeVar("T")

_ATTEMPTS = 3  # in a row that find nobody
_BETWEEN = 1.0  # seconds
_PATIENCE = 5.0  # seconds of each
_SILENCE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A machine that is cut off or without power ends no connection: the system asks it, and gives it up after 25 s."""


class Watch:
    """A thread that holds a connection, in which nothing is said, and tells once that nobody takes it any more.

    Whoever listens may end a connection that says nothing, as Ray's processes do after two minutes: then it is made
    anew. A process that is frozen keeps it.
    """

    def __init__(self, address: str, lost: Callable[[], None]) -> None:
        """``address``: ``HOST:PORT``; ``lost`` is called in the thread."""
        host, _, port = address.rpartition(":")
        self._address, self._lost = (host.strip("[]"), int(port)), lost
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
                if (connection and self._is_closed_first(connection)) or self._is_closed_within(_BETWEEN):
                    return
            self._lost()

    def _connected(self) -> socket.socket | None:
        with suppress(OSError):
            connection = socket.create_connection(self._address, _PATIENCE)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _SILENCE.items():
                if hasattr(socket, name):  # else by the system's own, later
                    connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
            return connection
        return None

    def _is_closed_first(self, connection: socket.socket) -> bool:
        """Until the connection ends, or there is to be no further look."""
        with connection, selectors.DefaultSelector() as selector:
            selector.register(connection, selectors.EVENT_READ)
            selector.register(self._closed, selectors.EVENT_READ)
            while True:
                if self._closed in [key.fileobj for key, _ in selector.select()]:
                    return True
                try:
                    said = connection.recv(4096)
                except OSError:
                    return False
                if not said:
                    return False

    def _is_closed_within(self, seconds: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(self._closed, selectors.EVENT_READ)
            return bool(selector.select(seconds))


class Life:
    """Of a cluster: two processes are watched, without which nothing starts on it.

    Attributes:
        address: of its head.
        lost: has how it was lost, once it was.
    """

    def __init__(self, address: str, machine: str) -> None:
        """``machine``: ``HOST:PORT`` of the raylet of the driver's machine."""
        self.address = address
        self.lost: Future[ClusterLost] = Future()
        self._watches = [
            Watch(address, partial(self._lose, ClusterLost("head", address))),
            Watch(machine, partial(self._lose, ClusterLost("machine", address))),
        ]

    def asked(self, question: Callable[[], T]) -> T:
        """What the head answers: who asks one that is gone may wait for ever.

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

    def _lose(self, how: ClusterLost) -> None:
        with suppress(InvalidStateError):  # the other one was before
            self.lost.set_result(how)
