"""The HTTP client against servers that never finish: every request ends in its time, whatever the server does."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from dapo import http
from dapo.http import Background, Client, HttpError, in_a_thread

DRIP = 0.02  # seconds between two bytes, a fraction of each time limit here
LIMIT = 0.5
PATIENCE = 30.0  # of a test for what has to end after LIMIT; a request without a limit never ends

Serve = Callable[[socket.socket, threading.Event], None]


def drip(data: bytes) -> Serve:
    """A server that sends a byte at a time: the gap between two is never long."""

    def serve(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(1 << 16)
        for byte in data:
            connection.sendall(bytes([byte]))
            if over.wait(DRIP):
                return

    return serve


def repeat(data: bytes, head: bytes = b"") -> Serve:
    def serve(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(1 << 16)
        connection.sendall(head)
        while not over.wait(DRIP):
            connection.sendall(data)

    return serve


def deaf(connection: socket.socket, over: threading.Event) -> None:
    """Accept and never read."""
    over.wait()


def early(connection: socket.socket, over: threading.Event) -> None:
    """Answer before the body of the request was read, and drip on."""
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    while not over.wait(DRIP):
        connection.sendall(b"x")


@contextmanager
def server(serve: Serve) -> Iterator[str]:
    over, threads = threading.Event(), []

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):  # the client went away, as it should
            serve(connection, over)

    def accept(listening: socket.socket) -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=one, args=(connection,), daemon=True))
            threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=accept, args=(listening,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)


def post(url: str, body: Any = None, seconds: float = LIMIT, **options: Any) -> bytes:
    """Send one request. A client without its limit fails the test after PATIENCE instead of holding it up."""

    async def ask() -> bytes:
        client = Client(options.pop("key", None))
        try:
            return await client.post(url, {"a": 1} if body is None else body, seconds, **options)
        finally:
            await client.close()

    background = Background("test")
    try:
        return background.call(asyncio.wait_for(ask(), PATIENCE))
    finally:
        background.stop()


ENDLESS = {
    "a head by bytes": drip(b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 4000),
    "a body by bytes": repeat(b"x", b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n"),
    "a chunked body": repeat(b"1\r\nx\r\n", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "a body without a length": repeat(b"x", b"HTTP/1.0 200 OK\r\n\r\n"),
    "headers without end": repeat(b"X-More: 1\r\n", b"HTTP/1.1 200 OK\r\n"),
    "100 Continue again and again": repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
    "silence": repeat(b""),
    "it never reads": deaf,
    "it answers early and drips": early,
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_request_ends_in_its_time_whatever_the_server_does(name: str) -> None:
    body = "x" * (32 << 20) if name in ("it never reads", "it answers early and drips") else "short"
    with server(ENDLESS[name]) as url, pytest.raises(HttpError) as caught:
        post(url, body)
    assert caught.value.status is None  # away, and asked again


@pytest.mark.parametrize("status", [500, 503, 400])
def test_an_error_whose_body_drips_is_that_error(status: int) -> None:
    head = f"HTTP/1.1 {status} Bad\r\nRetry-After: 7\r\nContent-Length: 100000\r\n\r\n".encode()
    with server(repeat(b"x", head)) as url, pytest.raises(HttpError, match=f"{status} Bad x+") as caught:
        post(url)
    assert (caught.value.status, caught.value.wait) == (status, 7.0)


def test_the_body_of_an_answer_that_was_waited_for_without_a_limit_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "_BODY_SECONDS", LIMIT)
    body = ENDLESS["a body by bytes"]
    with server(body) as url, pytest.raises(HttpError, match="no whole answer"):
        post(url, seconds=None)  # type: ignore[arg-type]


def test_a_slow_answer_within_the_limit_is_read_whole() -> None:
    text = json.dumps({"scores": [0.5]}).encode()
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(text), text)
    with server(drip(answer)) as url:
        assert post(url, seconds=PATIENCE) == text


def once(answer: bytes) -> Serve:
    def serve(connection: socket.socket, over: threading.Event) -> None:
        connection.recv(1 << 16)
        connection.sendall(answer)

    return serve


def test_an_answer_beyond_the_limit_is_not_read() -> None:
    long = repeat(b"x" * 4096, b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")
    with server(long) as url, pytest.raises(HttpError, match="larger than 10000 bytes"):
        post(url, seconds=PATIENCE, limit=10_000)


def test_a_redirect_is_an_error_and_the_key_is_sent_nowhere_else() -> None:
    seen = []

    def other(connection: socket.socket, over: threading.Event) -> None:
        seen.append(connection.recv(1 << 16))
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    with server(other) as elsewhere:
        away = once(b"HTTP/1.1 307 Moved\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % elsewhere.encode())
        with server(away) as url, pytest.raises(HttpError) as caught:
            post(url, key="a-secret")
    assert caught.value.status == 307
    assert f"redirects to {elsewhere}" in str(caught.value)
    assert "set that address" in str(caught.value)
    assert not seen


def test_a_redirect_shows_no_query_of_where_it_leads() -> None:
    away = once(b"HTTP/1.1 302 Found\r\nLocation: http://h/login?ticket=s3cr3t\r\nContent-Length: 0\r\n\r\n")
    with server(away) as url, pytest.raises(HttpError, match="redirects to http://h/login;") as caught:
        post(url)
    assert "s3cr3t" not in str(caught.value)


def test_a_compressed_answer_is_named_as_such_and_not_as_nonsense() -> None:
    body = gzip.compress(b'{"score": 1}')
    head = b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n" % len(body)
    with server(once(head + body)) as url, pytest.raises(HttpError, match=r"compressed \(gzip\).*turn compression off"):
        post(url)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://[::1", "http://", "http://a b/"])
def test_an_address_that_leads_nowhere_is_no_answer(url: str) -> None:
    with pytest.raises(HttpError) as caught:
        post(url, seconds=PATIENCE)
    assert caught.value.status is None


def test_a_server_that_speaks_something_else_is_no_answer() -> None:
    with server(once(b"SSH-2.0-OpenSSH_9\r\n")) as url, pytest.raises(HttpError) as caught:
        post(url, seconds=PATIENCE)
    assert caught.value.status in (None, 400)


def test_a_proxy_of_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def proxy(connection: socket.socket, over: threading.Event) -> None:
        seen.append(connection.recv(1 << 16).split(b"\r\n")[0])
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    with server(proxy) as address:
        monkeypatch.setenv("http_proxy", address)
        assert post("http://judge.invalid/score", seconds=PATIENCE) == b"hi"
        monkeypatch.setenv("no_proxy", "judge.invalid")
        with pytest.raises(HttpError):
            post("http://judge.invalid/score", seconds=PATIENCE)
    assert seen == [b"POST http://judge.invalid/score HTTP/1.1"]


def test_a_function_that_hangs_is_left_behind() -> None:
    hang = threading.Event()

    async def ask() -> str:
        try:
            return await in_a_thread(hang.wait, seconds=LIMIT) or ""
        except TimeoutError:
            return "timeout"

    background = Background("test")
    assert background.call(ask()) == "timeout"
    background.stop()
    hang.set()


def test_what_a_function_raises_arrives() -> None:
    async def ask(function: Callable[[], Any]) -> Any:
        return await in_a_thread(function, seconds=PATIENCE)

    background = Background("test")
    assert background.call(ask(lambda: 3)) == 3
    with pytest.raises(ZeroDivisionError):
        background.call(ask(lambda: 1 / 0))
    with pytest.raises(RuntimeError, match="SystemExit"):
        background.call(ask(lambda: (_ for _ in ()).throw(SystemExit(1))))
    background.stop()


def test_requests_of_one_client_do_not_wait_for_each_other() -> None:
    """A server that drips holds up its own request only."""
    quick = once(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi")

    async def ask(slow: str, fast: str) -> tuple[bytes, bool]:
        client = Client()
        hanging = asyncio.ensure_future(client.post(slow, {}, PATIENCE))
        answer = await client.post(fast, {}, PATIENCE)
        hung = not hanging.done()
        hanging.cancel()
        await asyncio.wait([hanging])
        await client.close()
        return answer, hung

    background = Background("test")
    with server(ENDLESS["100 Continue again and again"]) as slow, server(quick) as fast:
        assert background.call(ask(slow, fast)) == (b"hi", True)
    background.stop()
