"""Sandboxes that are not of this machine's kernel alone: bubblewrap, and a service."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from dapo.sandbox import select
from dapo.sandbox.bubblewrap import BubblewrapSandbox
from dapo.sandbox.over_http import ServiceSandbox
from dapo.sandbox.runs import Sandbox, SandboxError
from dapo.sandbox.select import SandboxSettings, make_sandbox, try_sandbox


@contextmanager
def served(answer: Callable[[dict[str, Any], dict[str, str]], tuple[int, bytes]]) -> Iterator[str]:
    """A service that answers JSON by ``answer``: (body, headers) -> status and body."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            status, data = answer(body, dict(self.headers))
            with suppress(OSError):  # a client that went away
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Location", "http://elsewhere.invalid/")
                self.end_headers()
                self.wfile.write(data)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/run"
    finally:
        server.shutdown()
        server.server_close()


def run_it(body: dict[str, Any], _: dict[str, str]) -> tuple[int, bytes]:
    """The stand-in: a process without any walls."""
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-c", body["code"]],
            input=body["stdin"],
            capture_output=True,
            text=True,
            timeout=body["timeout"],
        )
        answer = {"output": done.stdout, "errors": done.stderr, "exit_code": done.returncode, "seconds": 0.5}
    except subprocess.TimeoutExpired:
        answer = {"output": "", "errors": "", "exit_code": None, "seconds": body["timeout"]}
    return 200, json.dumps(answer).encode()


@pytest.fixture(params=["bubblewrap", "http"])
def sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    if request.param == "http":
        with served(run_it) as url:
            yield ServiceSandbox(url)
        return
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    made = BubblewrapSandbox()
    try:
        made.start()
    except SandboxError as error:
        pytest.skip(str(error))
    yield made


def test_a_program_runs(sandbox: Sandbox) -> None:
    assert sandbox.start().startswith("sandbox: ")
    ran = sandbox.run("import sys\nprint(input())\nprint('no', file=sys.stderr)\nsys.exit(3)", "hello", timeout=30)
    assert (ran.output, ran.errors, ran.exit_code, ran.cut) == ("hello\n", "no\n", 3, False)
    ran = sandbox.run("while True: pass", timeout=1)
    assert (ran.output, ran.exit_code) == ("", None)
    assert sandbox.run("print('x' * 1000)", output=10, timeout=30).cut


def test_bubblewrap_closes_network_and_files(tmp_path: Any) -> None:
    if shutil.which("bwrap") is None:
        pytest.skip("bubblewrap is not installed")
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    made = BubblewrapSandbox()
    try:
        line = made.start()
    except SandboxError as error:
        pytest.skip(str(error))
    with served(run_it) as url:
        port = url.split(":")[2].partition("/")[0]
        ran = made.run(
            f"import os, socket\nprint(os.path.exists({str(secret)!r}), os.environ.get('HOME'))\n"
            f"try: socket.create_connection(('127.0.0.1', {port}), 1); print('network')\nexcept OSError: pass\n"
            "try: bytearray(3 << 30); print('memory')\nexcept MemoryError: pass\n"
            "import ctypes\nif ctypes.CDLL(None).unshare(0x10000000) == 0: print('a namespace')\n"
            "if os.fork() == 0:\n    import time; time.sleep(1000)\n",
            timeout=30,
        )
    namespaces = "a namespace\n" if "OPEN: user namespaces" in line else ""
    assert (ran.output, ran.exit_code) == (f"False None\n{namespaces}", 0), ran


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (200, b"[]", "documented form"),
        (200, b"not json", "documented form"),
        (200, b'{"output": "ready\\n", "seconds": 1}', "exit_code"),
        (200, b'{"output": 3, "exit_code": 0, "seconds": 1}', "texts"),
        (200, b'{"output": "", "exit_code": 0, "seconds": NaN}', "seconds"),
        (500, b"broken", "500"),
        (302, b"", "302"),
    ],
)
def test_a_service_that_answers_something_else_is_no_verdict(status: int, body: bytes, said: str) -> None:
    with served(lambda *_: (status, body)) as url, pytest.raises(SandboxError, match=said):
        ServiceSandbox(url).run("print(1)")


def test_a_service_that_is_not_there_is_refused_at_the_start() -> None:
    with pytest.raises(SandboxError, match="refused"):
        try_sandbox(SandboxSettings(kind="http", url="http://127.0.0.1:9/"))


def test_a_service_that_says_nothing_is_waited_for_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dapo.sandbox.over_http._GRACE", 0.1)
    over = threading.Event()

    def answer(*_: Any) -> tuple[int, bytes]:
        over.wait(10)  # a request without a limit would get this answer
        return 200, b'{"output": "", "errors": "", "exit_code": 0, "seconds": 1}'

    with served(answer) as url:
        with pytest.raises(SandboxError, match="no answer within"):
            ServiceSandbox(url).run("print(1)", timeout=0.1)
        over.set()


def test_the_key_is_sent_and_stands_in_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOX_KEY", "very-secret-key")
    seen = []

    def answer(_: dict[str, Any], headers: dict[str, str]) -> tuple[int, bytes]:
        seen.append(headers["Authorization"])
        return 401, headers["Authorization"].encode()

    with served(answer) as url, pytest.raises(SandboxError) as caught:
        ServiceSandbox(url, "SANDBOX_KEY").run("print(1)")
    assert seen == ["Bearer very-secret-key"]
    assert "very-secret" not in str(caught.value)


def test_a_key_that_is_not_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDBOX_KEY", raising=False)
    with pytest.raises(SandboxError, match="SANDBOX_KEY"):
        try_sandbox(SandboxSettings(kind="http", url="http://127.0.0.1:9/", api_key_variable="SANDBOX_KEY"))


def test_elsewhere_than_on_linux_only_none_is_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select.sys, "platform", "darwin")  # type: ignore[attr-defined]
    with pytest.raises(SandboxError, match=r"darwin has none .* `sandbox\.require: none`"):
        try_sandbox(SandboxSettings())
    assert try_sandbox(SandboxSettings(require="none")).startswith("sandbox:")
    made = make_sandbox(SandboxSettings(require="none"))
    try:
        assert made.run("print(1)").output == "1\n"
    finally:
        made.close()
