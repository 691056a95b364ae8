"""The sandbox of this machine for honest programs, and how it is refused and lost."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from dapo.sandbox.fork_server import LocalSandbox
from dapo.sandbox.runs import OUTPUT_BYTES, SandboxError


@pytest.fixture(scope="module")
def sandbox() -> Iterator[LocalSandbox]:
    made = LocalSandbox("none")
    made.start()
    yield made
    made.close()


def test_a_program_has_its_input_output_and_exit_code(sandbox: LocalSandbox) -> None:
    ran = sandbox.run("import sys\nprint(sys.stdin.read().upper())\nprint('no', file=sys.stderr)\nsys.exit(3)", "héllo")
    assert (ran.output, ran.errors, ran.exit_code, ran.cut) == ("HÉLLO\n", "no\n", 3, False)
    assert 0 < ran.seconds < 20


def test_a_program_ends_as_a_script_does(sandbox: LocalSandbox) -> None:
    ran = sandbox.run(
        "import atexit, threading, time, sys\natexit.register(print, 'registered')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
        "assert __name__ == '__main__' and sys.argv == ['program.py']\nprint('end')"
    )
    assert (ran.output, ran.exit_code) == ("end\nthread\nregistered\n", 0)


@pytest.mark.parametrize(
    ("program", "code", "said"),
    [
        ("def f():\n    return 1 / 0\nf()", 1, 'File "program.py", line 2, in f'),
        ("def (", 1, "SyntaxError"),
        ("import sys; sys.exit('a reason')", 1, "a reason"),
        ("import os; os.abort()", -signal.SIGABRT, ""),
        ("import os; os._exit(7)", 7, ""),
    ],
)
def test_a_program_fails(sandbox: LocalSandbox, program: str, code: int, said: str) -> None:
    ran = sandbox.run(program)
    assert ran.exit_code == code
    assert said in ran.errors
    assert "server.py" not in ran.errors, "the trace is the program's alone"


def test_time_and_output_have_limits(sandbox: LocalSandbox) -> None:
    ran = sandbox.run("print('begun', flush=True)\nwhile True: pass", timeout=0.5)
    assert (ran.output, ran.exit_code) == ("begun\n", None)
    ran = sandbox.run("print('x' * 1_000_000)")
    assert (len(ran.output), ran.cut, ran.exit_code) == (OUTPUT_BYTES, True, 0)
    assert sandbox.run("print('x' * 1000)", output=10).output == "x" * 10


def test_the_library_of_python_is_there_and_hashes_are_the_same_everywhere(sandbox: LocalSandbox) -> None:
    program = (
        "import json, re, math, decimal, fractions, itertools, collections, heapq, bisect, functools, random, string\n"
        "import datetime, sqlite3, statistics, tempfile, hashlib, asyncio, concurrent.futures as futures\n"
        "with futures.ThreadPoolExecutor(4) as pool: print(sum(pool.map(int, '123')))\n"
        "async def main(): await asyncio.sleep(0.01); return 4\n"
        "print(asyncio.run(main()), hash('a'), list({'a', 'b', 'c', 'd'}))"
    )
    ran = sandbox.run(program)
    assert ran.exit_code == 0, ran.errors
    other = LocalSandbox("none")
    try:
        assert other.run(program).output == ran.output
    finally:
        other.close()


def test_two_dozen_threads_fit_the_address_space(sandbox: LocalSandbox) -> None:
    program = (
        "import threading\nready = threading.Barrier(25)\n"
        "for _ in range(24): threading.Thread(target=lambda: (bytearray(1000), ready.wait())).start()\n"
        "ready.wait()\nprint('all')"
    )
    ran = sandbox.run(program, timeout=20.0)
    assert (ran.output, ran.exit_code) == ("all\n", 0), ran.errors


def test_a_program_knows_nothing_of_the_one_before(sandbox: LocalSandbox) -> None:
    assert sandbox.run("import math\nmath.pi = 3\nopen('left', 'w').write('x')").exit_code == 0
    assert sandbox.run("import math, os\nprint(math.pi, os.listdir('.'))").output == "3.141592653589793 []\n"


def test_threads_share_a_sandbox(sandbox: LocalSandbox) -> None:
    found: dict[int, str] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: sandbox.run(f"print({n})").output})) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: f"{n}\n" for n in range(8)}


def test_a_lost_server_is_an_error_and_the_next_program_has_another(sandbox: LocalSandbox) -> None:
    assert sandbox._process is not None
    timer = threading.Timer(0.3, os.kill, (sandbox._process.pid, signal.SIGKILL))
    timer.start()
    with pytest.raises(SandboxError, match="lost while a program ran"):
        sandbox.run("import time; time.sleep(30)", timeout=40)
    timer.join()
    assert sandbox.run("print(1)").output == "1\n"


def test_what_is_required_and_does_not_hold_is_refused() -> None:
    sandbox = LocalSandbox("full", walls=("seccomp",))
    with pytest.raises(SandboxError) as caught:
        sandbox.start()
    assert "sandbox.require is full" in str(caught.value)
    assert "files" in str(caught.value)
    assert "sandbox.require: none" in str(caught.value), "the next move"
    with pytest.raises(SandboxError, match=r"sandbox\.require is files"):
        LocalSandbox("files", walls=()).run("print(1)")


def test_without_any_wall_a_program_runs_where_that_is_written() -> None:
    sandbox = LocalSandbox("none", walls=())
    try:
        line = sandbox.start()
        assert "none" in line
        assert "OPEN: files, network" in line
        assert sandbox.run("print(1)").output == "1\n"
    finally:
        sandbox.close()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux's facilities")
def test_files_are_enough_where_files_are_required() -> None:
    sandbox = LocalSandbox("files", walls=("landlock", "seccomp"))
    try:
        assert sandbox.start().startswith("sandbox: files")
    except SandboxError as error:
        pytest.skip(f"this kernel: {error}")
    finally:
        sandbox.close()
