"""Temporary folders that name their owner: the next program deletes what a killed process left.

The name has the owner's process number, and the owner holds a lock of the folder for as long as it lives. Both count,
as a number means nothing in another container, and containers may share ``/dev/shm`` and ``/tmp``.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dapo.system import process_exists

_OURS: dict[str, int] = {}
"""Folders of this process -> a file descriptor that holds the lock."""


def claim(make: Callable[[], str]) -> str:
    """Make a new folder, held until ``leave`` or until this process ends, however it ends.

    Args:
        make: Makes a folder and returns its path; called again where another process took the first for one that was
            left, before it could be locked.

    Raises:
        OSError: No folder can be made.
    """
    while True:
        folder = make()
        try:
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
        except OSError:  # a file system without locks: the name has to do
            os.close(descriptor)
            return folder
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), os.stat(folder)):
                _OURS[folder] = descriptor
                return folder
        os.close(descriptor)


def leave(folder: str) -> None:
    """Give up a folder. Nothing happens if this process never held it."""
    descriptor = _OURS.pop(folder, None)
    if descriptor is not None:
        os.close(descriptor)


def delete_left(parent: Path, prefix: str) -> None:
    """Delete folders of ours named ``PREFIX``, process, ``-`` and anything, whose process is gone."""
    try:
        names = os.listdir(parent)
    except OSError:
        return
    for name in names:
        owner = name.removeprefix(prefix).partition("-")[0]
        if name.startswith(prefix) and owner.isdecimal() and not process_exists(int(owner)):
            with suppress(OSError):
                _delete(parent / name)


def _delete(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(descriptor).st_uid == os.getuid():
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(descriptor)
