"""Two processes at one place, without a second one: whatever the other does, it may do between any two calls."""

from __future__ import annotations

import fcntl
import io
import itertools
import os
from contextlib import suppress

import pytest

_OF_OS = ("listdir", "scandir", "stat", "lstat", "mkdir", "rmdir", "rename", "replace", "unlink", "utime", "open")
CALLS = [*((os, name) for name in _OF_OS), (io, "open")]


class Waits(Exception):
    """For a lock that another one holds."""


def between_its_calls(monkeypatch, before, first, second):
    """Run ``first``, with all of ``second`` just before its n-th call of the file system: for n = 1, 2, ... to its end.

    As of two processes: where ``second`` would wait for a lock, it comes after ``first``. ``before`` makes what both
    find; yields that, and what the two gave.
    """
    flock = fcntl.flock

    def impatient(file, kind):
        try:
            flock(file, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            if kind & fcntl.LOCK_NB:
                raise
            raise Waits from None

    for number in itertools.count(1):
        made, left, other = before(), [number], []

        def counted(call, made=made, left=left, other=other):
            def counting(*args, **options):
                left[0] -= 1
                if left[0] == 0:
                    with pytest.MonkeyPatch.context() as elsewhere, suppress(Waits):
                        elsewhere.setattr(os, "getpid", lambda: -1)
                        elsewhere.setattr(fcntl, "flock", impatient)
                        other.append(second(*made))
                return call(*args, **options)

            return counting

        with monkeypatch.context() as patch:
            for module, name in CALLS:
                patch.setattr(module, name, counted(getattr(module, name)))
            patch.setattr(fcntl, "flock", counted(flock))
            found = first(*made)
        if left[0] > 0:
            assert number > 3, "calls of the file system are not seen"
            return
        yield (*made, found, other[0] if other else second(*made))
