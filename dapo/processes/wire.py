"""Messages between driver and worker. Standard library alone on the worker's side.

A frame is a length (8 bytes) and a body. The driver sends pickles. What comes back is JSON and nothing else, its length
and shape are checked, and it is read as far as it is there, never waited for: code in a worker that writes to the
connection can lose that worker, and neither hold up the driver nor run anything in it.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator, Sequence
from typing import Any

MAX_ANSWER_FRAME = 1 << 20  # bytes of one frame of a worker
_HEADER = struct.Struct("!Q")


class WireError(Exception):
    """The other side sent something that is no message."""


def heading(body: bytes) -> bytes:
    """Return what goes before the body of a frame."""
    return _HEADER.pack(len(body))


def frame(body: bytes) -> bytes:
    return heading(body) + body


def answer_frame(messages: Sequence[dict[str, Any]]) -> bytes:
    """Return some messages of a worker as a frame. Lone surrogates, which JSON text can hold and files cannot, become
    question marks."""
    return frame(json.dumps([_encodable(each) for each in messages], allow_nan=False).encode())


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(each) for key, each in value.items()}
    return value


def receive(connection: socket.socket) -> bytes:
    """Return the body of the next frame; waits for it.

    Raises:
        EOFError: the connection has ended.
    """
    (length,) = _HEADER.unpack(_exactly(connection, _HEADER.size))
    return _exactly(connection, length)


def _exactly(connection: socket.socket, length: int) -> bytes:
    body = bytearray(length)
    view, done = memoryview(body), 0
    while done < length:
        count = connection.recv_into(view[done:])
        if count == 0:
            raise EOFError
        done += count
    return bytes(body)


class Inbox:
    """Cuts what has come of a stream into frames."""

    def __init__(self, limit: int = MAX_ANSWER_FRAME) -> None:
        self._limit, self._data = limit, bytearray()

    def feed(self, data: bytes) -> None:
        self._data += data

    def frames(self) -> Iterator[bytes]:
        """Bodies of the frames that are there in full.

        Raises:
            WireError: a length beyond the limit.
        """
        while len(self._data) >= _HEADER.size:
            (length,) = _HEADER.unpack_from(self._data)
            if length > self._limit:
                raise WireError(f"a message of {length} bytes; at most {self._limit}")
            end = _HEADER.size + length
            if len(self._data) < end:
                return
            body = bytes(self._data[_HEADER.size : end])
            del self._data[:end]
            yield body
