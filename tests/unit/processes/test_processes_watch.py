"""A process that is watched by a connection to it: sockets of this test stand in for Ray's."""

from __future__ import annotations

import socket
import threading
from concurrent.futures import Future
from contextlib import ExitStack, suppress

import pytest

from dapo.errors import ClusterError
from dapo.processes import watch
from dapo.processes.watch import Life, Watch, unanswered
from dapo.types.evidence import ClusterLost


class Process:
    """Takes connections, until it is killed. Its port stays its own."""

    def __init__(self, stack):
        self._kept, self._listening = (stack.enter_context(socket.socket()) for _ in range(2))
        for one in (self._kept, self._listening):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        self._kept.bind(("127.0.0.1", 0))
        self._listening.bind(self._kept.getsockname())
        self._listening.listen()
        self.address = "{}:{}".format(*self._kept.getsockname())
        self._stack = stack

    def take(self):
        """The next connection."""
        return self._stack.enter_context(self._listening.accept()[0])

    def kill(self, *connections):
        for one in (self._listening, *connections):
            one.close()


@pytest.fixture
def process(monkeypatch):
    monkeypatch.setattr(watch, "_BETWEEN", 0.0)
    with ExitStack() as stack:
        yield Process(stack)


def test_an_address_at_which_nobody_is_is_told_before_ray_asks_it(process):
    assert unanswered(process.address, 0.0) == ""
    process.kill()
    assert unanswered(process.address, 0.0) == "nothing answered there for 0 s (Connection refused)"
    for other in ("auto", "ray://a:1", "a:b"):  # no matter of ours
        assert unanswered(other, 0.0) == ""


def test_a_head_that_just_starts_is_waited_for(process, monkeypatch):
    tried = []

    def connect(address, timeout):
        tried.append(address)
        if len(tried) < 3:
            raise ConnectionRefusedError(111, "Connection refused")
        return socket.socket()

    monkeypatch.setattr(socket, "create_connection", connect)
    assert unanswered("[::1]:6379") == ""
    assert tried == [("::1", 6379)] * 3


def test_the_end_of_the_process_is_told_once(process):
    told = []
    gone = threading.Event()
    watching = Watch(process.address, lambda silent: (told.append(silent), gone.set()))
    process.kill(process.take())
    gone.wait()
    watching.close()
    watching.close()
    assert told == [False]


def test_who_greeted_and_does_not_any_more_stands_still(process, monkeypatch):
    """As a process that gets no time: the system takes the connection for it."""
    monkeypatch.setattr(watch, "_GREETING", 0.0)
    told: Future[bool] = Future()
    watching = Watch(process.address, told.set_result)
    first = process.take()
    first.sendall(b"settings")
    first.close()
    assert told.result() is True
    watching.close()


def test_a_connection_is_made_anew_to_be_greeted_again(process, monkeypatch):
    monkeypatch.setattr(watch, "_ANEW", 0.01)
    told = []
    watching = Watch(process.address, told.append)
    for _ in range(10):
        connection = process.take()
        with suppress(OSError):  # the very first may have been left by then
            connection.sendall(b"settings")
    watching.close()
    assert told == []


@pytest.mark.whole
def test_where_nobody_greets_no_greeting_is_missed(process, monkeypatch):
    """With TLS the other side speaks second."""
    monkeypatch.setattr(watch, "_ANEW", 0.0)
    monkeypatch.setattr(watch, "_GREETING", 0.0)
    told = []
    watching = Watch(process.address, told.append)
    for _ in range(5):
        process.take()
    watching.close()
    assert told == []


def test_a_connection_that_ends_is_made_anew_and_what_is_said_there_is_dropped(process):
    told = []
    watching = Watch(process.address, told.append)
    for _ in range(5):
        connection = process.take()
        connection.sendall(b"settings")
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(1) == b""  # it has heard all of it, and let go
        connection.close()
    last = process.take()
    watching.close()
    assert last.recv(1) == b""
    assert told == []


def test_who_asks_a_cluster_hears_it_or_that_it_is_lost(process):
    with ExitStack() as stack:
        machine = Process(stack)
        life = Life(process.address, machine.address)
        assert life.asked(lambda: 7) == 7
        with pytest.raises(KeyError):
            life.asked({}.popitem)
        connection, never, asks = process.take(), threading.Event(), threading.Event()

        def question():
            asks.set()
            never.wait()

        def kill():
            asks.wait()
            process.kill(connection)

        threading.Thread(target=kill).start()
        with pytest.raises(
            ClusterError, match=rf"head of the Ray cluster at {process.address} \(its gcs_server\) is g"
        ):
            life.asked(question)
        never.set()
        machine.kill(machine.take())  # the first reason stays
        with pytest.raises(ClusterError, match="gcs_server"):
            life.asked(never.wait)
        life.close()
        assert life.lost.result() == ClusterLost("head", process.address)


def test_a_head_that_stands_still_is_told_from_one_that_is_gone(process, monkeypatch):
    monkeypatch.setattr(watch, "_GREETING", 0.0)
    with ExitStack() as stack:
        life = Life(process.address, Process(stack).address)
        first = process.take()
        first.sendall(b"settings")
        first.close()
        assert life.lost.result() == ClusterLost("head", process.address, silent=True)
        with pytest.raises(ClusterError, match=r"\(its gcs_server\) does not answer"):
            life.asked(list)
        life.close()


def test_a_lost_raylet_of_this_machine_is_another_reason(process):
    with ExitStack() as stack:
        head = Process(stack)
        life = Life(head.address, process.address)
        process.kill(process.take())
        assert life.lost.result() == ClusterLost("machine", head.address)
        life.close()
