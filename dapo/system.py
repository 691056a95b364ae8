"""Facilities of the operating system: each is probed, and its absence has an answer.

dapo is developed on Linux. macOS and other POSIX systems lack some of Linux's facilities: processor affinity, /proc,
prctl, pidfd, file systems in memory. The guard of worker processes (``dapo.processes.guard``) runs without this package
and probes for itself.
"""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

WATCH_PARENT = "DAPO_WATCH_PARENT"
"""Environment variable: the guard asks a process to end with its parent, since the kernel does not see to it."""
NO_MPS = "it has no float64, which the checks at loading and adapters need, and nothing was run on one; set it to cpu"
"""Why `model.device: mps` is refused."""
_DEVICES = Path("/dev")
_SHARED_MEMORY = Path("/dev/shm")
_MEMORY_FACTS = Path("/proc/meminfo")
_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")
_LOOK = 1.0  # seconds between two looks at the parent where nothing reports its end


def core_count() -> int:
    """Return the number of cores that this process may use; without affinity, the number of cores."""
    affinity: Callable[[int], set[int]] | None = getattr(os, "sched_getaffinity", None)
    return (len(affinity(0)) if affinity else os.cpu_count()) or 1


def gpu_count() -> int:
    """Return the number of NVIDIA GPUs that this process may use, without asking CUDA for them.

    ``CUDA_VISIBLE_DEVICES`` counts up to its first -1, as CUDA reads it; without it the devices of the system count.
    """
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is None:
        return sum(path.name.removeprefix("nvidia").isdecimal() for path in _DEVICES.glob("nvidia[0-9]*"))
    names = [name.strip() for name in named.split(",")]
    return next((n for n, name in enumerate(names) if name in ("", "-1")), len(names))


def memory_of(process: int) -> float | None:
    """Return the resident memory of a process in MiB; None if it has ended or the system has no /proc."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
    except (OSError, ValueError, IndexError):
        return None


def tasks_of(user: int) -> int:
    """Return how many processes and threads a user has: the kernel's limit of processes counts both."""
    count = 0
    with suppress(OSError):
        for name in filter(str.isdecimal, os.listdir("/proc")):
            with suppress(OSError):
                if os.stat(f"/proc/{name}").st_uid == user:
                    count += len(os.listdir(f"/proc/{name}/task"))
    return count


def process_exists(process: int) -> bool:
    """Return whether this container has a process of that number, also one of another user."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is another user's
        return True
    return True


def shared_memory() -> Path | None:
    """Return a folder in memory that this process can write to, or None if there is none."""
    return _SHARED_MEMORY if _SHARED_MEMORY.is_dir() and os.access(_SHARED_MEMORY, os.W_OK) else None


def available_memory() -> int | None:
    """Return the bytes that can be used without swapping, file caches included; None where the system does not say."""
    try:
        for line in _MEMORY_FACTS.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def memory_size() -> int | None:
    """Return the bytes of memory that this process may use: the machine's, or a container's limit where that is less.

    None where the system does not say.
    """
    try:
        whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None
    return min([whole, *_group_limits()])


def _group_limits() -> Iterator[int]:
    """Yield the memory limits of this process's control groups and of those around them, of either version."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:
        return
    for _, kinds, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
        root, name = (_GROUPS, "memory.max") if not kinds else (_GROUPS / "memory", "memory.limit_in_bytes")
        if kinds not in ("", "memory"):
            continue
        own = root / path.lstrip("/")
        for folder in (own, *own.parents):
            with suppress(OSError, ValueError):  # a container sees its own group as the root; "max" is no number
                yield int((folder / name).read_text())
            if folder == root:
                break


def limits_memory() -> bool:
    """Return whether RLIMIT_DATA bounds what a process allocates: macOS accepts the limit and ignores it."""
    return sys.platform == "linux"


def end_with_parent() -> None:
    """Start a thread that ends this process when the parent has ended."""
    threading.Thread(target=_wait_for_parent, args=(os.getppid(),), daemon=True).start()


def end_with_parent_if_asked() -> None:
    """Do so where the guard asked for it by ``WATCH_PARENT``, which children of this process do not inherit."""
    if os.environ.pop(WATCH_PARENT, None):
        end_with_parent()


def _wait_for_parent(parent: int) -> None:
    watch: Callable[[int], int] | None = getattr(os, "pidfd_open", None)
    try:
        watched = watch(parent) if watch else None
    except OSError:
        watched = None
    while os.getppid() == parent:
        if watched is None:
            time.sleep(_LOOK)
        else:
            select.select([watched], [], [])
    os._exit(1)
