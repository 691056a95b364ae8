"""Serve ``/v1/chat/completions`` to the agents of one process, on the loopback.

Each episode has a key. A request with that key waits until the model has written a turn. The endpoint knows no model:
``Conversation`` hands requests to the episode and its turns to the clients.
"""

from __future__ import annotations

import asyncio
import secrets
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

from dapo.environments.chat_requests import BadRequest, Completed, Requested, Sampling, read_request, shown_error

MOST_BODY = 1 << 22  # bytes of a request's body
MOST_THREADS = 4096  # of the process, made as they are needed
QUIET = 600.0  # seconds that a connection may say nothing between two requests
SERVED = "This endpoint serves POST /v1/chat/completions and GET /v1/models"
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
        self._runner: web.AppRunner | None = None
        self._conversations: dict[str, Conversation] = {}

    async def start(self) -> None:
        """Listen on a free port of the loopback; a second call does nothing."""
        if self._runner is not None:
            return
        # agents that call a client by asyncio.to_thread hold a thread while the model writes
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(MOST_THREADS))
        served = web.Application(client_max_size=MOST_BODY, middlewares=[web.middleware(_refusing)])
        served.router.add_get("/v1/models", self._models)
        served.router.add_post("/v1/chat/completions", self._complete)
        # a client that hangs up cancels the handler of its request
        self._runner = web.AppRunner(served, handler_cancellation=True, access_log=None, keepalive_timeout=QUIET)
        listening = socket.create_server(("127.0.0.1", 0))  # clients of other episodes may connect from now on
        self.base_url = f"http://127.0.0.1:{listening.getsockname()[1]}/v1"
        await self._runner.setup()
        await web.SockSite(self._runner, listening).start()

    def open(self) -> Conversation:
        """Return a new conversation, which clients reach by its key."""
        made = Conversation()
        self._conversations[made.key] = made
        return made

    def close(self, conversation: Conversation) -> None:
        """End a conversation and forget its key."""
        conversation.end()
        self._conversations.pop(conversation.key, None)

    def _conversation(self, request: web.Request) -> Conversation:
        kind, _, key = request.headers.get("Authorization", "").partition(" ")
        found = self._conversations.get(key.strip()) if kind.lower() == "bearer" else None
        if found is None:
            raise BadRequest("the key is that of no episode that goes on", "invalid_api_key", 401)
        return found

    async def _models(self, request: web.Request) -> web.Response:
        self._conversation(request)
        model = {"id": "policy", "object": "model", "created": 0, "owned_by": "dapo"}
        return web.json_response({"object": "list", "data": [model]})

    async def _complete(self, request: web.Request) -> web.Response:
        conversation = self._conversation(request)
        requested = read_request(await request.read(), self._sampling)
        if requested.tools and not self._reads_calls:
            raise BadRequest("this run reads no calls of tools; name their format in environment.tool_format")
        async with conversation.asked(requested) as answer:
            completed = await answer
        made = completed.as_response(int(time.time()))
        if not requested.stream:
            return web.json_response(made)
        events = "".join(f"data: {event}\n\n" for event in completed.as_events(made))
        return web.Response(text=events, content_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def _refusing(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadRequest as error:
        return web.json_response(shown_error(str(error), error.code), status=error.status)
    except web.HTTPException as error:  # a path that is not served, a body that is too long
        said = f"{request.method} {request.path}: {(error.text or '').rstrip('.')}. {SERVED}"
        return web.json_response(shown_error(said, "invalid_request"), status=error.status)
