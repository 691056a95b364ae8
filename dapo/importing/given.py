"""What a source says: its settings with their places, and what could not be read out of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MOST_SETTINGS = 5_000


@dataclass(frozen=True, slots=True)
class Given:
    """One setting as the source has it."""

    key: str  # dotted, without `+`, `~` and `--`; dashes of a flag as underscores
    value: Any
    place: str = ""  # "line 12"


@dataclass(slots=True)
class Source:
    """Everything that a file says, whatever its form was."""

    name: str
    form: str  # what it was read as: "YAML", "a launch script", "Python"
    settings: dict[str, Given] = field(default_factory=dict)  # a later one replaces an earlier one
    unresolved: list[tuple[str, str]] = field(default_factory=list)  # what stands there, why it could not be read
    words: set[str] = field(default_factory=set)  # programs and modules named, which tell whose it is
    devices: int | None = None  # processes that learn, where the source says it

    def add(self, key: str, value: Any, place: str) -> None:
        """Take one setting; the last one given wins, as it does in all six."""
        key = key.strip()
        self.settings.pop(key, None)
        self.settings[key] = Given(key, value, place)


def leaves(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and values of nested settings; lists are values."""
    if isinstance(value, Mapping) and value:
        for key, below in value.items():
            yield from leaves(below, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, value
