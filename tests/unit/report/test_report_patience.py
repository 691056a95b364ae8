"""A connection that stands still is dropped by the local server; one that waits for a slow answer is not."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from serving import made, serving

from dapo.report import patience, serve

pytestmark = pytest.mark.whole


@pytest.fixture
def served(tmp_path: Path):
    made(tmp_path / "run", steps=2)
    with serving(tmp_path) as server:
        yield server


def dripping(port: int, drip: bytes, before: bytes = b"", answers: int = 0) -> socket.socket:
    """Sends ``before``, then a byte at a time for as long as the other side takes it; returns when it was dropped."""
    with socket.create_connection(("127.0.0.1", port), timeout=120) as connection:
        connection.sendall(before)
        for _ in range(answers):
            assert connection.recv(65536).startswith(b"HTTP/1.1 ")
        connection.settimeout(0.02)
        for _ in range(3_000):  # a minute, were it not dropped
            try:
                connection.sendall(drip)
                if connection.recv(65536) == b"":
                    return connection
            except TimeoutError:
                continue
            except OSError:
                return connection
    raise AssertionError("still connected")


HEAD = b"GET /api/runs HTTP/1.1\r\nHost: localhost\r\n"


@pytest.fixture
def impatient(monkeypatch):
    """A fifth of a second for everything but the first head: who is to get an answer shall not be dropped before."""
    wait = patience.PatientProtocol._wait_for_head

    def first_in_peace(self):
        with monkeypatch.context() as patch:
            if self.cycle is None:
                patch.setattr(patience, "SECONDS", 60.0)
            wait(self)

    monkeypatch.setattr(patience, "SECONDS", 0.2)
    monkeypatch.setattr(patience.PatientProtocol, "_wait_for_head", first_in_peace)


@pytest.mark.parametrize(
    ("before", "drip", "answers"),
    [
        (b"", b"", 0),
        (b"", b"x", 0),
        (HEAD, b"x", 0),
        (HEAD + b"\r\n", b"", 1),
        (HEAD + b"\r\n", b"x", 1),
        (HEAD + b"content-length: 1000000\r\n\r\n", b"x", 1),
    ],
    ids=["silent", "drip", "head", "idle", "second head", "body"],
)
def test_who_sends_nothing_or_a_byte_at_a_time_is_dropped(served, request, monkeypatch, before, drip, answers):
    if answers:
        request.getfixturevalue("impatient")
    else:
        monkeypatch.setattr(patience, "SECONDS", 0.2)
    dripping(served.port, drip, before, answers)
    monkeypatch.undo()
    assert served.ask("/api/runs").status == 200


def test_who_does_not_take_an_answer_is_dropped(served, impatient, monkeypatch):
    monkeypatch.setattr(serve, "_runs_html", lambda folder: page)
    page = '<meta http-equiv="Content-Security-Policy" content="default-src">' + "x" * 30_000_000
    with socket.create_connection(("127.0.0.1", served.port), timeout=120) as connection:
        connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        gone = threading.Event()
        for _ in range(3_000):
            if connection.recv(1, socket.MSG_PEEK) and not served.server.server_state.connections:
                gone.set()
                break
            gone.wait(0.02)
        assert gone.is_set()


def test_an_answer_may_take_longer_to_make(served, monkeypatch):
    """A connection that came later and is silent is dropped meanwhile."""
    monkeypatch.setattr(patience, "SECONDS", 2.0)  # of those dropped, too: they came later
    asked, dropped = threading.Event(), threading.Event()
    lines = serve.Shelf.lines

    def waiting(self):
        asked.set()
        assert dropped.wait(60)
        return lines(self)

    monkeypatch.setattr(serve.Shelf, "lines", waiting)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as connection:
        connection.sendall(HEAD + b"\r\n")
        assert asked.wait(60)
        dripping(served.port, b"")
        dropped.set()
        assert connection.recv(65536).startswith(b"HTTP/1.1 200")
