"""Contents of a source: its settings with their places, and the parts that could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_SETTINGS = 5_000
LONGEST_VALUE = 100_000  # characters of one setting, with what it refers to put in


@dataclass(frozen=True, slots=True)
class SourceSetting:
    """One setting as the source has it."""

    key: str  # dotted, without `+`, `~` and `--`; dashes of a flag as underscores
    value: Any
    place: str = ""  # "line 12"


@dataclass(slots=True)
class Processes:
    """How many processes learn, as variables and flags of a launcher say it."""

    given: dict[str, str] = field(default_factory=dict)

    def note(self, name: str, text: str) -> bool:
        """Take a variable or a flag; return whether it is one of theirs."""
        name = name.replace("-", "_").lower()
        if name not in ("nnodes", "nproc_per_node", "num_processes"):
            return False
        self.given[name] = text
        if name == "num_processes":  # it counts those of all machines
            self.given.pop("nnodes", None)
        return True

    @property
    def unread(self) -> str:
        """Return what gives the number and cannot be read; empty: nothing."""
        name = next((name for name, text in self.given.items() if not text.isdigit()), "")
        return name and f"{name} is not constant; `--devices N` gives the number of processes"

    @property
    def devices(self) -> int | None:
        """Return the number of one machine, or None where the source does not say it."""
        text = self.given.get("num_processes", self.given.get("nproc_per_node", ""))
        return int(text) if text.isdigit() else None

    @property
    def nodes(self) -> int:
        """Return the number of machines."""
        text = self.given.get("nnodes", "1")
        return int(text) if text.isdigit() else 1


@dataclass(slots=True)
class SourceFile:
    """Everything that a file says, whatever its form was."""

    name: str
    form: str  # what it was read as: "YAML", "a launch script", "Python"
    settings: dict[str, SourceSetting] = field(default_factory=dict)  # a later one replaces an earlier one
    unresolved: list[tuple[str, str]] = field(default_factory=list)  # what stands there, why it could not be read
    unread: dict[str, str] = field(default_factory=dict)  # keys that are given without a value that can be read: why
    gaps: list[tuple[str, str]] = field(default_factory=list)  # parts of the command that may hold any key
    files: list[str] = field(default_factory=list)  # read as well, for what it names as its base
    cautions: list[str] = field(default_factory=list)  # said in the first lines
    lacks: str = ""  # why it cannot be imported, if it is the command that is chosen
    folder: Path | None = None  # in which the files lie that it names
    words: set[str] = field(default_factory=set)  # programs and modules named, which tell whose it is
    functions: dict[str, str] = field(default_factory=dict)  # names of functions that are in a module, by theirs
    processes: Processes = field(default_factory=Processes)

    def add(self, key: str, value: Any, place: str) -> None:
        """Take one setting; the last one given wins, as it does in all six. A value without end is listed instead."""
        key = key.strip()
        if _size(value) > LONGEST_VALUE:
            self.unresolved.append((key, f"it stands for more than {LONGEST_VALUE:,} characters"))
            return
        self.settings.pop(key, None)
        self.unread.pop(key, None)
        self.settings[key] = SourceSetting(key, value, place)

    def rows_of(self, name: str) -> int:
        """Return the number of rows of a file of JSON lines or Parquet; 0: it is not here, or another file."""
        places = [folder / name for folder in (self.folder, Path.cwd()) if folder is not None]
        try:
            path = next((place for place in places if place.is_file()), None)
            if path is not None and path.suffix == ".parquet":
                import pyarrow.parquet

                return int(pyarrow.parquet.ParquetFile(path).metadata.num_rows)
            if path is not None and path.suffix == ".jsonl":
                with path.open("rb") as lines:
                    return sum(1 for line in lines if line.strip())
        except (OSError, ValueError):
            pass
        return 0

    def text_of(self, name: str) -> str:
        """Return the text of a file beside the source; empty: it is not there, or larger than a prompt."""
        path = None if self.folder is None else self.folder / name
        try:
            if self.folder and path and path.resolve().is_relative_to(self.folder.resolve()) and path.is_file():
                return path.read_text(encoding="utf-8")[:LONGEST_VALUE]
        except (OSError, ValueError):
            pass
        return ""

    def not_read(self, key: str, what: str, why: str) -> None:
        """Take a setting whose value could not be read: ``what`` is its text. No default takes its place."""
        self.settings.pop(key, None)
        self.unread[key] = f"{what} could not be read: {why}"
        self.unresolved.append((what, why))


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dotted keys and values of nested settings; lists are values."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from leaves(below, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, value


def _size(value: Any) -> int:
    """Count characters of a value as it would be written, up to a few more than ``LONGEST_VALUE``."""
    total, parts = 0, [value]
    while parts and total <= LONGEST_VALUE:
        part = parts.pop()
        if isinstance(part, list):
            total += 2 + len(part)
            parts += part[: LONGEST_VALUE + 1]
        elif isinstance(part, Mapping):
            total += sum(len(str(key)) for key in part)
            parts += part.values()
        else:
            total += len(part) if isinstance(part, str) else 8
    return total
