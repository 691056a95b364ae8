"""The sandbox of bubblewrap: each program is a Python of its own behind ``bwrap``, which has to be installed."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

from dapo.sandbox.runs import DISK_MIB, OUTPUT_BYTES, PROCESSES, Ran, SandboxError
from dapo.system import tasks_of

_DISK_BYTES = DISK_MIB << 20
_READ = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache")
_CLOSED = ("--unshare-user", "--disable-userns")  # a program makes no namespaces of its own
_CHUNK = 1 << 16
_LIMITED = """
import os, resource, sys
seconds, memory, disk, processes, file = map(int, sys.argv[1:6])
bounds = dict(CORE=0, CPU=seconds, FSIZE=disk, NOFILE=64, AS=memory, NPROC=processes, MEMLOCK=0)
for name, value in bounds.items():
    resource.setrlimit(getattr(resource, "RLIMIT_" + name), (value, value))
with os.fdopen(file, "rb") as stream:
    program = stream.read()
sys.argv = ["program.py"]
exec(compile(program, "program.py", "exec"), {"__name__": "__main__", "__builtins__": __builtins__})
"""


class BubblewrapSandbox:
    """A ``Sandbox`` of bubblewrap's command."""

    def __init__(self) -> None:
        """Describe a sandbox; ``start`` looks for the command and tries it."""
        self._command: str | None = None
        self._options: tuple[str, ...] = ()

    def start(self) -> str:
        """Find bubblewrap and run a first program; see ``Sandbox``."""
        self._command = shutil.which("bwrap")
        if self._command is None:
            raise SandboxError(
                "sandbox.kind is bubblewrap, and there is no command `bwrap`: install the package bubblewrap, or use "
                "sandbox.kind: local, which needs no installation"
            )
        for self._options in (_CLOSED, ()):
            ran = self.run("print('ready')", timeout=60.0)
            if ran.output == "ready\n":
                break
        else:
            said = (ran.errors.strip() or f"exit code {ran.exit_code}").splitlines()[-1]
            raise SandboxError(f"bubblewrap does not run a program here: {said}")
        open_ = "" if self._options else "; OPEN: user namespaces, which bubblewrap closes from 0.8 on"
        return f"sandbox: bubblewrap ({self._command}); its namespaces, a folder in memory, limits{open_}"

    def run(
        self, program: str, stdin: str = "", *, timeout: float = 5.0, memory_mib: int = 512, output: int = OUTPUT_BYTES
    ) -> Ran:
        """Run a program; see ``Sandbox``."""
        if self._command is None:
            self.start()
        assert self._command is not None
        began = time.monotonic()
        with tempfile.TemporaryFile() as code, tempfile.TemporaryFile() as given:
            code.write(program.encode("utf-8", "surrogatepass"))
            given.write(stdin.encode("utf-8", "surrogatepass"))
            code.seek(0)
            given.seek(0)
            processes = PROCESSES + tasks_of(os.geteuid())  # the kernel may count those outside of the namespace, too
            limits = [int(timeout) + 2, memory_mib << 20, _DISK_BYTES, processes, code.fileno()]
            inner = [os.path.realpath(sys.executable), "-I", "-S", "-c", _LIMITED, *map(str, limits)]
            started = subprocess.Popen(
                [self._command, *self._options, *_options(), *inner],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=[code.fileno()],
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
            kept, late, cut = _collect(started, began + timeout, output)
        seconds = time.monotonic() - began
        return Ran(kept[0], kept[1], None if late else _exit_code(started.returncode), seconds, cut)

    def close(self) -> None:
        """End nothing: each program ended with its run."""


def _options() -> list[str]:
    """Return what bubblewrap is asked for."""
    paths = dict.fromkeys([*_READ, os.path.realpath(sys.base_prefix)])
    bound = [part for path in paths for part in ("--ro-bind-try", path, path)]
    return [
        *("--unshare-all", "--die-with-parent", "--new-session", "--clearenv"),
        *bound,
        *("--dev", "/dev", "--size", str(_DISK_BYTES), "--tmpfs", "/tmp", "--remount-ro", "/dev", "--chdir", "/tmp"),
        *("--cap-drop", "ALL", "--"),
    ]


def _collect(started: subprocess.Popen[bytes], until: float, limit: int) -> tuple[tuple[str, str], bool, bool]:
    """Return output and errors, whether the time ended first, and whether something was cut."""
    assert started.stdout is not None
    assert started.stderr is not None
    kept = {started.stdout.fileno(): bytearray(), started.stderr.fileno(): bytearray()}
    texts = list(kept.values())
    cut = late = False
    while kept:
        poller = select.poll()
        for descriptor in kept:
            poller.register(descriptor, select.POLLIN)
        ready = poller.poll(max(0.0, until - time.monotonic()) * 1000)
        if not ready:
            late = True
            break
        for descriptor, _ in ready:
            data = os.read(descriptor, _CHUNK)
            if not data:
                del kept[descriptor]
                continue
            room = limit - len(kept[descriptor])
            cut = cut or len(data) > room
            kept[descriptor] += data[:room]
    if not late:
        try:
            started.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            late = True
    if late:
        os.killpg(started.pid, signal.SIGKILL)
        started.wait()
    started.stdout.close()
    started.stderr.close()
    return (texts[0].decode("utf-8", "replace"), texts[1].decode("utf-8", "replace")), late, cut


def _exit_code(code: int) -> int:
    """Return the program's code: bubblewrap says a signal as a shell does."""
    return 128 - code if 128 < code < 128 + 65 else code
