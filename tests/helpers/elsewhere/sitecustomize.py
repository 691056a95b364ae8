"""Take from Python what only Linux offers. A process with this folder on PYTHONPATH begins with it.

It emulates what the package may meet on macOS: names of the standard library that only Linux has, /proc, /dev/shm and
/sys, prctl, and the default start method of multiprocessing. Guards of worker processes, which start without site, are
replaced by ``guard_elsewhere.py``.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import importlib
import io
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ONLY_LINUX = {
    "os": "eventfd fdatasync getrandom getresgid getresuid memfd_create pidfd_open pipe2 posix_fadvise posix_fallocate "
    "sched_getaffinity sched_getparam sched_getscheduler sched_setaffinity sched_setparam sched_setscheduler sendfile "
    "setns splice unshare O_DIRECT O_TMPFILE",
    "resource": "prlimit RLIMIT_OFILE RLIMIT_SIGPENDING RLIMIT_NICE RLIMIT_RTPRIO",
    "select": "epoll",
    "signal": "SIGPWR SIGSTKFLT pidfd_send_signal sigtimedwait sigwaitinfo",
    "socket": "MSG_NOSIGNAL SOCK_CLOEXEC SOCK_NONBLOCK SO_PEERCRED",
    "time": "CLOCK_BOOTTIME",
}
HIDDEN = ("/proc", "/dev/shm", "/sys")
LOOKS = "access listdir lstat mkdir open readlink scandir stat statvfs"
GUARD = Path(__file__).with_name("guard_elsewhere.py")


def hiding(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` for paths, as on a system without HIDDEN."""

    def look(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        name = os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else ""
        if any(name == hidden or name.startswith(hidden + "/") for hidden in HIDDEN):
            if function is access:
                return False
            raise FileNotFoundError(errno.ENOENT, "hidden: this is no Linux", name)
        return function(path, *arguments, **options)

    return look


class Library(ctypes.CDLL):
    """A library without prctl."""

    def __getattr__(self, name: str) -> Any:
        if name == "prctl":
            raise AttributeError(name)
        return super().__getattr__(name)


class Process(subprocess.Popen):  # type: ignore[type-arg]
    """Starts guards that find no prctl and no /proc."""

    def __init__(self, args: Any, *others: Any, **options: Any) -> None:
        if isinstance(args, list):
            args = [str(GUARD) if str(word).endswith("dapo/processes/guard.py") else word for word in args]
        super().__init__(args, *others, **options)


for module, names in ONLY_LINUX.items():
    for name in names.split():
        if hasattr(found := importlib.import_module(module), name):
            delattr(found, name)
access = os.access
for name in LOOKS.split():
    setattr(os, name, hiding(getattr(os, name)))
builtins.open = io.open = hiding(io.open)
ctypes.CDLL = Library  # type: ignore[misc]
subprocess.Popen = Process  # type: ignore[misc]
multiprocessing.set_start_method("spawn")
sys.dapo_elsewhere = True  # type: ignore[attr-defined]  # a test sees that this file was read
