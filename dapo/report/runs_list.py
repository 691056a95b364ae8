"""Which runs lie below a folder, by what names they may be asked for, and whether one changed since.

A name is a path below the folder, with slashes, as in ``sweep/seed_1``. Names come from the network, so a name is taken
apart and looked at before the file system is asked, and what it leads to has to lie below the folder once every link in
it is followed. ``reader`` holds the files of a run to the same: a run may have been unpacked from an archive.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from dapo.errors import RecipeError
from dapo.observe.run_files import read_regular
from dapo.observe.run_lock import is_held

DEEPEST = 4
"""Folders between the served one and a run's."""
MOST_FOLDERS = 5_000
"""Folders looked into for one list; someone who serves a home folder by mistake gets an answer all the same."""
LONGEST_NAME = 1_000
_RECIPE = "recipe.resolved.yaml"  # what makes a folder a run, see RunFolder.open
_METRICS, _STATUS = "metrics.jsonl", "status.json"
_FILES = (_METRICS, _STATUS, "samples.jsonl", "spans.jsonl", _RECIPE, "difference.txt", "log.txt", "machine.jsonl")
_FOLDERS = ("rollouts", "tokens")
_MOST_BYTES = 64 * 1024  # of status.json
SILENCE_SECONDS = 30.0
"""How exactly a page knows the time since the last update."""
_SCAN_SECONDS = 1.0  # a list is shared by the pages that ask within this time

Fingerprint = tuple[Any, ...]
"""Equal as long as nothing that a page shows has changed. To be compared and hashed, not looked into."""


class NoSuchRun(LookupError):
    """A name that leads to no run below the folder. The message is fit to be shown."""


class BadName(ValueError):
    """A name that can be none of a run. The message is fit to be shown."""


class FoundRuns(NamedTuple):
    """Runs below the folder."""

    names: tuple[str, ...]
    led_out: int  # links to folders outside: not shown
    cut: bool  # more folders than were looked into


@dataclass
class RunsFolder:
    """A folder of runs; or one run, where ``only`` names it within its parent."""

    root: Path  # with every link followed
    only: str | None = None
    _found: tuple[float, FoundRuns] | None = field(default=None, repr=False)

    @classmethod
    def at(cls, path: str | Path) -> RunsFolder:
        """Serve this folder, or this run.

        Raises:
            RecipeError: there is no such folder.
        """
        given = Path(path)
        if not given.is_dir():
            what = "is a file" if given.exists() else "does not exist"
            raise RecipeError(
                f"{path} {what}, expected a folder of runs (the run.dir of your recipe, such as runs) or one run in it."
            )
        real = given.resolve()
        if (real / _RECIPE).is_file():
            return cls(real.parent, real.name)
        return cls(real)

    def find(self) -> FoundRuns:
        """Return the runs below the folder, unordered; at most a second old."""
        now = time.monotonic()
        if self._found is None or now - self._found[0] > _SCAN_SECONDS:
            self._found = (now, self._scan())
        return self._found[1]

    def _scan(self) -> FoundRuns:
        if self.only is not None:
            try:
                self.path_of(self.only)
            except LookupError:
                return FoundRuns((), 0, False)
            return FoundRuns((self.only,), 0, False)
        names: list[str] = []
        led_out = looked = 0
        waiting: list[tuple[str, int]] = [("", 0)]  # names of folders, and how deep
        while waiting and looked < MOST_FOLDERS:
            name, depth = waiting.pop()
            looked += 1
            inside, is_run, links = self._look_into(name)
            led_out += 0 if is_run else links  # a run's own, such as its checkpoints on another disk, are no runs
            if is_run and name:
                names.append(name)
            elif depth <= DEEPEST:
                waiting.extend((f"{name}/{folder}" if name else folder, depth + 1) for folder in inside)
        return FoundRuns(tuple(names), led_out, bool(waiting))

    def _look_into(self, name: str) -> tuple[list[str], bool, int]:
        """Folders in this one, whether it is a run, and how many links in it lead to folders outside."""
        folders: list[str] = []
        is_run, led_out = False, 0
        for entry in _entries(self.root / name):
            if entry.name.startswith(".") or not _is_text(entry.name):
                continue
            if entry.name == _RECIPE:
                is_run = True
            elif entry.is_symlink():  # a link to a run below the folder would list it twice
                led_out += os.path.isdir(entry.path) and not self._holds(Path(entry.path))
            elif entry.is_dir(follow_symlinks=False):
                folders.append(entry.name)
        return folders, is_run, led_out

    def path_of(self, name: str) -> Path:
        """Return the folder of a run.

        Raises:
            BadName: the name is malformed.
            NoSuchRun: there is no run of this name below the folder.
        """
        parts = name.split("/")
        if not 0 < len(name) <= LONGEST_NAME or not _is_text(name):
            raise BadName(f"the name of a run has 1 to {LONGEST_NAME} characters, none of them control characters")
        missing = NoSuchRun(f"no run {brief_name(name)} in this folder")
        if len(parts) > DEEPEST + 1 or any(not part or part.startswith(".") or len(part) > 255 for part in parts):
            raise missing  # "..", hidden folders, absolute paths among them
        if self.only is not None and name != self.only:
            raise missing
        path = self.root.joinpath(*parts)
        try:
            there = self._holds(path) and (path / _RECIPE).is_file()
        except (OSError, RuntimeError, ValueError):
            there = False
        if not there:
            raise missing
        return path

    def _holds(self, path: Path) -> bool:
        """Whether something lies below the folder once every link is followed."""
        try:
            return path.resolve(strict=True).is_relative_to(self.root)
        except (OSError, RuntimeError):
            return False


def fingerprint(run: Path) -> Fingerprint:
    """Return a run's fingerprint: equal to an earlier one if no file that pages show has changed.

    A stat a file and one question to the kernel: whether a process holds the run, for a killed one changes no file. Of
    a run that says it goes on, the page also tells how long it has been silent, so its print changes with time.
    """
    held = is_held(run)
    going_on = held or _says_running(run / _STATUS)
    moment = int(time.time() / SILENCE_SECONDS) if going_on else None
    return (*(_stamp(run / name) for name in (*_FILES, *_FOLDERS)), held, moment)


def changed(run: Path) -> float:
    """When a run last wrote its metrics, in seconds since 1970; 0 where it has none."""
    stamp = _stamp(run / _METRICS)
    return stamp[0] / 1e9 if stamp else 0.0


def _says_running(status: Path) -> bool:
    try:
        record = json.loads(read_regular(status, _MOST_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(record, dict) and record.get("state") == "running"


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _entries(path: Path) -> Iterator[os.DirEntry[str]]:
    """Yield the entries of a folder; none if it cannot be read, or vanished meanwhile."""
    try:
        with os.scandir(path) as entries:
            yield from entries
    except OSError:
        return


def _is_text(name: str) -> bool:
    """Return whether an address can hold a file's name: names on Linux are bytes, with line ends if one likes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return all(ord(letter) >= 32 and letter != "\x7f" for letter in name)


def address_of(name: str) -> str:
    """Return the address at which the server shows a run."""
    return "/run/" + quote(name, safe="/")


def brief_name(name: str) -> str:
    """Return a name for a message: quoted, and cut if it is long."""
    return repr(name if len(name) <= 80 else name[:77] + "...")
