"""Guard one worker for the driver, so that no process of the worker outlives it or the driver.

Run as a file (``python -I -S guard.py LIFELINE CONNECTION MIB COMMAND...``) with the standard library alone: it must be
there in no time and cannot be disturbed by what a reward imports. It starts COMMAND with a memory limit of MIB for each
process (0: none) and as the kernel's first choice when memory runs out. When the worker ends, the driver dies, or the
driver closes its end of the pipe LIFELINE, it kills all processes that the worker started and ends as the worker did.

On Linux it becomes the parent of processes whose own parent has ended, also of those in sessions of their own. Without
prctl it finds them in the table of processes: all but those in a session of their own whose parent has ended. It then
also asks the worker to watch its parent (``dapo.system``), since the kernel does not end a worker with its guard.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
from pathlib import Path

_WATCH_PARENT = "DAPO_WATCH_PARENT"  # as in dapo.system, which this file cannot import
_PS = ("ps", "-A", "-o", "pid=", "-o", "ppid=")  # by POSIX; in one `-o` the rest would be a header
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_MIB = 1 << 20


def main(lifeline: int, connection: int, memory_mib: int, command: list[str]) -> None:
    """Run ``command`` until it ends or the driver lets it go. Does not return."""
    driver = os.getppid()
    waking, wake = os.pipe()
    for end in (waking, wake):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    adopts = _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)  # beside the lifeline, which a fork of the driver may hold open
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a core file would be as large as the worker
    guard = os.getpid()
    worker = os.fork()
    if worker == 0:
        try:
            os.close(lifeline)
            _become(guard, memory_mib, command)
        finally:
            os._exit(127)
    os.close(connection)
    status = None
    while status is None and os.getppid() == driver:
        readable, _, _ = select.select([lifeline, waking], [], [])
        if lifeline in readable:
            break
        with contextlib.suppress(BlockingIOError):
            os.read(waking, 4096)
        status = _reap(worker)
    _end(worker, adopts)
    if status is not None and os.WIFSIGNALED(status):
        with contextlib.suppress(OSError):  # SIGKILL has no other action
            signal.signal(os.WTERMSIG(status), signal.SIG_DFL)
        os.kill(guard, os.WTERMSIG(status))
    os._exit(0 if status is None else os.waitstatus_to_exitcode(status))


def _become(guard: int, memory_mib: int, command: list[str]) -> None:
    """Turn this process, just forked, into the worker."""
    os.setsid()  # a signal to its process group must not reach the guard
    if not _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        os.environ[_WATCH_PARENT] = "1"
    if os.getppid() != guard:
        return
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    if memory_mib:
        with contextlib.suppress(ValueError, OSError):  # a lower limit is in force already
            resource.setrlimit(resource.RLIMIT_DATA, (memory_mib * _MIB,) * 2)
    os.execv(command[0], command)


def _reap(worker: int) -> int | None:
    """Collect whatever has ended; the worker's status if it has."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, ended = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == worker:
                status = ended
    return status


def _end(worker: int, adopts: bool) -> None:
    """Kill all descendants; with ``adopts``, those whose parent dies become children of this process."""
    if not adopts:
        _kill_tree()
    with contextlib.suppress(OSError):
        os.killpg(worker, signal.SIGKILL)
    while True:
        for pid in _children(os.getpid(), _parents()) if adopts else ():
            _signal(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _kill_tree() -> None:
    """Stop all descendants whose parents still live, until no new one appears, then kill them."""
    stopped: set[int] = set()
    while True:
        parents = _parents()
        fresh, found = [os.getpid()], set[int]()
        while fresh:
            children = _children(fresh.pop(), parents) - found
            found |= children
            fresh += children
        if not found - stopped:
            break
        for pid in found - stopped:
            _signal(pid, signal.SIGSTOP)
        stopped |= found
    for pid in stopped:
        _signal(pid, signal.SIGKILL)


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(OSError):  # it has ended
        os.kill(pid, number)


def _children(process: int, parents: dict[int, int]) -> set[int]:
    return {pid for pid, parent in parents.items() if parent == process}


def _parents() -> dict[int, int]:
    """Return each process's parent: from /proc, or from `ps`; empty where there is neither."""
    found = {}
    with contextlib.suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with contextlib.suppress(OSError, ValueError, IndexError):  # it may end, or be hidden, at any moment
                stat = Path("/proc", name, "stat").read_text(errors="replace")
                found[int(name)] = int(stat.rpartition(")")[2].split()[1])
    if not found:
        found = _parents_by_ps()
    return found


def _parents_by_ps() -> dict[int, int]:
    import subprocess  # here, where it is needed: a guard starts in no time

    try:
        table = subprocess.Popen(_PS, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    except OSError:
        return {}
    lines = [line.split() for line in table.communicate()[0].splitlines()]
    return {int(pid): int(parent) for pid, parent in lines if int(pid) != table.pid}


def _prctl(option: int, value: int) -> bool:
    """Call Linux's prctl; return whether it was there and did it."""
    try:
        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (OSError, AttributeError):
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
