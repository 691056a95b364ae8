"""Serve ``/v1/chat/completions`` to the agents of one process, on the loopback and with the standard library.

Each episode has a key. A request with that key waits until the model has written a turn. The endpoint knows no model:
``Conversation`` hands requests to the episode and its turns to the clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from dapo.environments.chat_requests import BadRequest, Completed, Requested, Sampling, read_request, shown_error

MOST_HEADERS = 1 << 14  # bytes of a request's head
MOST_BODY = 1 << 22  # bytes of a request's body
MOST_THREADS = 4096  # of the process, made as they are needed
QUIET = 600.0  # seconds that a connection may say nothing
LINGERING = 10.0  # seconds in which the rest of a refused request is read
OVER = "this episode is over: no further turn of the model can be had with its key"


@dataclass(slots=True, eq=False)  # two clients may ask the same
class _Waiting:
    """A request that has no answer yet."""

    requested: Requested
    answer: asyncio.Future[Completed]
    gone: bool = False  # its client hung up


@dataclass(slots=True)
class Conversation:
    """The requests of one episode, one at a time.

    Attributes:
        key: the secret by which its clients are known.
    """

    key: str = field(default_factory=lambda: secrets.token_urlsafe(24))
    _queue: deque[_Waiting] = field(default_factory=deque)
    _present: _Waiting | None = None  # whose turn the model writes
    _over: str | None = None
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    async def next(self) -> Requested:
        """Return the next request whose client still waits."""
        while True:
            while self._queue:
                waiting = self._queue.popleft()
                if not waiting.gone:
                    self._present = waiting
                    return waiting.requested
            self._came.clear()
            await self._came.wait()

    def answer(self, completed: Completed) -> None:
        """Answer the present request.

        A client that hung up and asked the same again gets the turn that the model wrote for its first request.
        """
        present, self._present = self._present, None
        if present is None:
            return
        if present.gone:
            again = next((w for w in self._queue if not w.gone and w.requested == present.requested), None)
            if again is None:
                return
            self._queue.remove(again)
            present = again
        if not present.answer.done():
            present.answer.set_result(completed)

    def end(self, why: str = OVER) -> None:
        """Refuse the requests that wait, and all that come."""
        self._over = why
        for waiting in [*self._queue, *([] if self._present is None else [self._present])]:
            if not waiting.answer.done():
                waiting.answer.set_exception(BadRequest(why, "episode_over"))
                waiting.answer.exception()  # nobody may wait for it
        self._queue.clear()
        self._present = None

    @asynccontextmanager
    async def asked(self, requested: Requested) -> AsyncIterator[asyncio.Future[Completed]]:
        """Queue a request, and give its answer; a client that leaves before takes the request with it.

        Raises:
            BadRequest: the episode is over.
        """
        if self._over is not None:
            raise BadRequest(self._over, "episode_over")
        waiting = _Waiting(requested, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        self._came.set()
        try:
            yield waiting.answer
        finally:
            waiting.gone = True


class Endpoint:
    """The server of one process, for all of its episodes.

    Attributes:
        base_url: for clients, such as ``http://127.0.0.1:43210/v1``; known once ``start`` returned.
    """

    base_url: str

    def __init__(self, *, reads_calls: bool = False, sampling: Sampling | None = None) -> None:
        """Describe a server.

        Args:
            reads_calls: calls of tools are read in the model's turns; otherwise a request with tools is refused.
            sampling: of the run; None: a request may ask for nothing.
        """
        self._reads_calls, self._sampling = reads_calls, sampling or Sampling()
        self._server: asyncio.Server | None = None
        self._conversations: dict[str, Conversation] = {}

    async def start(self) -> None:
        """Listen on a free port of the loopback; a second call does nothing."""
        if self._server is None:
            # agents that call a client by asyncio.to_thread hold a thread while the model writes
            asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MOST_THREADS))
            self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=MOST_HEADERS)
            self.base_url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def open(self) -> Conversation:
        """Return a new conversation, which clients reach by its key."""
        made = Conversation()
        self._conversations[made.key] = made
        return made

    def close(self, conversation: Conversation) -> None:
        """End a conversation and forget its key."""
        conversation.end()
        self._conversations.pop(conversation.key, None)

    # ------------------------------------------------------------------ HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                while await self._one(reader, writer):
                    pass
        finally:
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        async with asyncio.timeout(QUIET):
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.LimitOverrunError:
                return await _hang_up(reader, writer, 431, "the head of the request is too long")
        method, path, headers = _head(head)
        length = headers.get("content-length", "0")
        known = "transfer-encoding" not in headers and length.isdecimal() and len(length) <= len(str(MOST_BODY))
        if not known or int(length) > MOST_BODY:
            said = f"a body comes with its content-length, at most {MOST_BODY:,} bytes"
            return await _hang_up(reader, writer, 413, said)
        async with asyncio.timeout(QUIET):
            body = await reader.readexactly(int(length))
        try:
            conversation = self._conversation(headers)
            if method == "GET" and path == "/v1/models":
                model = {"id": "policy", "object": "model", "created": 0, "owned_by": "dapo"}
                await _send(writer, 200, {"object": "list", "data": [model]})
            elif method != "POST" or path != "/v1/chat/completions":
                raise BadRequest(f"there is no {method} {path}; POST /v1/chat/completions", "not_found", 404)
            else:
                requested = read_request(body, self._sampling)
                if requested.tools and not self._reads_calls:
                    raise BadRequest("this run reads no calls of tools; name their format in environment.tool_format")
                await self._complete(conversation, requested, reader, writer)
        except BadRequest as error:
            await _send(writer, error.status, shown_error(str(error), error.code))
        return headers.get("connection", "").lower() != "close"

    def _conversation(self, headers: Mapping[str, str]) -> Conversation:
        kind, _, key = headers.get("authorization", "").partition(" ")
        found = self._conversations.get(key.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise BadRequest("the key is that of no episode that goes on", "invalid_api_key", 401)
        return found

    async def _complete(
        self,
        conversation: Conversation,
        requested: Requested,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        async with conversation.asked(requested) as answer:
            left: asyncio.Future[Any] = asyncio.ensure_future(
                reader.read(1)
            )  # a client that waits for its answer says nothing
            try:
                futures: set[asyncio.Future[Any]] = {answer, left}
                await asyncio.wait(futures, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    raise ConnectionResetError("the client hung up")
            finally:
                left.cancel()
                with contextlib.suppress(asyncio.CancelledError, OSError):
                    await left
        completed = answer.result()
        made = completed.as_response(int(time.time()))
        if not requested.stream:
            await _send(writer, 200, made)
            return
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for event in completed.as_events(made):
            data = f"data: {event}\n\n".encode()
            writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        writer.write(b"0\r\n\r\n")
        await writer.drain()


def _head(head: bytes) -> tuple[str, str, dict[str, str]]:
    lines = head.decode("latin-1").split("\r\n")
    method, _, rest = lines[0].partition(" ")
    pairs = (line.partition(":") for line in lines[1:] if line)
    return (
        method,
        rest.split(" ")[0].partition("?")[0],
        {name.strip().lower(): value.strip() for name, _, value in pairs},
    )


_REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 413: "Too Large", 431: "Too Large"}


async def _send(writer: asyncio.StreamWriter, status: int, body: Any, *more: str) -> None:
    data = json.dumps(body).encode()
    first = f"HTTP/1.1 {status} {_REASONS[status]}"
    head = (first, "Content-Type: application/json", f"Content-Length: {len(data)}", *more, "", "")
    writer.write("\r\n".join(head).encode() + data)
    await writer.drain()


async def _hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, status: int, said: str) -> bool:
    """Refuse a request that was not read to its end; return False, for the connection does not stay open.

    The rest of it is read and dropped: a client that still writes when a connection closes never sees the answer.
    """
    await _send(writer, status, shown_error(said, "too_long"), "Connection: close")
    async with asyncio.timeout(LINGERING):
        while await reader.read(MOST_HEADERS):
            pass
    return False
