"""A source while it is turned into a recipe: which keys were read, which lines came of them, what has no place here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from dapo.importing.given import SourceFile
from dapo.importing.values import shown

_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class SourceValue:
    """A value of the source, and where it is from."""

    value: Any
    said: str  # "from data.train_batch_size = 512", "verl's default of data.train_batch_size"
    given: bool  # it stands in the source


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """One setting of the recipe."""

    value: Any
    comment: str
    given: bool  # it comes from the source; False: from a default of the trainer


@dataclass(frozen=True, slots=True)
class Apart:
    """One setting of the source that is no line of the recipe, with the reason and the effect."""

    what: str
    reason: str
    computed: bool = True  # it changes what is computed; False: memory, speed and logs only, or without effect


@dataclass(slots=True)
class Reading:
    """The conversion of one source."""

    source: SourceFile
    title: str  # of the trainer, as it is written
    lines: dict[str, RecipeLine] = field(default_factory=dict)
    apart: list[Apart] = field(default_factory=list)
    said: list[str] = field(default_factory=list)  # what means something else here
    cautions: list[str] = field(default_factory=list)  # the recipe's first lines
    used: set[str] = field(default_factory=set)

    def given(self, *keys: str) -> bool:
        """Whether one of the keys is in the source with a value."""
        return any(key in self.source.settings and self.source.settings[key].value is not None for key in keys)

    def find(self, *keys: str, default: Any = None) -> SourceValue | None:
        """Return the first of the keys that is given (null counts as absent), else the trainer's default, else None."""
        for key in keys:
            if key in self.source.settings:
                self.used.add(key)
                value = self.source.settings[key].value
                if value is not None and value != "None":
                    return SourceValue(value, f"from {key} = {shown(value)}", True)
        return None if default is None else SourceValue(default, f"{self.title}'s default of {keys[0]}", False)

    def number(self, *keys: str, default: float | None = None) -> SourceValue | None:
        """Return a number as ``find`` does; another value is listed and counts as absent."""
        found = self.find(*keys)
        if found is not None:
            value = found.value
            if isinstance(value, str):
                try:
                    value = float(value)
                except ValueError:
                    value = None
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
                return SourceValue(int(value) if whole else value, found.said, True)
            self.drop(found, "a number is expected there; the default is taken")
        return None if default is None else SourceValue(default, f"{self.title}'s default of {keys[0]}", False)

    def need(self, *keys: str, default: float) -> SourceValue:
        """Return a number as ``number`` does, of a key with a default."""
        found = self.number(*keys, default=default)
        assert found is not None
        return found

    def count(self, *keys: str, default: int) -> SourceValue:
        """Return a whole number above 0 as ``need`` does."""
        found = self.need(*keys, default=default)
        if isinstance(found.value, int) and found.value > 0:
            return found
        self.drop(found, "a whole number above 0 is expected; the default is taken")
        return SourceValue(default, f"{self.title}'s default of {keys[0]}", False)

    def flag(self, *keys: str, default: bool) -> SourceValue:
        """Return true or false as ``find`` does."""
        found = self.find(*keys)
        if found is not None:
            text = str(found.value).lower()
            if text in _TRUE + _FALSE:
                return SourceValue(text in _TRUE, found.said, True)
            self.drop(found, "true or false is expected; the default is taken")
        return SourceValue(default, f"{self.title}'s default of {keys[0]}", False)

    def text(self, *keys: str, default: str = "") -> SourceValue:
        """Return a word as ``find`` does."""
        found = self.find(*keys)
        if found is not None:
            return SourceValue(str(found.value), found.said, True)
        return SourceValue(default, f"{self.title}'s default of {keys[0]}", False)

    def put(self, ours: str, value: Any, *founds: SourceValue | None, note: str = "") -> None:
        """Write one line of the recipe. A kind that stood there as a plain name gets a key of its own beside it."""
        section = ours.rpartition(".")[0]
        if section in self.lines:
            self.lines[f"{section}.kind"] = self.lines.pop(section)
        said = [found.said for found in founds if found is not None]
        first = ["from " + ", ".join(s.removeprefix("from ") for s in said if s.startswith("from "))]
        rest = [s for s in said if not s.startswith("from ")]
        parts = [*(first if first != ["from "] else []), *rest, *([note] if note else [])]
        given = any(found is not None and found.given for found in founds)
        self.lines[ours] = RecipeLine(value, "; ".join(dict.fromkeys(parts)), given)

    def take(
        self, ours: str, found: SourceValue | None, kind: Callable[[Any], Any] | None = None, note: str = ""
    ) -> None:
        """Write one line of what was found, if it was; ``kind``: what makes our value of it."""
        if found is not None:
            self.put(ours, found.value if kind is None else kind(found.value), found, note=note)

    def choose(self, ours: str, found: SourceValue, values: Mapping[str, Any], note: str = "") -> bool:
        """Write a line for a word by a table of words; a word that is not in it is listed, and False comes back."""
        key = str(found.value).lower()
        if key in values:
            self.put(ours, values[key], found, note=note)
            return True
        self.drop(found, f"has no counterpart; `{ours}` keeps its default")
        return False

    def drop(self, found: SourceValue | None, reason: str, *, idle: bool = False) -> None:
        """List what is given and is no line of the recipe; ``idle``: it changes nothing that is computed."""
        if found is not None and found.given:
            self.apart.append(Apart(found.said.removeprefix("from "), reason, not idle))

    def say(self, text: str) -> None:
        """List a difference in meaning at the end of the recipe."""
        if text not in self.said:
            self.said.append(text)
