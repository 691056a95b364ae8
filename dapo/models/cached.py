"""Models that are made once and kept in a folder of the user: where it is, and how one comes into it whole or not."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cache_folder() -> Path:
    """Return the user's cache of models that were made here, without making it.

    It lies in ``$DAPO_CACHE``, else in ``dapo`` within ``$XDG_CACHE_HOME`` or ``~/.cache``. A relative
    ``XDG_CACHE_HOME`` counts as none, as its specification says.
    """
    if own := os.environ.get("DAPO_CACHE"):
        return Path(own).absolute() / "models"
    base = Path(os.environ.get("XDG_CACHE_HOME") or "")
    return (base if base.is_absolute() else Path.home() / ".cache") / "dapo" / "models"


def make_once(folder: Path, make: Callable[[Path], None]) -> Path:
    """Return ``folder``, made first if it is not there; whoever finds it finds all of it.

    Two processes may ask at once: each makes the model, and the first to finish puts it in place.

    Args:
        folder: its name says everything that decides what is in it.
        make: fills an empty folder.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        make(unfinished)
        unfinished.chmod(0o755)  # mkdtemp's 0o700 would hide the model from other users of a shared cache
        try:
            os.rename(unfinished, folder)
        except OSError:
            if not folder.is_dir():
                raise
            # another process was faster; its model has the same weights
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return folder
