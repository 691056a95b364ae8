"""Starts a process behind its guard: whatever it starts ends with it, with the driver, or when the driver lets go."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import IO

from dapo.processes import guard


def start_guarded(
    command: Callable[[int], list[str]],
    sink: int | IO[bytes],
    environment: Mapping[str, str],
    memory_mib: int | None = None,
) -> tuple[subprocess.Popen[bytes], socket.socket, int]:
    """Start a process with a connection to it, in a session of its own.

    It finds the modules that the driver finds, hooks in the working directory too.

    Args:
        command: the number of its end of the connection -> what is run.
        sink: takes what it prints.
        environment: variables beside the driver's.
        memory_mib: limit of each of its processes in MiB; None: none.

    Returns:
        The guard's process, our end of the connection, and our end of the lifeline: closing it ends everything.

    Raises:
        OSError: the machine starts no further process.
    """
    ours, theirs = socket.socketpair()
    lifeline, our_lifeline = os.pipe()
    passed = (lifeline, theirs.fileno())
    paths = os.pathsep.join(dict.fromkeys(path or os.getcwd() for path in sys.path))  # "": where it was called
    limit = str(memory_mib or 0)
    try:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, *map(str, passed), limit, *command(theirs.fileno())],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            env={**os.environ, "PYTHONPATH": paths, **environment},
            start_new_session=True,
        )
    except BaseException:
        ours.close()
        os.close(our_lifeline)
        raise
    finally:
        theirs.close()
        os.close(lifeline)
    return process, ours, our_lifeline
