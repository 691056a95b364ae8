"""Contents of a source: its settings with their places, and the parts that could not be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
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
class SourceFile:
    """Everything that a file says, whatever its form was."""

    name: str
    form: str  # what it was read as: "YAML", "a launch script", "Python"
    settings: dict[str, SourceSetting] = field(default_factory=dict)  # a later one replaces an earlier one
    unresolved: list[tuple[str, str]] = field(default_factory=list)  # what stands there, why it could not be read
    files: list[str] = field(default_factory=list)  # read as well, for what it names as its base
    cautions: list[str] = field(default_factory=list)  # said in the first lines
    lacks: str = ""  # why it cannot be imported, if it is the command that is chosen
    words: set[str] = field(default_factory=set)  # programs and modules named, which tell whose it is
    devices: int | None = None  # processes that learn, where the source says it

    def add(self, key: str, value: Any, place: str) -> None:
        """Take one setting; the last one given wins, as it does in all six. A value without end is listed instead."""
        key = key.strip()
        if _size(value) > LONGEST_VALUE:
            self.unresolved.append((key, f"it stands for more than {LONGEST_VALUE:,} characters"))
            return
        self.settings.pop(key, None)
        self.settings[key] = SourceSetting(key, value, place)


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
