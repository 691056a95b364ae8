"""The sandbox of this machine: a fork server with namespaces, Landlock, seccomp and limits, without any installation.

The kernel, and what this process runs in, may refuse each of them. So a sandbox is tried when it starts: a program in
it attacks, and what it could not do is what holds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from dapo.sandbox.runs import DISK_MIB, OUTPUT_BYTES, PROCESSES, Ran, SandboxError

Require = Literal["full", "files", "none"]
WALLS = ("namespaces", "landlock", "seccomp")
HOLDS = ("files", "network", "processes", "disk", "forks")
"""What the trial at the start looks at."""
NEEDED: dict[str, tuple[str, ...]] = {"full": HOLDS, "files": ("files", "network"), "none": ()}
_SERVER = (
    "import json, sys; sys.path.append(sys.argv[2]); from dapo.sandbox.server import main; "
    "main(int(sys.argv[1]), json.loads(sys.argv[3]))"
)
_ENVIRONMENT = {
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "MALLOC_ARENA_MAX": "1",  # each arena takes 128 MiB of the address space: a dozen threads would fill it
}
_HOME = str(Path(__file__).resolve().parents[2])  # the folder that holds the package
_START_LIMIT = 60.0  # seconds until the server has answered, on a busy machine
_GRACE = 20.0  # seconds beyond a program's time limit after which the server counts as lost
_CHUNK = 1 << 16

_TRIAL = """
import json, os, socket, sys
secret, outside = json.loads(sys.stdin.read())
holds = {}
def refused(attempt):
    try:
        attempt()
    except OSError:
        return True
    return False
holds["files"] = all([
    refused(lambda: open(secret).close()),
    refused(lambda: os.listdir(os.path.dirname(secret))),
    refused(lambda: open(secret + ".new", "w").close()),
    refused(lambda: os.chmod(secret, 0o600)),
    refused(lambda: os.listdir("/proc/self/fd")),
])
holds["network"] = all(
    refused(lambda kind=kind: socket.socket(socket.AF_INET, kind).close())
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM)
)
holds["processes"] = os.getppid() == 1 and refused(lambda: os.kill(outside, 0)) or os.getppid() == 1 == outside
try:
    disk = os.statvfs(".")
    holds["disk"] = disk.f_blocks * disk.f_frsize <= 2 ** 20 * DISK
except OSError:
    holds["disk"] = False
reading, writing = os.pipe()
children = []
try:
    while len(children) < 300:  # not 32: without a namespace, others of the user that end leave room for more
        child = os.fork()
        if child == 0:
            os.close(writing)
            os.read(reading, 1)
            os._exit(0)
        children.append(child)
    holds["forks"] = False
except OSError:
    holds["forks"] = bool(children)
os.close(writing)
for child in children:
    os.waitpid(child, 0)
with open("probe", "w") as file:
    file.write("x")
print(json.dumps(holds))
""".replace("DISK", str(DISK_MIB))


class LocalSandbox:
    """A ``Sandbox`` of this machine. Threads may share one; a program waits for the one before it.

    Attributes:
        holds: what the trial found closed or bounded, of ``HOLDS``; empty before the start.
    """

    def __init__(self, require: Require = "full", *, walls: Collection[str] = WALLS) -> None:
        """Describe a sandbox; ``start`` or the first program makes it.

        Args:
            require: what has to hold: ``full`` everything, ``files`` that files and network are closed.
            walls: what is tried at all.
        """
        self.holds: tuple[str, ...] = ()
        self._require = require
        self._walls = set(walls)
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: socket.socket | None = None
        self._rest = b""
        self._line = ""

    def start(self) -> str:
        """Start the server and try what holds; see ``Sandbox``."""
        with self._lock:
            if self._connection is None:
                self._start()
            return self._line

    def run(
        self, program: str, stdin: str = "", *, timeout: float = 5.0, memory_mib: int = 512, output: int = OUTPUT_BYTES
    ) -> Ran:
        """Run a program; see ``Sandbox``."""
        with self._lock:
            if self._connection is None:
                self._start()
            return self._run(program, stdin, timeout, memory_mib, output)

    def close(self) -> None:
        """End the server, and with it a program that runs."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            try:
                self._process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None

    # ------------------------------------------------------------------ the start

    def _start(self) -> None:
        """Start a server with all walls, or, where that fails and may, without namespaces.

        Raises:
            SandboxError: what is required does not hold.
        """
        problems: list[str] = []
        tries = [self._walls, self._walls - {"namespaces"}] if "namespaces" in self._walls else [self._walls]
        for walls in tries:
            hello = self._launch(walls)
            if "failed" in hello:
                problems.append(hello["failed"])
                continue
            problems += hello["problems"]
            try:
                self.holds = self._try()
            except SandboxError as error:
                problems.append(str(error))
                continue
            if all(each in self.holds for each in NEEDED[self._require]):
                self._line = _told(self.holds, hello["walls"])
                return
        self.close()
        raise SandboxError(_refusal(self._require, self.holds, problems))

    def _launch(self, walls: Collection[str]) -> dict[str, Any]:
        self.close()
        ours, theirs = socket.socketpair()
        asked = {wall: wall in walls for wall in WALLS} | {"home": _HOME}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-s", "-S", "-c", _SERVER, str(theirs.fileno()), _HOME, json.dumps(asked)],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=_ENVIRONMENT,
                cwd="/",
                start_new_session=True,
            )
        self._connection, self._rest = ours, b""
        answer = self._answer(time.monotonic() + _START_LIMIT)
        return answer if answer is not None else {"failed": "the server of the sandbox ended at its start"}

    def _try(self) -> tuple[str, ...]:
        """Return what holds, by a program that attacks."""
        with tempfile.TemporaryDirectory(prefix="dapo-trial-") as folder:
            secret = Path(folder, "secret")
            secret.write_text("a secret")
            Path(folder).chmod(0o755)
            secret.chmod(0o644)
            ran = self._run(_TRIAL, json.dumps([str(secret), os.getpid()]), _START_LIMIT, 512, OUTPUT_BYTES)
        try:
            found = json.loads(ran.output)
        except ValueError:
            said = (ran.errors or ran.output).strip().splitlines()
            raise SandboxError(f"the first program did not run: {said[-1] if said else ran.exit_code}") from None
        return tuple(each for each in HOLDS if found[each])

    # ------------------------------------------------------------------ one program

    def _run(self, program: str, stdin: str, timeout: float, memory_mib: int, output: int) -> Ran:
        assert self._connection is not None
        request = {"seconds": timeout, "memory_mib": memory_mib, "disk_mib": DISK_MIB, "processes": PROCESSES}
        outs = _Stream(output), _Stream(output)
        sent = [_as_file(program), _as_file(stdin), outs[0].writing, outs[1].writing]
        try:
            try:
                socket.send_fds(self._connection, [json.dumps(request).encode()], sent)
            except OSError:
                self.close()
                raise SandboxError("the server of the sandbox has ended") from None
            finally:
                for descriptor in sent:
                    os.close(descriptor)
            answer = self._answer(time.monotonic() + timeout + _GRACE, outs)
        finally:
            for each in outs:
                each.close()
        if answer is None:
            self.close()
            raise SandboxError("the server of the sandbox was lost while a program ran")
        if "failed" in answer:
            raise SandboxError(answer["failed"])
        texts = [each.text() for each in outs]
        return Ran(texts[0], texts[1], answer["exit_code"], answer["seconds"], any(each.cut for each in outs))

    def _answer(self, until: float, outs: tuple[_Stream, ...] = ()) -> dict[str, Any] | None:
        """Return the server's next message, keeping meanwhile what a program writes; None: there will be none."""
        assert self._connection is not None
        streams = {each.reading: each for each in outs}
        message: dict[str, Any] | None = None
        while message is None or streams:
            waited = [*streams] if message is not None else [*streams, self._connection.fileno()]
            ready = _readable(waited, until)
            if not ready:
                return message
            for descriptor in ready:
                if descriptor in streams:
                    if not streams[descriptor].take():
                        del streams[descriptor]
                    continue
                try:
                    data = self._connection.recv(_CHUNK)
                except OSError:
                    data = b""
                if not data:
                    return None
                self._rest += data
                if b"\n" in self._rest:
                    line, _, self._rest = self._rest.partition(b"\n")
                    message = json.loads(line)
        return message


class _Stream:
    """A pipe whose beginning is kept; the rest is read and dropped, so that the program need not wait."""

    def __init__(self, limit: int) -> None:
        self.reading, self.writing = os.pipe()
        self.cut = False
        self._limit, self._data = limit, bytearray()

    def take(self) -> bool:
        """Read pending output; False means that the stream has ended."""
        data = os.read(self.reading, _CHUNK)
        room = self._limit - len(self._data)
        self._data += data[:room]
        self.cut = self.cut or len(data) > room
        return bool(data)

    def text(self) -> str:
        return self._data.decode("utf-8", "replace")

    def close(self) -> None:
        os.close(self.reading)


def _readable(descriptors: list[int], until: float) -> list[int]:
    """Return which of them can be read, waiting until then at most."""
    poller = select.poll()
    for descriptor in descriptors:
        poller.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poller.poll(max(0.0, until - time.monotonic()) * 1000)]


def _as_file(text: str) -> int:
    """Return a descriptor of a sealed file in memory, which is read from its beginning."""
    data = text.encode("utf-8", "surrogatepass")
    make = getattr(os, "memfd_create", None)
    if make is None:
        file, path = tempfile.mkstemp()
        os.unlink(path)
    else:
        file = make("program", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)  # type: ignore[attr-defined,unused-ignore]
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, file)
        with open(os.dup(file), "wb") as stream:
            stream.write(data)
        if make is not None:
            seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE  # type: ignore[attr-defined,unused-ignore]
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, seals)  # type: ignore[attr-defined,unused-ignore]
        os.lseek(file, 0, os.SEEK_SET)
        stack.pop_all()
    return file


def _told(holds: Collection[str], walls: dict[str, Any]) -> str:
    """Return the line about a sandbox that started."""
    level = next(name for name, needed in NEEDED.items() if all(each in holds for each in needed))
    used = [name for name in ("namespaces", "seccomp") if walls[name]]
    if walls["landlock"]:
        used.append(f"Landlock {walls['landlock']}")
    open_ = [each for each in HOLDS if each not in holds]
    said = f"sandbox: {level} ({', '.join(used) or 'limits alone'}); closed or bounded: {', '.join(holds) or 'nothing'}"
    return f"{said}; OPEN: {', '.join(open_)}" if open_ else said


def _refusal(require: str, holds: Collection[str], problems: Collection[str]) -> str:
    missing = ", ".join(each for each in NEEDED[require] if each not in holds)
    why = "; ".join(dict.fromkeys(problems)) or "the trial found them open"
    weaker = "files" if require == "full" and all(each in holds for each in NEEDED["files"]) else "none"
    return (
        f"sandbox.require is {require}, and here programs are not kept from: {missing or 'running at all'} ({why}). "
        f"Allow user namespaces (docs/howto_code_rewards.md), use another sandbox.kind, or write "
        f"`sandbox.require: {weaker}`, which runs programs of the model with what is missing"
    )
