"""A stand-in for a judge: a server over HTTP that is slow, fails, errs or is away for a while.

``combinations_clock.py`` draws what its judge does.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

FAILURES = ("500", "503", "nonsense", "connection")


class Judge(ThreadingHTTPServer):
    """Score responses: 1.0 for the right total, and the opposite for a share ``errs`` of the responses.

    ``failures`` of the requests fail: by an error, a refusal for now, nonsense, or a connection that ends. ``away``
    seconds after ``leaves`` seconds from the first request, each connection ends without an answer.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, latency: float, failures: float, errs: float, leaves: float, away: float) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.latency, self.failures, self.errs = latency, failures, errs
        self.leaves, self.away, self.first = leaves, away, math.inf
        self.chance, self.lock = random.Random(1), threading.Lock()

    def outcome(self) -> str:
        """Draw what happens to a request: one of ``FAILURES``, or "answered"."""
        now = time.monotonic()
        with self.lock:
            fails = self.chance.random() < self.failures
            what = self.chance.choice(FAILURES) if fails else "answered"
            self.first = min(self.first, now)
        return "connection" if self.leaves <= now - self.first < self.leaves + self.away else what

    def score(self, prompt: str, response: str, answer: str) -> float:
        right = response.rpartition("=")[2].strip() == answer
        drawn = int.from_bytes(hashlib.sha256(f"{prompt} {response}".encode()).digest()[:4]) / 2**32
        return float(right != (drawn < self.errs))

    def handle_error(self, *_: Any) -> None:  # a client that went away
        pass


class _Handler(BaseHTTPRequestHandler):
    server: Judge

    def do_POST(self) -> None:
        questions = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["questions"]
        what = self.server.outcome()
        time.sleep(self.server.latency)
        if what == "connection":
            self.close_connection = True
            return
        scores = [self.server.score(each["prompt"], each["response"], each["answer"]) for each in questions]
        data = json.dumps({"scores": scores}).encode() if what == "answered" else b"soon"
        self.send_response(int(what) if what.isdigit() else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(
    latency: float = 0.0, failures: float = 0.0, errs: float = 0.0, leaves: float = 0.0, away: float = 0.0
) -> Iterator[Judge]:
    """Serve in a thread while the context lasts."""
    judge = Judge(latency, failures, errs, leaves, away)
    threading.Thread(target=judge.serve_forever, daemon=True).start()
    try:
        yield judge
    finally:
        judge.shutdown()
        judge.server_close()
