"""The far end of a pipe: a process that makes an object and answers calls to it, one after another."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from typing import Any

from dapo.processes.large_messages import Parts, packed, receive, send, unpacked
from dapo.system import end_with_parent_if_asked


def main(descriptor: int) -> None:
    """Serve until the driver closes the connection."""
    os.set_inheritable(descriptor, False)  # processes that the object starts must not hold it open
    end_with_parent_if_asked()
    serve(socket.socket(fileno=descriptor))


def serve(connection: socket.socket) -> None:
    """Serve a connection. The first message names what to make and is answered with the process id; all others are
    calls."""
    thing: Any = None
    broken: Parts | None = None
    first = receive(connection)
    send(connection, packed(os.getpid()))
    try:
        make, args = unpacked(first)
        thing = make(*args)
    except BaseException as error:
        broken = _failure(error)
    while True:
        try:
            message = receive(connection)
        except EOFError:
            return
        send(connection, broken or _answer(thing, message))


def _answer(thing: Any, message: Parts) -> Parts:
    try:
        method, args = unpacked(message)
        return packed((True, getattr(thing, method)(*args)))
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> Parts:
    """Pickle the error if possible, else its words. Its traceback is printed."""
    traceback.print_exc(file=sys.stderr)
    if isinstance(error, Exception):
        try:
            answer = packed((False, error))
            unpacked(answer)
        except Exception:
            pass
        else:
            return answer
    return packed((False, RuntimeError(f"{type(error).__name__}: {error}")))
