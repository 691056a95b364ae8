"""Messages between processes in parts: a pickle, and the memory of each large array beside it.

An array is sent from where it is, and stays where it arrived: no byte of it is copied in between.
"""

from __future__ import annotations

import pickle
import socket
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

Parts = list[Any]
"""The pickle and the arrays' memory: objects with bytes."""

_LARGE = 1 << 12  # bytes of an array that travels beside the pickle; a smaller one is quicker within
_MOST = 512  # parts that one system call moves
_NUMBER = struct.Struct("!Q")


def packed(value: Any) -> Parts:
    """Return a value as it travels. Large arrays are not copied: the value must not change until it was sent."""
    beside: Parts = []

    def keep_within(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes >= _LARGE:
            beside.append(memory)
        return memory.nbytes < _LARGE

    pickled = pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL, buffer_callback=keep_within)
    return [pickled, *beside]


def unpacked(parts: Parts) -> Any:
    """Return the value. Its large arrays are the parts, not copies."""
    return pickle.loads(parts[0], buffers=parts[1:])


def with_sizes(parts: Parts) -> Parts:
    """Return parts behind one that says how many there are, and of how many bytes each is."""
    sizes = [len(part) for part in parts]
    return [struct.pack(f"!{1 + len(sizes)}Q", len(sizes), *sizes), *parts]


def send(connection: socket.socket, parts: Parts) -> None:
    """Send a message; waits until the connection took it."""
    _move([memoryview(part) for part in with_sizes(parts)], connection.sendmsg)


def receive(connection: socket.socket) -> Parts:
    """Return the next message; waits for it.

    Raises:
        EOFError: the connection has ended.
    """

    def fill(views: list[memoryview]) -> None:
        _move(views, lambda some: connection.recvmsg_into(some, 0, socket.MSG_WAITALL)[0])

    count = bytearray(_NUMBER.size)
    fill([memoryview(count)])
    sizes = bytearray(_NUMBER.unpack(count)[0] * _NUMBER.size)
    fill([memoryview(sizes)])
    first, *beside = (size for (size,) in _NUMBER.iter_unpack(sizes))
    # Memory of its own for each array, so that what an earlier step let go of is used again. numpy would have large
    # pages made for the pickle, and the system sets them to zero each time.
    parts = [memoryview(bytearray(first)), *(np.empty(size, np.uint8).data for size in beside)]
    fill(list(parts))
    return parts


def _move(views: list[memoryview], step: Callable[[list[memoryview]], int]) -> None:
    """Call ``step`` with the next views until all bytes were moved; it returns how many it moved.

    Raises:
        EOFError: none.
    """
    done = 0
    while done < len(views):
        count = step(views[done : done + _MOST])
        if not count:
            raise EOFError
        done = advance(views, done, count)


def advance(views: list[memoryview], done: int, count: int) -> int:
    """Take note that ``count`` bytes more were moved; return the index of the first view with bytes left.

    Args:
        views: what is moved; one that was moved in part is cut.
        done: views before this one were moved earlier.
        count: bytes.
    """
    while done < len(views) and count >= len(views[done]):
        count -= len(views[done])
        done += 1
    if count:
        views[done] = views[done][count:]
    return done
