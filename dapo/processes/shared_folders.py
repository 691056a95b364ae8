"""Files that a cluster's object store carries between machines: a folder in memory that all hosts of a run share on
each.

It is a folder of the same name on every machine. Each user holds a lock of it, which ends with the user's process:
the last user deletes the folder, and the next program deletes one whose users were all killed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapo.processes.transport import SHARED_FOLDER

_KEPT = 2  # sets: the one that is loaded, and the one before, which somebody may still be reading
_LOCK = ".lock"
_TURN = ".turn"  # locked by the actor that lays out: others wait, and find the files

Content = NDArray[np.uint8]


class SharedFolders:
    """Shared folders as one Ray actor uses them."""

    def __init__(self) -> None:
        self._locks: dict[Path, Any] = {}

    def collect(self, folder: str) -> dict[str, Content]:
        """Take the files of a folder away, by their names; of several takers on a machine each file has one.

        Raises:
            OSError: one cannot be read.
        """
        self._enter(Path(folder).parent)
        found = {}
        for file in _files(Path(folder)):
            mine = file.with_name(f"{file.name}.{os.getpid()}")
            try:
                file.rename(mine)
            except FileNotFoundError:
                continue  # another actor's
            found[file.name] = np.fromfile(mine, dtype=np.uint8)
            mine.unlink()
        with suppress(OSError):
            Path(folder).rmdir()
        return found

    def lay_out(self, folder: str, parts: Sequence[Mapping[str, Content]]) -> None:
        """Write files into a folder, unless they are there; older ones go. Of several hosts on a machine one writes.

        Raises:
            OSError: the disk or memory is full.
        """
        target = Path(folder)
        self._enter(target.parent)
        with (target.parent / _TURN).open("w") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            target.mkdir(mode=0o700, exist_ok=True)
            for part in parts:
                for name, content in part.items():
                    if not (target / name).exists():
                        unfinished = target / f"{name}.{os.getpid()}"
                        content.tofile(unfinished)
                        unfinished.rename(target / name)
            now = time.time_ns()
            os.utime(target, ns=(now, now))  # the kernel's own clock is too coarse to tell which set is the newer one
            _delete_old(target.parent)

    def leave(self) -> None:
        """Delete the folders that no other process uses."""
        while self._locks:
            shared, lock = self._locks.popitem()
            with lock, suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(shared, ignore_errors=True)

    def _enter(self, shared: Path) -> None:
        if shared in self._locks:
            return
        for other in shared.parent.glob(f"{SHARED_FOLDER}*"):
            if other != shared:
                _delete_if_left(other)
        while True:
            try:
                shared.mkdir(mode=0o700, parents=True, exist_ok=True)
                lock = (shared / _LOCK).open("w")
            except (FileNotFoundError, FileExistsError):  # deleted by the last one that left, just now
                continue
            fcntl.flock(lock, fcntl.LOCK_SH)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(lock.fileno()), (shared / _LOCK).stat()):
                    self._locks[shared] = lock
                    return
            lock.close()


def _delete_old(shared: Path) -> None:
    ages = {}
    for path in shared.iterdir():
        with suppress(FileNotFoundError):  # what a learner on this machine has written is taken away at any time
            if path.is_dir():
                ages[path] = path.stat().st_mtime_ns
    for old in sorted(ages, key=ages.__getitem__)[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)


def _files(folder: Path) -> list[Path]:
    """None, where another taker was quicker and the folder is gone; on its way there or in the midst of looking."""
    try:
        return sorted(folder / name for name in os.listdir(folder) if name.endswith(".safetensors"))
    except FileNotFoundError:
        return []


def _delete_if_left(shared: Path) -> None:
    """Delete one of dapo's folders if its users are gone."""
    with suppress(OSError):
        if shared.stat().st_uid != os.getuid():
            return
        with (shared / _LOCK).open("r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(shared, ignore_errors=True)
