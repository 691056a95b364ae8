"""The lock of a run's folder: one process writes there at a time.

A POSIX record lock: the kernel drops it with the process, so there is no stale lock to recognise, and processes forked
from this one (verifier workers) do not hold it. The file names the holder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import sys
from pathlib import Path

from dapo.errors import RecipeError
from dapo.observe.files import open_regular

LOCK = "lock"
_LOOKS = 100  # at a folder that is moved again and again; or at one where nothing can be told of a file by its number
_HELD: dict[tuple[int, int], int] = {}
"""Lock files that a process holds: device and inode -> its pid."""


def take(folder: Path) -> int | None:
    """Lock a folder; returns what ``drop`` takes, or None on a file system without locks.

    Raises:
        RecipeError: another process holds it, or something else has the lock's name.
        FileNotFoundError: the folder is gone.
    """
    path = folder / LOCK
    if path.exists() and not path.is_file():
        raise RecipeError(f"{path} is no file, which a run keeps there; move it away")
    for look in range(_LOOKS):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 100).decode(errors="replace").strip()
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise RecipeError(
                    f"{folder} is being written by another process ({holder}). "
                    "Wait for it to end, or choose another run.name."
                ) from None
            return None
        if _is_at(descriptor, path) or look == _LOOKS - 1:
            break
        os.close(descriptor)  # whoever held it has moved or deleted the folder: what stands here now has another lock
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"pid {os.getpid()} on {os.uname().nodename}\n".encode())
    _HELD[_identity(os.fstat(descriptor))] = os.getpid()
    return descriptor


def drop(descriptor: int) -> None:
    """Let other processes in."""
    _HELD.pop(_identity(os.fstat(descriptor)), None)
    os.close(descriptor)  # which drops the lock


def is_held(path: str | Path) -> bool:
    """Whether another process holds the run folder ``path``, that is, the run goes on there. Changes nothing.

    The kernel is asked, so a killed run is known at once. Where the file system has no locks nobody is seen to hold
    anything. For the process that holds the folder itself the answer is False, and its lock stays: it is known here
    without a look at the file, since a process that closes any descriptor of a file drops its own record locks on it.
    """
    lock = Path(path) / LOCK
    try:
        if _HELD.get(_identity(lock.stat())) == os.getpid():  # a fork knows of its parent's lock and has none
            return False
        with open_regular(lock) as file:
            return _is_locked(file.fileno())
    except OSError:
        return False


def _is_locked(descriptor: int) -> bool:
    if sys.platform == "linux":
        # struct flock: type, whence, start, length (0: all), pid. The answer has the type of the lock in the way.
        asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
        return bool(struct.unpack_from("h", fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK)
    try:  # elsewhere the struct differs: take a shared lock for an instant
        fcntl.lockf(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EAGAIN)
    fcntl.lockf(descriptor, fcntl.LOCK_UN)
    return False


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _identity(of: os.stat_result) -> tuple[int, int]:
    return of.st_dev, of.st_ino
