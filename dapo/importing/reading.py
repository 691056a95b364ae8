"""A source while it is turned into a recipe: which keys were read, which lines came of them, what has no place here."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from dapo.config.settings import settings
from dapo.importing.arithmetic import shown
from dapo.importing.contents import SourceFile

_FORMS: dict[str, Callable[[Any], Any]] = {  # by the words for what a setting accepts
    "true or false": bool,
    "a whole number from 1 ": int,
    "a whole number from 0 ": lambda number: max(0, int(number)),
    "a whole number": int,
    "a number": float,
}
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@dataclass(frozen=True, slots=True)
class SourceValue:
    """A value of the source, and where it is from."""

    value: Any
    said: str  # "from data.train_batch_size = 512", "verl's default of data.train_batch_size"
    given: bool  # it stands in the source
    unread: str = ""  # why the source's own value is not known; ``value`` is a stand-in then


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """One setting of the recipe."""

    value: Any
    comment: str
    given: bool  # it comes from the source; False: from a default of the trainer
    fill_in: bool = False  # the user has to write the value, since it could not be read


class Listed(Enum):
    """Lists of settings without a line, by what each setting is to the run."""

    UNKNOWN = "unknown to `dapo import`, or not readable: nothing was made of it"
    DIFFERS = "changes what is computed there, and has no line above"
    IDLE = "memory, speed and logs only, or off here and there"


@dataclass(frozen=True, slots=True)
class Apart:
    """One setting of the source that is no line of the recipe, with the reason and the effect."""

    what: str
    reason: str
    kind: Listed = Listed.DIFFERS


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
    usual: set[str] = field(default_factory=set)  # keys that are given and say what the trainer does anyway

    def given(self, *keys: str) -> bool:
        """Whether one of the keys is in the source with a value."""
        return any(key in self.source.settings and self.source.settings[key].value is not None for key in keys)

    def find(self, *keys: str, default: Any = None, stand_in: Any = "") -> SourceValue | None:
        """Return the first of the keys that is given (null counts as absent), else the trainer's default, else None.

        A key whose value could not be read has its default, or ``stand_in``, as a value that no line shows.
        """
        for key in keys:
            if key in self.source.settings:
                self.used.add(key)
                value = self.source.settings[key].value
                if str(value).lower() == str(default).lower():
                    self.usual.add(key)
                if value is not None and value != "None":
                    return SourceValue(value, f"from {key} = {shown(value)}", True)
            elif key in self.source.unread:
                return self._not_read(stand_in if default is None else default, self.source.unread[key])
        return None if default is None else SourceValue(default, f"{self.title}'s default of {keys[0]}", False)

    @staticmethod
    def _not_read(stand_in: Any, why: str) -> SourceValue:
        return SourceValue(stand_in, f"from {why}", True, why)

    def number(self, *keys: str, default: float | None = None) -> SourceValue | None:
        """Return a number as ``find`` does."""
        found = self.find(*keys, default=default, stand_in=1)
        if found is None or not found.given or found.unread:
            return found
        value = found.value
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                value = None
        if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
            whole = isinstance(value, float) and value.is_integer() and abs(value) < 2**53
            return SourceValue(int(value) if whole else value, found.said, True)
        self.drop(found, f"{self.title} expects a number")
        return self._not_read(1 if default is None else default, f"{found.said[5:]} is no number")

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
        return self._not_read(default, f"{found.said[5:]} is no whole number above 0")

    def flag(self, *keys: str, default: bool) -> SourceValue:
        """Return true or false as ``find`` does."""
        found = self.find(*keys, default=default)
        assert found is not None
        text = str(found.value).lower()
        if text in _TRUE + _FALSE:
            return SourceValue(text in _TRUE, found.said, found.given, found.unread)
        return self._not_read(default, f"{found.said[5:]} is neither true nor false")

    def text(self, *keys: str, default: str = "") -> SourceValue:
        """Return a word as ``find`` does."""
        found = self.find(*keys, default=default)
        assert found is not None
        return SourceValue(str(found.value), found.said, found.given, found.unread)

    def put(self, ours: str, value: Any, *founds: SourceValue | None, note: str = "") -> None:
        """Write one line of the recipe. A kind that stood there as a plain name gets a key of its own beside it."""
        section = ours.rpartition(".")[0]
        if section in self.lines:
            self.lines[f"{section}.kind"] = self.lines.pop(section)
        if unread := next((found.unread for found in founds if found is not None and found.unread), ""):
            if not ours.startswith(("run.", "logging.")):  # names and seeds: they are listed as not read
                self.lines[ours] = RecipeLine(value, unread, given=True, fill_in=True)
            return
        said = list(dict.fromkeys(found.said for found in founds if found is not None))
        origins = [s[5:] for s in said if s.startswith("from ")]
        parts = [f"from {', '.join(origins)}"] if origins else []
        parts += [s for s in (*said, note) if s and not s.startswith("from ")]
        given = any(found is not None and found.given for found in founds)
        self.lines[ours] = RecipeLine(
            value, "; ".join(dict.fromkeys(parts)) or f"what {self.title} does without a setting", given
        )

    def take(
        self, ours: str, found: SourceValue | None, kind: Callable[[Any], Any] | None = None, note: str = ""
    ) -> None:
        """Write one line of what was found, if it was; ``kind``: what makes our value of it."""
        if found is not None:
            self.put(ours, found.value if kind is None or found.unread else kind(found.value), found, note=note)

    def copy(self, ours: str, keys: tuple[str, ...], default: Any, note: str = "") -> None:
        """Write one line of a key that decides it alone, in the form that the setting takes."""
        setting = settings()[ours]
        form = next((form for form in _FORMS if setting.expected.startswith(form)), "")
        if not keys:
            self.put(ours, default, note=note)
        elif self.find(*keys, default=default) is None:
            return
        elif setting.choices:
            self.choose(ours, self.text(*keys, default=default or ""), {word: word for word in setting.choices}, note)
        elif form == "true or false":
            self.take(ours, self.flag(*keys, default=default or False), note=note)
        elif form == "a whole number from 1 ":
            self.take(ours, self.count(*keys, default=default or 1), note=note)
        elif form:
            self.take(ours, self.need(*keys, default=default or 0), _FORMS[form], note)
        else:
            self.take(ours, self.find(*keys, default=default), str if setting.text else None, note)

    def choose(self, ours: str, found: SourceValue, values: Mapping[str, Any], note: str = "") -> bool:
        """Write a line for a word by a table of words; a word that is not in it is listed, and False comes back."""
        key = str(found.value).lower()
        if key in values or found.unread:
            self.put(ours, values.get(key), found, note=note)
            return True
        self.drop(found, f"has no counterpart; `{ours}` keeps its default")
        return False

    def drop(self, found: SourceValue | None, reason: str, *, idle: bool = False) -> None:
        """List what is given and is no line of the recipe; ``idle``: it changes nothing that is computed."""
        if found is not None and found.given and not found.unread:
            self.apart.append(Apart(found.said.removeprefix("from "), reason, Listed.IDLE if idle else Listed.DIFFERS))

    def replace(self, found: SourceValue | None, reason: str) -> None:
        """List a loss, an advantage or a correction that is not here, and say so in the recipe's first lines."""
        if found is not None and not found.unread:
            what = found.said.removeprefix("from ")
            self.drop(found, reason)
            self.cautions.append(
                f"this is not what {self.title} trains. {what if found.given else found.said}: {reason}"
            )

    def say(self, text: str) -> None:
        """List a difference in meaning at the end of the recipe."""
        if text not in self.said:
            self.said.append(text)
