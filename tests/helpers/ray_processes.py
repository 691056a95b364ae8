"""Looking at the processes of a Ray cluster from outside."""

from __future__ import annotations

import importlib.util
import os
import select
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import pytest

# not by importing it: that is to happen when a cluster has been started
NEEDS_RAY = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed: `make setup-cluster`"
)


def ancestors(process: int) -> list[int]:
    """Parents, the nearest first."""
    found = []
    while process > 1:
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
        found.append(process)
    return found


def descendants(process: int) -> list[int]:
    """Everything that it started and that still has it among its parents."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if process in ancestors(int(entry.name)):
                found.append(int(entry.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def command_of(process: int) -> str:
    """What it was started with; "" of one that has ended meanwhile."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def watched(processes: Iterable[int]) -> list[int]:
    """Descriptors of those that have not ended meanwhile."""
    found = []
    for process in processes:
        with suppress(ProcessLookupError):
            found.append(os.pidfd_open(process))
    return found


def wait_for_end(descriptor: int) -> None:
    """Of a process; the test's own time limit is the only one."""
    select.select([descriptor], [], [])
    os.close(descriptor)
