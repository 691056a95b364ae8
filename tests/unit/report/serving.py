"""A server over a folder of runs, for tests: on a port of its own, asked byte for byte."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from made_folders import make_run as made

from dapo.report import serve
from dapo.report.runs_list import RunsFolder


@dataclass
class Reply:
    """What the server answered."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Served:
    """A server over a folder, on a port of its own."""

    def __init__(self, folder: Path, **options: Any) -> None:
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.server = serve.make_server(serve.make_app(RunsFolder.at(folder), **options))
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [listener]}, daemon=True)
        self.thread.start()

    def ask(self, target: str, method: str = "GET", **headers: str) -> Reply:
        """A request exactly as given: no client between that would tidy the path."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.putrequest(method, target, skip_host="Host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name.replace("_", "-"), value)
            connection.endheaders()
            response = connection.getresponse()
            return Reply(response.status, response.read(), {k.lower(): v for k, v in response.getheaders()})
        finally:
            connection.close()

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(120)


@contextlib.contextmanager
def serving(folder: Path, **options: Any) -> Iterator[Served]:
    served = Served(folder, **options)
    try:
        yield served
    finally:
        served.stop()


def named(name: str) -> str:
    return "run=" + urllib.parse.quote(name, safe="")


def until(ask: Callable[[], Reply], status: int) -> Reply:
    """Ask until the status comes: an answer that took long to make is given again for a while."""
    for _ in range(2400):
        if (reply := ask()).status == status:
            return reply
        time.sleep(0.05)
    raise AssertionError(f"no {status} in two minutes")


def make_runs(folder: Path) -> Path:
    """Four runs of different ends, one of them hidden deeper, and things that are no runs."""
    made(folder / "good", parts="status spans tokens samples rollouts prompts log")
    made(folder / "sweep" / "seed 2 #%", seed=2)
    made(folder / "unfilled", how="unfilled")
    made(folder / "crashed", how="crashed", steps=3)
    made(folder / ".hidden" / "run", steps=1)
    (folder / "no_run").mkdir()
    (folder / "note.txt").write_text("a secret")
    return folder
