"""HTTP requests that end: one asynchronous client for judges, HTTP sandboxes and vLLM servers.

A time limit bounds the whole request: the connection, the head of the answer, and its body, also where a server sends
a byte now and then. An answer's size is bounded, too. Redirects are not followed: they would carry a key elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import wait
from dataclasses import dataclass
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit
from urllib.request import getproxies, proxy_bypass

_CHUNK = 1 << 16
_SAID = 300  # characters of an error's body that a message shows
_SECRET = 6  # characters from which on a value of a query may be a key
_NO_COMPRESSION = "which was not asked for; turn compression off at the server or at the proxy before it"
_CONNECT_SECONDS = 30.0
_LOOK_SECONDS = 1.0
_BODY_SECONDS = 60.0  # for the body of an answer that was waited for without a limit
_T = TypeVar("_T")


class HttpError(Exception):
    """A question without an answer.

    Attributes:
        status: of the answer that was an error; None: nothing answered in time.
        wait: seconds that the service asked to wait for; None: it did not say.
    """

    def __init__(self, message: str, status: int | None = None, wait: float | None = None) -> None:
        """See the class."""
        super().__init__(message)
        self.status, self.wait = status, wait


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer of a server; of an error perhaps a part of the body."""

    status: int
    reason: str
    wait: float | None  # seconds that it asks to wait for
    body: bytes


class Client:
    """Sends requests from one asyncio loop.

    Args:
        key: sent as a bearer token. It is in no message of an error.
        idle: seconds for which a connection is kept for the next request; 0: each request has its own.
        proxies: whether the proxies of the environment are used.
    """

    def __init__(self, key: str | None = None, *, idle: float = 0.0, proxies: bool = True) -> None:
        """See the class."""
        self._key, self._idle, self._proxies = key, idle, proxies
        self._session: Any = None

    async def send(
        self,
        method: str,
        url: str,
        *,
        body: Any = None,
        query: Mapping[str, str] | None = None,
        timeout: float | None = None,
        limit: int = 16 << 20,
    ) -> Answer:
        """Send one request.

        Args:
            method: ``GET`` or ``POST``.
            url: http or https.
            body: sent as JSON; None: nothing is.
            query: behind the path.
            timeout: seconds until all of the answer has come; None: its head may take for ever, its body a minute.
            limit: bytes of an answer.

        Raises:
            HttpError: there is no whole answer in time, or it is too long. Of an error's body what came is enough.
        """
        import aiohttp

        session = self._open(aiohttp)
        received, status, reason, wait = bytearray(), None, "", None
        try:
            async with (
                asyncio.timeout(timeout),
                session.request(
                    method, url, json=body, params=query, proxy=self._proxy(url), allow_redirects=False
                ) as answer,
            ):
                status, reason, wait = int(answer.status), str(answer.reason or ""), _wait(answer.headers)
                if 300 <= status < 400:
                    return Answer(status, reason, wait, _redirected(answer.headers).encode())
                encoding = answer.headers.get("Content-Encoding", "identity")
                if status < 300 and encoding.lower() not in ("", "identity"):
                    raise HttpError(f"the answer is compressed ({encoding[:40]}), {_NO_COMPRESSION}", status)
                async with asyncio.timeout(_BODY_SECONDS if timeout is None else None):
                    async for piece in answer.content.iter_chunked(_CHUNK):
                        received += piece
                        if len(received) > limit:
                            raise HttpError(f"the answer is larger than {limit} bytes", status)
                        if status >= 400 and len(received) >= _CHUNK:
                            break
        except TimeoutError:
            if status is None or status < 400:
                within = "" if timeout is None else f" within {timeout:g} s"
                raise HttpError(f"no {'whole ' if status else ''}answer{within}") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise HttpError(self._shown(_said(error), url)) from None
        return Answer(status, reason, wait, bytes(received))

    async def post(self, url: str, body: Any, timeout: float, *, limit: int = 16 << 20) -> bytes:
        """Return the body of the answer to a POST of JSON.

        Raises:
            HttpError: see ``send``; or the answer is an error.
        """
        answer = await self.send("POST", url, body=body, timeout=timeout, limit=limit)
        if 200 <= answer.status < 300:
            return answer.body
        said = self._shown(" ".join(answer.body.decode("utf-8", "replace").split()), url)[:_SAID]  # no part of a key
        message = f"{answer.status} {self._shown(answer.reason, url)} {said}".strip()
        raise HttpError(message, answer.status, answer.wait)

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()

    def without_key(self, said: Any) -> Any:
        """Return what a server said, a text or JSON, without the key, which some repeat."""
        if not self._key:
            return said
        if isinstance(said, str):
            return said.replace(self._key, "<key>")
        if isinstance(said, list):
            return [self.without_key(each) for each in said]
        if isinstance(said, dict):
            return {self.without_key(name): self.without_key(value) for name, value in said.items()}
        return said

    def _open(self, aiohttp: Any) -> Any:
        """Return the session, which belongs to the running loop."""
        if self._session is None:
            kept = {"keepalive_timeout": self._idle} if self._idle else {"force_close": True}
            # A small answer that unpacks to a large one is refused by not unpacking any.
            headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
            if self._key is not None:
                headers["Authorization"] = f"Bearer {self._key}"
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, **kept),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
            )
        return self._session

    def _proxy(self, url: str) -> str | None:
        """Return the address of the proxy that the environment names for a server."""
        parts = urlsplit(url)
        if not self._proxies or proxy_bypass(parts.netloc.rpartition("@")[2]):
            return None
        return getproxies().get(parts.scheme)

    def _shown(self, text: str, url: str) -> str:
        """Return a message without the key and the query of the url, which libraries and services repeat."""
        query = url.partition("#")[0].partition("?")[2]
        text = text.replace(f"?{query}", "") if query else text
        for value in (value for _, value in parse_qsl(query) if len(value) >= _SECRET):
            text = text.replace(value, "<query>")
        return str(self.without_key(text))


def without_query(url: str) -> str:
    """Return an address as messages show it: its query, which may hold a key, is left out."""
    return urlsplit(url)._replace(query="", fragment="").geturl()


class Background:
    """An asyncio loop in a daemon thread.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        """See the class."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether ``stop`` was called."""
        return self._loop.is_closed()

    def call(self, work: Coroutine[Any, Any, _T], look: Callable[[], None] | None = None) -> _T:
        """Run a coroutine in the thread and wait for what it returns; ``look`` is called every second and may raise."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            while look is not None and not wait([future], _LOOK_SECONDS).done:
                look()
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def do_soon(self, function: Callable[[], object]) -> None:
        """Call a function in the thread, without waiting."""
        self._loop.call_soon_threadsafe(function)

    def stop(self) -> None:
        """End the thread; its tasks are forgotten where they are."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def in_a_thread(function: Callable[..., _T], *arguments: Any, seconds: float) -> _T:
    """Return what a function returns, called in a daemon thread of its own, which is left behind where it hangs.

    Raises:
        TimeoutError: it has not returned after ``seconds``.
        Exception: what the function raised.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[_T] = loop.create_future()

    def settle(set_result: Callable[[Any], None], value: Any) -> None:
        if not future.done():
            set_result(value)

    def run() -> None:
        try:
            done: tuple[Callable[[Any], None], Any] = (future.set_result, function(*arguments))
        except BaseException as error:
            done = (future.set_exception, error if isinstance(error, Exception) else RuntimeError(repr(error)))
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, *done)

    threading.Thread(target=run, name="reading", daemon=True).start()
    return await asyncio.wait_for(future, seconds)


def read_key(variable: str, setting: str, service: str) -> str:
    """Return a service's key.

    Args:
        variable: the environment variable that holds it.
        setting: that names the variable.
        service: whose key it is, in words.

    Raises:
        ValueError: it is not set, or cannot be sent. The message does not show it.
    """
    key = os.environ.get(variable, "").strip()
    if not key:
        raise ValueError(
            f"the environment variable {variable} ({setting}) is not set; set it to the key of {service} where the run "
            "starts"
        )
    if not (key.isascii() and key.isprintable()):
        raise ValueError(
            f"the environment variable {variable} ({setting}) holds characters that a header cannot; expected the key "
            f"of {service} in one line of ASCII"
        )
    return key


def _said(error: Exception) -> str:
    """Return an error's words; of a connection that was not made the system's, such as "Connection refused"."""
    number = error.errno if isinstance(error, OSError) else None
    words = str(error) or type(error).__name__
    return f"{os.strerror(number)}: {words}" if number is not None and number > 0 else words


def _redirected(headers: Mapping[str, str]) -> str:
    to = without_query(headers.get("Location", "")) or "an address that it does not name"
    return f"(the server redirects to {to}; redirects are not followed, so set that address if it is the right one)"


def _wait(headers: Mapping[str, str]) -> float | None:
    said = headers.get("Retry-After", "")
    return float(said) if said.isascii() and said.isdigit() else None
