"""The far end of a pipe: a process that makes an object and answers calls to it, one after another."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from dapo.system import end_with_parent_if_asked


@dataclass(frozen=True, slots=True)
class Packed:
    """A value that was pickled once; unpickling this gives the value itself."""

    content: bytes

    def __reduce__(self) -> tuple[Any, ...]:
        return pickle.loads, (self.content,)


def packed(value: Any) -> bytes:
    """As it travels."""
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def unpacked(content: bytes) -> Any:
    """As it arrives."""
    return pickle.loads(content)


def main(descriptor: int) -> None:
    """Serve until the driver closes the connection."""
    os.set_inheritable(descriptor, False)  # processes that the object starts must not hold it open
    end_with_parent_if_asked()
    serve(Connection(descriptor))


def serve(connection: Connection) -> None:
    """Serve a connection. The first message names what to make and is answered with the process id; all others are
    calls."""
    thing: Any = None
    broken: bytes | None = None
    first = connection.recv_bytes()
    connection.send_bytes(packed(os.getpid()))
    try:
        make, args = unpacked(first)
        thing = make(*args)
    except BaseException as error:
        broken = _failure(error)
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        connection.send_bytes(broken or _answer(thing, message))


def _answer(thing: Any, message: bytes) -> bytes:
    try:
        method, args = unpacked(message)
        return packed((True, getattr(thing, method)(*args)))
    except BaseException as error:
        return _failure(error)


def _failure(error: BaseException) -> bytes:
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
