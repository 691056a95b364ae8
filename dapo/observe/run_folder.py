"""The folder of one run: what stands where, and that one process at a time writes there.

::

    RUN/
      recipe.yaml              as given            metrics.jsonl            one object a step
      recipe.resolved.yaml     every setting       rollouts/step_000012.parquet
      difference.txt           against the preset  tokens/step_000012.parquet
      prompts.parquet          training problems   stopped/step_000012.parquet
      status.json              how the run stands  evaluations/step_000020.parquet
                                                   checkpoints/step_000012/
      log.txt, curve.png        (or a link there) samples.jsonl            validation responses
      machine.jsonl            processor, versions, commit: at the start and each resume
      processes.json           of a run with several: each process at the last step
                                                   spans.jsonl, tensorboard/

``stopped/`` holds what was judged in a step that could not be filled. Its groups stand once more in the step's own
file when a resume completes it, so they have a folder of their own.

The folder can be entered by its owner alone: prompts, responses and recipes are theirs until they share them.
"""

from __future__ import annotations

import itertools
import os
import re
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from dapo.config.yaml_files import RESOLVED
from dapo.errors import DISK_FULL, DapoError, DataError, RecipeError
from dapo.observe.commands import resume_said
from dapo.observe.jsonl import cut_jsonl, read_steps, write_atomically
from dapo.observe.run_files import no_room_in
from dapo.observe.run_lock import LOCK, drop, is_held, take

JOBS = ".jobs"
"""Folder beside runs for what ``dapo launch`` writes, one folder a run."""
HOSTS = "hosts"
"""Folder of a run for what the processes of its ranks and engines print."""
_BEGUN = {LOCK, "recipe.yaml", "difference.txt", HOSTS}
"""Files in the folder of a run that ended before its recipe was written: as good as none."""


class _Place:
    """A file or folder of a run; of a ``RunFolder``, its path."""

    def __init__(self, name: str, *, folder: bool = False) -> None:
        self.name, self.folder = name, folder

    def __get__(self, run: RunFolder, of: type[RunFolder]) -> Path:
        return run.path / self.name


@dataclass(slots=True)
class RunFolder:
    """Paths of a run. Make one with ``create`` (a new run) or ``open`` (an existing one)."""

    path: Path
    _lock: int | None = field(default=None, repr=False)  # file descriptor while this process holds the folder
    _given: Path | None = field(default=None, repr=False)  # what ``path`` was before ``anchor``

    recipe = _Place("recipe.yaml")
    resolved_recipe = _Place("recipe.resolved.yaml")
    difference = _Place("difference.txt")
    metrics = _Place("metrics.jsonl")
    prompts = _Place("prompts.parquet")
    samples = _Place("samples.jsonl")
    spans = _Place("spans.jsonl")
    status = _Place("status.json")
    log = _Place("log.txt")
    curve = _Place("curve.png")
    rollouts = _Place("rollouts", folder=True)
    stopped = _Place("stopped", folder=True)
    tokens = _Place("tokens", folder=True)
    evaluations = _Place("evaluations", folder=True)
    checkpoints = _Place("checkpoints", folder=True)
    export = _Place("export", folder=True)
    """The model that a supervised run leaves."""

    @classmethod
    def create(cls, directory: str | Path, name: str, if_exists: Literal["refuse", "backup"] = "refuse") -> Self:
        """Make the folder ``directory/name`` and lock it for this process.

        Raises:
            RecipeError: the name is no folder name; or the folder holds a run and ``if_exists`` is ``refuse``; or
                another process is writing there; or no folder can be made there.
        """
        if said := _no_name(name):
            raise RecipeError(said)
        path = Path(directory) / name
        try:
            run = cls._taken(path, if_exists)
        except (OSError, ValueError) as error:
            if isinstance(error, DapoError) or getattr(error, "errno", None) in DISK_FULL:
                raise
            raise RecipeError(_impossible(path, getattr(error, "strerror", None) or error)) from None
        return run

    @staticmethod
    def refusal(directory: str | Path, name: str, if_exists: Literal["refuse", "backup"] = "refuse") -> str | None:
        """Return the error that ``create`` would raise, without making or moving anything; None if the name is free."""
        path = Path(directory) / name
        try:
            if said := _no_name(name):
                return said
            if if_exists == "refuse" and _is_taken(path):
                return _in_the_way(path)
            if is_held(path):
                return f"{path} is being written by another process. Wait for it to end, or choose another run.name."
            said = no_room_in(path.parent.absolute())
        except (OSError, ValueError) as error:
            said = str(getattr(error, "strerror", None) or error)
        return _impossible(path, said) if said else None

    @staticmethod
    def free_name(directory: str | Path, name: str) -> str:
        """Return ``name``, or with the first number from 2 whose folder holds no run and no job: ``name-2``."""
        for number in itertools.count(1):
            tried = name if number == 1 else f"{name}-{number}"
            path = Path(directory) / tried
            if not (_is_taken(path) or is_held(path) or (path.parent / JOBS / tried).exists()):
                return tried
        raise AssertionError("numbers do not end")

    @classmethod
    def create_free(cls, directory: str | Path, name: str) -> Self:
        """As ``create`` under ``free_name``; two processes that ask at the same time get two folders.

        Raises:
            RecipeError: no folder can be made there.
        """
        while True:
            tried = cls.free_name(directory, name)
            try:
                return cls.create(directory, tried)
            except RecipeError:
                if cls.free_name(directory, name) == tried:  # not taken meanwhile: there is another reason
                    raise

    @classmethod
    def _taken(cls, path: Path, if_exists: Literal["refuse", "backup"]) -> Self:
        """Return the folder, made and locked. Earlier content is checked and moved aside under its lock, since another
        process may want the same name at the same time."""
        while True:
            there = _is_taken(path)
            if there and if_exists == "refuse":
                raise RecipeError(_in_the_way(path))
            if there and not path.is_dir():
                _move_aside(path)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.mkdir(mode=0o700, exist_ok=True)  # one that is there already keeps its rights
            run = cls(path)
            try:
                run.lock()
            except FileNotFoundError:  # the folder was moved aside, or deleted, just now
                if (path / LOCK).is_symlink():
                    raise
                continue
            if _begun(path):
                return run
            try:
                if if_exists == "backup":
                    _move_aside(path)
            finally:
                run.release()

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open an existing run folder, not locked (readers need no lock; a resume calls ``lock``).

        Raises:
            RecipeError: there is no run in it.
        """
        run = cls(Path(path))
        if not run.resolved_recipe.is_file():
            if run.path.is_dir() and _begun(run.path) and (run.path / LOCK).exists():
                raise RecipeError(
                    f"{run.path} holds no run yet: it ended before its recipe was written. Start it again with "
                    "`dapo train RECIPE`; it takes the same folder."
                )
            within = sorted(p.parent for p in run.path.glob(f"*/{RESOLVED}") if p.is_file())
            if within:
                runs = ", ".join(map(str, within[:8]))
                raise RecipeError(f"{run.path} is a folder of runs; give one of them: {runs}.")
            if (meant := Path("runs") / run.path / RESOLVED).is_file():
                raise RecipeError(f"{run.path} holds no run; did you mean {meant.parent}?")
            near = next(filter(None, map(_runs_in, (run.path.parent, Path("runs")))), "No run next to it or in runs.")
            what = "is no regular file" if os.path.lexists(run.resolved_recipe) else "is missing"
            raise RecipeError(f"{run.path} holds no run: {run.resolved_recipe.name} {what}. {near}")
        return run

    def anchor(self) -> None:
        """Make ``path`` absolute: a program may change its working directory while the run goes on."""
        self._given, self.path = self.path, self.path.absolute()

    def shown(self) -> Path:
        """Return the path as it was given, as long as it leads here; for messages and commands."""
        given = self._given
        return self.path if given is None or given.absolute() != self.path else given

    def rollout_file(self, step: int) -> Path:
        return self.rollouts / f"step_{step:06d}.parquet"

    def damaged_rollouts(self, step: int, *, every: bool) -> tuple[list[int], list[int]]:
        """Return the steps up to ``step`` whose rollout file is missing, and those whose file is not whole.

        Args:
            step: the last one that is done.
            every: each step has a file, from the first one that is there: before it none may have been asked for.
        """
        there = {found: path for found, path in step_files(self.rollouts).items() if found <= step}
        first = min((found for found in there if found > 0), default=step + 1)
        missing = [n for n in range(first, step + 1) if n not in there] if every else []
        return missing, sorted(found for found, path in there.items() if not _is_whole_parquet(path))

    def stopped_file(self, step: int) -> Path:
        return self.stopped / f"step_{step:06d}.parquet"

    def tokens_file(self, step: int) -> Path:
        return self.tokens / f"step_{step:06d}.parquet"

    def evaluation_file(self, step: int) -> Path:
        return self.evaluations / f"step_{step:06d}.parquet"

    def checkpoint(self, step: int) -> Path:
        return self.checkpoints / f"step_{step:06d}"

    def place_checkpoints(self, directory: str | None) -> None:
        """Put the checkpoints of a new run into their own folder in ``directory`` (None: in the run's).

        Raises:
            RecipeError: no folder, or no link to it, can be made.
        """
        if directory is None or self.checkpoints.is_dir():
            return
        try:
            place = _new_folder(Path(directory).absolute() / self.path.name)
            self.checkpoints.unlink(missing_ok=True)
            self.checkpoints.symlink_to(place, target_is_directory=True)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise
            said = error.strerror or error
            raise RecipeError(f"checkpoint.dir = {directory}: no folder can be made there: {said}") from None

    def drop_checkpoints(self) -> None:
        """Take back what ``place_checkpoints`` made for a run that came to nothing."""
        if self.checkpoints.is_symlink():
            with suppress(OSError):
                self.checkpoints.resolve().rmdir()
            self.checkpoints.unlink()

    def drop(self) -> None:
        """Take back a run that came to nothing. What its processes printed stays, as an error may tell where that is:
        it is in no other run's way."""
        self.drop_checkpoints()
        if not any(file.stat().st_size for file in (self.path / HOSTS).glob("*")):
            shutil.rmtree(self.path, ignore_errors=True)
            return
        for entry in self.path.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                if entry.name != HOSTS:
                    shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != LOCK:
                entry.unlink(missing_ok=True)

    def write(self, path: Path, text: str) -> None:
        """Write one of the run's text files atomically."""
        write_atomically(path, text)

    def cut_back(self, step: int) -> None:
        """Remove what was recorded after ``step``: a resumed run writes those steps again.

        Raises:
            DataError: metrics.jsonl is damaged, or something has the name of a file that is none. Nothing is removed.
        """
        self.check_kinds()
        read_steps(self.metrics)
        for path in (self.metrics, self.samples, self.spans):
            # Of samples and spans no step depends: a damaged line there must not keep a run from going on.
            cut_jsonl(path, lambda record: int(record["step"]) <= step, forgiving=path != self.metrics)
        # What the step after ``step`` was given up with is what a person resumes for, and is not written again.
        recorded = [(folder, step) for folder in (self.rollouts, self.tokens, self.evaluations)]
        for folder, last in (*recorded, (self.stopped, max(step, 0) + 1)):
            for number, file in step_files(folder).items():
                if number > last:
                    file.unlink()
            for left_over in folder.glob(".*.tmp"):  # of a process killed while it wrote
                left_over.unlink()

    def check_kinds(self) -> None:
        """Refuse a link or a folder in a file's place and a file in a folder's, before anything is opened or removed.

        Raises:
            DataError: naming it.
        """
        places = [each for each in vars(type(self)).values() if isinstance(each, _Place)]
        for place in (*places, *map(_Place, (LOCK, "machine.jsonl", "processes.json", "rewards.txt"))):
            path = self.path / place.name
            if path.is_symlink() and not place.folder:  # a copied run may hold one that leads to any file of the user's
                raise DataError(f"{path} is a link, and a run would write to where it leads; put the file in its place")
            if path.exists() and not (path.is_dir() if place.folder else path.is_file()):
                raise DataError(
                    f"{path} is no {'folder' if place.folder else 'file'}, which a run keeps there; move it away"
                )
        for folder_path in (self.rollouts, self.tokens, self.evaluations, self.stopped):
            for file in step_files(folder_path).values():
                if not file.is_file():
                    raise DataError(f"{file} is no file; move it away")

    def lock(self) -> None:
        """Keep other writers out until ``release``, or until this process ends, however it ends.

        ``RUN/lock`` names the owner; see ``dapo.observe.run_lock``.

        Raises:
            RecipeError: another writer holds it, in this process or another; or something else has the lock's name.
            FileNotFoundError: the folder is gone.
        """
        if self._lock is None:
            self._lock = take(self.path)

    def release(self) -> None:
        """Let other processes in."""
        if self._lock is not None:
            drop(self._lock)
            self._lock = None


_PARQUET = b"PAR1"  # begins and ends a Parquet file


def _is_whole_parquet(path: Path) -> bool:
    """Whether a Parquet file has its beginning and its end; its middle is not read."""
    with path.open("rb") as file:
        size, first = path.stat().st_size, file.read(len(_PARQUET))
        file.seek(max(0, size - len(_PARQUET)))
        return size > 2 * len(_PARQUET) and first == _PARQUET == file.read()


def step_files(folder: Path, suffix: str = ".parquet") -> dict[int, Path]:
    """Return the entries ``step_000012.parquet`` of a folder by their step, in order; others are left alone."""
    pattern = re.compile(rf"step_(\d{{6,9}}){re.escape(suffix)}")
    try:
        found = [(pattern.fullmatch(entry.name), entry) for entry in folder.iterdir()]
    except OSError:
        return {}
    return dict(sorted((int(match[1]), entry) for match, entry in found if match))


def _no_name(name: str) -> str | None:
    if name in ("", ".", "..") or Path(name).name != name:
        return f"run.name is {name!r}, expected the name of one folder. Put the path into run.dir."
    return None


def _in_the_way(path: Path) -> str:
    return (
        f"{path} exists already. Continue it with `{resume_said(path)}`, choose "
        "another run.name, or set run.if_exists=backup to move it aside."
    )


def _impossible(path: Path, said: object) -> str:
    return f"no run can be made at {path}: {said}. Change run.dir or run.name."


def _is_taken(path: Path) -> bool:
    """Whether something is there that is not merely begun."""
    return path.exists() and (not path.is_dir() or not _begun(path))


def _runs_in(folder: Path) -> str:
    """Return a sentence that names the runs in a folder; "" where there is none."""
    names = sorted(p.parent.name for p in folder.glob(f"*/{RESOLVED}") if p.is_file())
    return f"Runs in {folder}: {', '.join(names)}." if names else ""


def _begun(path: Path) -> bool:
    """Whether a folder is empty, or of a run that ended before its recipe was written, or is gone just now."""
    try:
        there = list(path.iterdir())
    except FileNotFoundError:
        return True
    return all(p.name in _BEGUN or p.is_symlink() or re.fullmatch(r"\.\S+\.tmp", p.name) for p in there)


def _new_folder(path: Path) -> Path:
    """Make it, or, where another run of that name has it, the next free ``name.1``, ``name.2``..."""
    place = path
    for number in itertools.count(1):
        try:
            place.mkdir(mode=0o700, parents=True)
            break
        except FileExistsError:
            place = path.with_name(f"{path.name}.{number}")
    return place


def _move_aside(path: Path) -> None:
    """Rename to the next free ``name.1``, ``name.2``...; the caller has locked a run's folder."""
    taken = [re.fullmatch(re.escape(path.name) + r"\.(\d+)", p.name) for p in path.parent.iterdir()]
    number = 1 + max((int(match[1]) for match in taken if match), default=0)
    path.rename(path.with_name(f"{path.name}.{number}"))
