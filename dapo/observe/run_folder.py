"""The folder of one run: what stands where, and that one process at a time writes there.

::

    RUN/
      recipe.yaml              as given            metrics.jsonl            one object a step
      recipe.resolved.yaml     every setting       rollouts/step_000012.parquet
      difference.txt           against the preset  tokens/step_000012.parquet
      prompts.parquet          training problems   checkpoints/step_000012/
      status.json              how the run stands  samples.jsonl            validation responses
      log.txt, curve.png                           spans.jsonl, tensorboard/
      machine.jsonl            processor, versions, commit: at the start and each resume
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import struct
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from dapo.errors import RecipeError
from dapo.observe.files import open_regular
from dapo.observe.jsonl import cut_jsonl, write_atomically

LOCK = "lock"
_HELD: dict[tuple[int, int], int] = {}
"""Lock files that a process holds: device and inode -> its pid."""


@dataclass(slots=True)
class RunFolder:
    """Paths of a run. Make one with ``create`` (a new run) or ``open`` (an existing one)."""

    path: Path
    _lock: int | None = field(default=None, repr=False)  # file descriptor while this process holds the folder

    @classmethod
    def create(cls, directory: str | Path, name: str, if_exists: Literal["refuse", "backup"] = "refuse") -> Self:
        """Make the folder ``directory/name`` and lock it for this process.

        Raises:
            RecipeError: the name is no folder name; or the folder holds a run and ``if_exists`` is ``refuse``; or
                another process is writing there.
        """
        if name in ("", ".", "..") or Path(name).name != name:
            raise RecipeError(f"run.name is {name!r}, expected the name of one folder. Put the path into run.dir.")
        path = Path(directory) / name
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            if if_exists == "refuse":
                raise RecipeError(
                    f"{path} exists already. Continue it with `dapo train --resume {path}`, choose another run.name, "
                    "or set run.if_exists=backup to move it aside."
                )
            _move_aside(path)
        path.mkdir(parents=True, exist_ok=True)
        run = cls(path)
        run.lock()
        return run

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """An existing run folder, not locked (readers need no lock; a resume calls ``lock``).

        Raises:
            RecipeError: there is no run in it.
        """
        run = cls(Path(path))
        if not run.resolved_recipe.exists():
            near = sorted(p.parent.name for p in run.path.parent.glob("*/recipe.resolved.yaml"))
            raise RecipeError(
                f"{run.path} holds no run: {run.resolved_recipe.name} is missing. "
                + (f"Runs in {run.path.parent}: {', '.join(near)}." if near else f"No run in {run.path.parent} either.")
            )
        return run

    @property
    def recipe(self) -> Path:
        return self.path / "recipe.yaml"

    @property
    def resolved_recipe(self) -> Path:
        return self.path / "recipe.resolved.yaml"

    @property
    def difference(self) -> Path:
        return self.path / "difference.txt"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def prompts(self) -> Path:
        return self.path / "prompts.parquet"

    @property
    def samples(self) -> Path:
        return self.path / "samples.jsonl"

    @property
    def spans(self) -> Path:
        return self.path / "spans.jsonl"

    @property
    def status(self) -> Path:
        return self.path / "status.json"

    @property
    def log(self) -> Path:
        return self.path / "log.txt"

    @property
    def curve(self) -> Path:
        return self.path / "curve.png"

    @property
    def rollouts(self) -> Path:
        return self.path / "rollouts"

    @property
    def tokens(self) -> Path:
        return self.path / "tokens"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def tensorboard(self) -> Path:
        return self.path / "tensorboard"

    def rollout_file(self, step: int) -> Path:
        return self.rollouts / f"step_{step:06d}.parquet"

    def tokens_file(self, step: int) -> Path:
        return self.tokens / f"step_{step:06d}.parquet"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:06d}"

    def write(self, path: Path, text: str) -> None:
        """Write one of the run's text files atomically."""
        write_atomically(path, text)

    def cut_back(self, step: int) -> None:
        """Remove what was recorded after ``step``: a resumed run writes those steps again."""
        for path in (self.metrics, self.samples, self.spans):
            # Of samples and spans no step depends: a damaged line there must not keep a run from going on.
            cut_jsonl(path, lambda record: int(record["step"]) <= step, forgiving=path != self.metrics)
        for folder in (self.rollouts, self.tokens):
            for file in folder.glob("step_*.parquet"):
                if int(file.stem.removeprefix("step_")) > step:
                    file.unlink()
            for left_over in folder.glob(".*.tmp"):  # of a process killed while it wrote
                left_over.unlink()

    def lock(self) -> None:
        """Keep other processes out until ``release``, or until this process ends, however it ends.

        A POSIX record lock: the kernel drops it with the process, so there is no stale lock to recognise, and
        processes forked from this one (verifier workers) do not hold it. ``RUN/lock`` names the holder.

        Raises:
            RecipeError: another process holds it.
        """
        if self._lock is not None:
            return
        descriptor = os.open(self.path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.read(descriptor, 100).decode(errors="replace").strip()
            os.close(descriptor)
            if error.errno in (errno.EACCES, errno.EAGAIN):
                raise RecipeError(
                    f"{self.path} is being written by another process ({holder}). "
                    "Wait for it to end, or choose another run.name."
                ) from None
            return  # a file system without locks: go on without
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"pid {os.getpid()} on {os.uname().nodename}\n".encode())
        self._lock = descriptor
        _HELD[_identity(os.fstat(descriptor))] = os.getpid()

    def release(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            _HELD.pop(_identity(os.fstat(self._lock)), None)
            os.close(self._lock)  # closing drops the lock
            self._lock = None


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


def _identity(of: os.stat_result) -> tuple[int, int]:
    return of.st_dev, of.st_ino


def _move_aside(path: Path) -> None:
    """Rename a run folder to the next free ``name.1``, ``name.2``...; refused while a process writes there."""
    if path.is_dir():
        owner = RunFolder(path)
        owner.lock()
        owner.release()
    taken = [re.fullmatch(re.escape(path.name) + r"\.(\d+)", p.name) for p in path.parent.iterdir()]
    number = 1 + max((int(match[1]) for match in taken if match), default=0)
    path.rename(path.with_name(f"{path.name}.{number}"))
