"""Open files of a run folder, which may come from an untrusted archive.

A named pipe would hold a reader for ever, a link may lead to any file of this machine: neither is read.
"""

from __future__ import annotations

import errno
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def check_regular(path: Path, within: Path | None = None) -> None:
    """Refuse what ``open_regular`` would refuse, for a library that opens files itself.

    Raises:
        OSError: no regular file, or one that cannot be reached.
    """
    _check_place(path, within)
    _check_kind(path, os.stat(path).st_mode)


def open_regular(path: Path, within: Path | None = None) -> BinaryIO:
    """Open a regular file for reading in bytes, and nothing else: never waits for a writer.

    Args:
        path: the file.
        within: the folder that the file has to lie in once every link is followed; None: anywhere.

    Raises:
        OSError: no regular file, or one that cannot be opened.
    """
    _check_place(path, within)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        _check_kind(path, os.fstat(descriptor).st_mode)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, most: int, within: Path | None = None) -> bytes:
    """Return the content of a regular file of at most ``most`` bytes.

    Raises:
        OSError: no regular file, a larger one, or one that cannot be read.
    """
    with open_regular(path, within) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes", str(path))
    return data


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a name to write to. Readers of ``path`` see the old or the new file, whole; a failure leaves nothing."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.unlink(missing_ok=True)  # it might be a link
    try:
        yield temporary
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def leads_out(path: Path, folder: Path) -> bool:
    """Whether a path in a folder lies elsewhere once every link is followed."""
    return not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def no_room_in(folder: Path) -> str | None:
    """Why nothing can be made in a folder, which perhaps is not there yet itself; None: something can.

    The nearest folder that is there is asked by an empty one of a moment: rights alone do not show a file system
    that takes nothing.
    """
    while not os.path.lexists(folder):
        folder = folder.parent
    if not folder.is_dir():
        return f"{folder} is no folder"
    try:
        os.rmdir(tempfile.mkdtemp(prefix=".dapo-", dir=folder))
    except OSError as error:
        return f"{folder} takes no folder ({error.strerror or error})"
    return None


def _check_place(path: Path, within: Path | None) -> None:
    if within is not None and leads_out(path, within):
        raise OSError(errno.EPERM, "it is a link that leads out of the run", str(path))


def _check_kind(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is no regular file", str(path))
