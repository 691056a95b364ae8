"""Name and delete the sets of weights that a learner writes to disk: each is a folder of safetensors files."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from dapo.processes.left_over import leave

SETS = "dapo-"  # how the folder of every set of weights begins

_numbers = itertools.count()


class WeightSets:
    """Sets of weights below one folder, each in a folder of its own whose name no other set and no other trainer uses.

    Args:
        folder: made with the first set.
        own: no other trainer uses it: ``close`` deletes all sets, also those that a killed trainer left.
    """

    def __init__(self, folder: Path, *, own: bool = False) -> None:
        self.folder, self.own = folder.absolute(), own
        self._name = f"{SETS}{secrets.token_hex(4)}"
        self._made = own or not self.folder.exists()  # and is removed in the end

    def new(self, version: int) -> Path:
        """Return the folder of a new set, which is not made yet."""
        # The number is of the set, not of the version: the same one may come twice.
        return self.folder / f"{self._name}-{next(_numbers)}-v{version}"

    def close(self) -> None:
        """Delete the sets that are left, and the folder if it was made for them and is empty. May be called twice."""
        delete_sets(self.folder, SETS if self.own else f"{self._name}-", remove=self._made)


def delete_sets(folder: Path, prefix: str = SETS, *, remove: bool = True) -> None:
    """Delete the sets of weights in ``folder``; with ``remove`` also the folder if nothing else is in it."""
    with suppress(FileNotFoundError):
        for left in os.listdir(folder):
            if left.startswith(prefix):
                shutil.rmtree(folder / left, ignore_errors=True)
    if remove:
        with suppress(OSError):
            folder.rmdir()
        leave(str(folder))
