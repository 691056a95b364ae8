"""The lock of a run's folder: one writer at a time, in this process and in all others.

``flock`` on ``RUN/lock``, whose content names the owner. The kernel drops the lock when its process ends, however it
ends, so no stale lock is left. The lock belongs to one open file: closing another descriptor of the file does not drop
it, and a second writer of the same process is refused too. Forked processes (verifier workers) close their copy at
once.

Shared folders: Linux sends ``flock`` of an NFS folder to the server (since 2.6.12). Other machines are kept out, unless
the folder is mounted with ``nolock`` or ``local_lock``. Lustre needs the mount option ``flock``. On a file system
without locks only writers of this process are kept out, and a warning says so.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from contextlib import suppress
from pathlib import Path

from dapo.errors import RecipeError
from dapo.observe.run_files import open_regular

log = logging.getLogger(__name__)

LOCK = "lock"
_LOOKS = 100  # at a folder that is moved again and again; or at one where nothing can be told of a file by its number
_TRIES, _PAUSE = 10, 0.02  # seconds: ``is_held`` of another process holds a shared lock for an instant
_BUSY = (errno.EACCES, errno.EAGAIN)
_HELD: dict[tuple[int, int], int] = {}
"""Lock files that this process holds: device and inode -> file descriptor."""


def take(folder: Path) -> int:
    """Lock a folder; returns what ``drop`` takes.

    Raises:
        RecipeError: this process or another one holds it, or something else has the lock's name.
        FileNotFoundError: the folder is gone.
    """
    path = folder / LOCK
    if path.is_symlink():
        raise RecipeError(f"{path} is a link, and a run would write to where it leads; delete it")
    if path.exists() and not path.is_file():
        raise RecipeError(f"{path} is no file, which a run keeps there; move it away")
    for look in range(_LOOKS):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _claim(descriptor, folder)
            _lock(descriptor, folder)
        except BaseException:
            _close(descriptor)
            raise
        if _is_at(descriptor, path) or look == _LOOKS - 1:
            break
        _close(descriptor)  # its owner has moved or deleted the folder: the folder of that name has another lock now
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"pid {os.getpid()} on {os.uname().nodename}\n".encode())
    return descriptor


def drop(descriptor: int) -> None:
    """Unlock a folder. In a process forked from the one that locked it nothing happens."""
    if descriptor in _HELD.values():
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        _close(descriptor)


def is_held(path: str | Path) -> bool:
    """Return whether another process holds the run folder ``path``, that is, the run goes on there.

    The kernel is asked, so a killed run is known at once. No folder of a file system without locks seems to be held.
    For the process that holds the folder itself the answer is False.
    """
    lock = Path(path) / LOCK
    try:
        if _identity(lock.stat()) in _HELD:
            return False
        with open_regular(lock) as file:  # closing it drops this shared lock
            return _is_locked(file.fileno())
    except OSError:
        return False


def _is_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in _BUSY
    return False


def _claim(descriptor: int, folder: Path) -> None:
    """Keep out other writers of this process."""
    if _HELD.setdefault(_identity(os.fstat(descriptor)), descriptor) != descriptor:
        raise RecipeError(
            f"{folder} is being written by this process (pid {os.getpid()}) already, and a run has one writer. Close "
            "its Trainer first (`trainer.close()`, or leave its `with` block), or choose another run.name."
        )


def _lock(descriptor: int, folder: Path) -> None:
    """Keep out other processes, if the file system has locks."""
    for attempt in range(_TRIES):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in _BUSY:
                said = (
                    "%s is on a file system without file locks (%s): nothing keeps another process from writing to it"
                )
                log.warning(said + "; do not start a second one of this run", folder, error.strerror)
                return
        if attempt < _TRIES - 1:
            time.sleep(_PAUSE)
    owner = os.read(descriptor, 100).decode(errors="replace").strip()
    raise RecipeError(
        f"{folder} is being written by another process ({owner}). Wait for it to end, or choose another run.name."
    )


def _close(descriptor: int) -> None:
    for lock in [lock for lock, own in _HELD.items() if own == descriptor]:
        del _HELD[lock]
    os.close(descriptor)


def _leave_to_parent() -> None:
    """In a forked process: close the copies of the parent's locks, which the parent still holds."""
    while _HELD:
        _, descriptor = _HELD.popitem()
        with suppress(OSError):
            os.close(descriptor)


os.register_at_fork(after_in_child=_leave_to_parent)


def _is_at(descriptor: int, path: Path) -> bool:
    """Whether an open file still has that name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _identity(of: os.stat_result) -> tuple[int, int]:
    return of.st_dev, of.st_ino
