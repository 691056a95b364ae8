"""Checkpoints as folders that are whole or absent: written aside, flushed to disk, then renamed.

checkpoints/step_000040/
    manifest.json    size and checksum of every file: what was written is what is read
    ...              whatever the caller's ``write`` put there
checkpoints/best.json    which of them is the best, by which metric; that one is kept beside the newest

A file's writer may describe it (a rank of the learner its part); other files are read once more for their checksum.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.errors import CheckpointError
from dapo.types.batch import SavedFile
from dapo.types.protocols import Done, Handle

_NAME = re.compile(r"step_(\d{6,})$")
_OLD = ".old-"  # begins the name of a checkpoint that makes room for another one of its step
_MANIFEST = "manifest.json"
_BEST = "best.json"

Write = Callable[[Path], Iterable[SavedFile]]
"""Fills a folder; returns files that are on the disk already, by their names in that folder. It may leave some out."""
BeginWrite = Callable[[Path], Handle[Iterable[SavedFile]]]
"""The same, by a writer that may still be at work when it returns."""


class CheckpointStore:
    """The checkpoints of one run. The process that holds the run's folder saves, marks and repairs; any process may
    read."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder, self.keep = folder, keep

    def save(self, step: int, write: Write) -> Path:
        """Save step ``step`` through ``write(folder)``. A crash at any instant leaves the previous ones whole.

        Raises:
            CheckpointError: a file that ``write`` described is not there, or has another size.
        """
        return self.begin(step, lambda folder: Done(write(folder))).finish()

    def begin(self, step: int, write: BeginWrite, best: Mapping[str, Any] | None = None) -> Saving:
        """Begin to save step ``step``: what ``write`` leaves to be done is waited for by ``finish`` of what comes back,
        and until then there is no checkpoint of that step. One at a time.

        ``best``: it is the best so far, with facts to report (JSON-able).
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mend()
        aside = self.folder / f".writing-step_{step:06d}"
        fresh(aside)
        return Saving(self, step, self.folder / f"step_{step:06d}", aside, write(aside), best)

    def appear(self, target: Path, aside: Path, best: Mapping[str, Any] | None = None) -> None:
        """Turn files that were written aside, and are on the disk, into a checkpoint; with ``best`` into the one that
        is kept."""
        if target.exists():  # the same step again: a boundary saved with more state than before
            old = self.folder / f"{_OLD}{target.name}"
            target.rename(old)
            aside.rename(target)
            _delete(old, tolerant=True)
        else:
            aside.rename(target)
        if best is not None:
            self.mark(best)
        _flush(self.folder)
        self._prune()

    def mark(self, best: Mapping[str, Any] | None) -> None:
        """Write down which checkpoint is the best: ``step``, and what else is known. None: none of them."""
        path = self.folder / _BEST
        if best is None:
            path.unlink(missing_ok=True)
            return
        aside = self.folder / f".writing-{_BEST}"
        aside.write_text(json.dumps(dict(best)), encoding="utf-8")
        _flush(aside)
        aside.rename(path)

    def best(self) -> dict[str, Any] | None:
        """Return the arguments of ``mark`` for the best checkpoint; None if there is none, or it is missing."""
        try:
            found: dict[str, Any] = json.loads((self.folder / _BEST).read_text(encoding="utf-8"))
            return found if int(found["step"]) in self.steps() else None
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def best_step(self) -> int:
        """Return the step of the best checkpoint.

        Raises:
            CheckpointError: none is marked.
        """
        found = self.best()
        if found is None:
            there = f"; there are checkpoints of steps {', '.join(map(str, self.steps()))}" if self.steps() else ""
            raise CheckpointError(
                f"no checkpoint in {self.folder} is marked as the best: set checkpoint.best to a metric, such as "
                f"validation/accuracy (a resume may), or take one by --step{there}"
            )
        return int(found["step"])

    def steps(self) -> list[int]:
        """Return the steps with a whole checkpoint, ascending.

        Raises:
            CheckpointError: something else than a folder has the checkpoints' name.
        """
        if not self.folder.is_dir():
            if self.folder.exists() or self.folder.is_symlink():
                raise CheckpointError(f"{self.folder} is no folder, so its checkpoints are not there; put them back")
            return []
        found = (_NAME.match(entry.name) for entry in self.folder.iterdir() if entry.is_dir())
        return sorted(int(match.group(1)) for match in found if match)

    def path(self, step: int | None = None) -> Path:
        """Folder of a step's checkpoint (default: the newest), checked against its manifest. Changes nothing: the run
        may be going on in another process, and save or remove one meanwhile.

        Raises:
            CheckpointError: there is none, or a file is missing or is not what was written.
        """
        while True:
            found = self._found()
            if not found:
                raise CheckpointError(
                    f"no checkpoint in {self.folder}. The run was stopped before its first one; start it again with "
                    "`dapo train RECIPE run.if_exists=backup`."
                )
            if step is not None and step not in found:
                raise CheckpointError(f"no checkpoint of step {step} in {self.folder}; there are: {sorted(found)}")
            folder = found[max(found) if step is None else step]
            before = _identity(folder)
            try:
                check_manifest(folder)
            except CheckpointError:
                if before is not None and _identity(folder) == before:
                    raise
            else:
                return folder

    def mend(self) -> None:
        """Undo a save that a crash interrupted. Only for the process that holds the run's folder: to any other one a
        save that is under way looks like that."""
        if not self.folder.is_dir():
            return
        for old in self.folder.glob(f"{_OLD}step_*"):
            target = self.folder / old.name.removeprefix(_OLD)
            if target.exists():
                _delete(old, tolerant=True)
            else:
                old.rename(target)
        for left_over in [*self.folder.glob(".writing-step_*"), *self.folder.glob(".removing-step_*")]:
            _delete(left_over, tolerant=True)

    def _found(self) -> dict[int, Path]:
        """Return step -> folder of each whole checkpoint. One that was being moved aside when its process ended has its
        present name."""
        before = self.steps()
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            names = []
        aside = [name for name in names if name.startswith(_OLD)]
        found = {int(match[1]): self.folder / name for name in aside if (match := _NAME.search(name))}
        # Before and after, since one that is replaced just now may be missed by one look, and stand aside no more.
        return found | {step: self.folder / f"step_{step:06d}" for step in [*before, *self.steps()]}

    def _prune(self) -> None:
        best = self.best()
        for step in self.steps()[: -self.keep]:
            if best is None or step != best["step"]:
                self._remove(step)

    def _remove(self, step: int) -> None:
        """Remove a checkpoint. It is renamed first: a crash half-way must not leave a folder that looks like a
        checkpoint."""
        folder = self.folder / f"step_{step:06d}"
        _delete(folder.rename(self.folder / f".removing-{folder.name}"), tolerant=True)


@dataclass(frozen=True, slots=True)
class Saving:
    """A checkpoint on its way."""

    store: CheckpointStore
    step: int
    target: Path
    aside: Path
    files: Handle[Iterable[SavedFile]]
    best: Mapping[str, Any] | None = None

    def done(self) -> bool:
        """Whether ``finish`` would not wait for its writers."""
        return self.files.done()

    def finish(self) -> Path:
        """Wait for its writers; then it is there, whole.

        Raises:
            CheckpointError: a file that was described is not there, or has another size.
        """
        seal(self.aside, self.files.result())
        self.store.appear(self.target, self.aside, self.best)
        return self.target


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Around whatever reads a checkpoint of a run that may be going on.

    Raises:
        CheckpointError: in place of whatever went wrong, where the run has removed the checkpoint meanwhile.
    """
    before = _identity(folder)
    try:
        yield
    except Exception as error:
        if before is not None and _identity(folder) == before:
            raise
        raise CheckpointError(
            f"checkpoint {folder} was removed while it was read: the run goes on and keeps its newest checkpoints "
            "(checkpoint.keep) and the best one; take a newer one, or wait until the run has ended"
        ) from error


def fresh(folder: Path) -> None:
    """Make an empty folder in place of any earlier one."""
    if folder.exists():
        _delete(folder)
    folder.mkdir(parents=True)


def seal(folder: Path, files: Iterable[SavedFile]) -> None:
    """Add a manifest to a filled folder, and flush to disk what ``files`` do not name."""
    described = {file.name: file for file in files}
    sizes = {path.relative_to(folder).as_posix(): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    for name, file in described.items():
        if sizes.get(name) != file.size:
            there = f"has {sizes[name]} bytes" if name in sizes else "is not there"
            raise CheckpointError(
                f"{folder / name} {there}, and its writer counted {file.size} bytes: the checkpoint was not "
                "made; look at the disk (full? a shared folder that lags behind?), then continue with "
                "`dapo train --resume`"
            )
    own = [name for name in sizes if name not in described]
    checksums = {name: file.crc32 for name, file in described.items()} | {n: _checksum(folder / n) for n in own}
    manifest = {name: [sizes[name], checksums[name]] for name in sorted(sizes, key=lambda name: Path(name).parts)}
    (folder / _MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in [*(folder / n for n in own), folder / _MANIFEST, *filter(Path.is_dir, folder.rglob("*")), folder]:
        _flush(path)


def check_manifest(folder: Path) -> None:
    """Raise CheckpointError when a file of the checkpoint is missing or is not what was written."""
    path = folder / _MANIFEST
    if not path.exists():
        raise CheckpointError(f"{folder} has no {_MANIFEST}: it is not a checkpoint of this program, or is damaged")
    try:
        entries = [(name, size, checksum) for name, (size, checksum) in json.loads(path.read_text("utf-8")).items()]
        problem = "" if entries else f"{_MANIFEST} names no file"
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        entries, problem = [], f"{_MANIFEST} cannot be read ({error})"
    for name, size, checksum in entries:
        problem = problem or _damage(folder, name, size, checksum)
    if problem:
        raise CheckpointError(
            f"checkpoint {folder} is damaged: {problem}. To go on from the one before, delete this folder"
        )


def _damage(folder: Path, name: str, size: object, checksum: object) -> str:
    """Return the fault of a file of the manifest; "" if it is as it was written."""
    file = folder / name
    try:
        if not file.exists():
            return f"{name} is missing"
        if not file.is_file():
            return f"{name} is no file"
        if file.stat().st_size != size:
            return f"{name} has {file.stat().st_size} bytes, {size} bytes were written"
        if _checksum(file) != checksum:
            return f"{name} does not hold what was written (its checksum differs)"
    except (OSError, ValueError) as error:
        return f"{name} cannot be read ({error})"
    return ""


def _delete(path: Path, *, tolerant: bool = False) -> None:
    """Delete a folder with its contents, or whatever else has the name.

    ``tolerant``: as far as that goes now, of what is no checkpoint any more: in a folder of another machine files stay
    that a process reads. The next ``mend`` deletes the rest.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=tolerant)
    else:
        path.unlink(missing_ok=tolerant)


def _identity(folder: Path) -> tuple[int, int] | None:
    """Equal as long as the same folder has the name; None: none has it."""
    try:
        found = folder.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _checksum(path: Path) -> int:
    """CRC-32 of a file: finds what a disk or a copy did to it."""
    value = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            value = zlib.crc32(block, value)
    return value


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
