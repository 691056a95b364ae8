"""Keys of other trainers: their names in dapo, or why they have no place here, so that a refusal can say it.

The tables in ``peer_keys/`` hold them: ``placed.txt``, ``alone.txt`` (settings that one key decides, with its default),
``replaced.txt`` (losses and advantages that are not here), ``missing.txt`` (what else changes the computation there),
``apart.txt`` (what does not), ``metrics.txt``, and ``words.txt`` (what is no key). The full comparison, behaviour
included, is docs/peers.md.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from importlib import resources
from typing import Any, NamedTuple

NEMO, AREAL, SKYRL, SWIFT, VERL, TRL = "NeMo RL", "AReaL", "SkyRL", "ms-swift", "verl", "TRL"


@dataclass(frozen=True, slots=True)
class PeerKey:
    """One key of other trainers with its place here."""

    key: str  # as its documentation writes it, without the outermost sections
    who: tuple[str, ...]
    ours: tuple[str, ...]  # our settings; empty: not there yet, or not needed
    note: str = ""
    values: Mapping[str, Any] | None = None  # by their words, what its values are here; empty: what they are there

    def converted(self, value: Any) -> tuple[Any] | None:
        """Return our first setting's value for one of theirs; None if a single key does not decide it."""
        if self.values is None or not self.ours:
            return None
        if not self.values:
            return (value,)
        word = str(value).lower()
        return (self.values[word],) if word in self.values else None

    def hint(self) -> str:
        """Return one sentence: "`epsilon_high` is called `algorithm.clip.high` here (ms-swift, TRL)", and the note."""
        who = ", ".join(self.who)
        names = " and ".join(f"`{o}`" for o in self.ours)
        first = f"`{self.key}` is called {names} here ({who})" if self.ours else f"`{self.key}` ({who}) has no key here"
        return f"{first}: {self.note}" if self.note else first


class AloneKey(NamedTuple):
    """One of our settings that a single key of another trainer decides."""

    ours: str
    who: tuple[str, ...]
    keys: tuple[str, ...]  # whole, the newest spelling first; none: the trainer always does the same
    default: str | None  # what the trainer does where the key is not set
    note: str


@dataclass(frozen=True, slots=True)
class ApartKey:
    """Keys of other trainers without a place here."""

    pattern: str  # of whole keys, dots included
    who: tuple[str, ...]
    reason: str
    effect: str  # "idle": memory, speed and logs; "computed"; "replaced": a loss or an advantage that is not here


@dataclass(frozen=True, slots=True)
class PeerMetric:
    """One metric of another trainer."""

    key: str
    who: tuple[str, ...]
    ours: tuple[str, ...]  # keys of the glossary that it is, or is made of
    how: str  # the formula, or what differs; empty: the same


class _Line(NamedTuple):
    above: str  # the line at the margin that it stands below
    note: str  # its own
    who: tuple[str, ...]
    keys: list[str]


def _lines(table: str) -> Iterator[_Line]:
    text = resources.files("dapo.config").joinpath("peer_keys", table).read_text(encoding="utf-8")
    above = ""
    for line in re.sub(r"\n( {8}| {2}(?=\S))", " ", text).splitlines():
        if not line.startswith(" "):
            above = "" if line.startswith("#") else line
            continue
        words, _, note = line.partition(" | ")
        for part in words.split(";"):
            who, _, keys = part.partition(":")
            yield _Line(above, note, tuple(name.strip() for name in who.split(",")), keys.split())


def _placed(table: str) -> Iterator[PeerKey]:
    for above, own, who, keys in _lines(table):
        settings, _, note = above.partition(" | ")
        names, _, said = settings.partition(" = ")
        ours = tuple(name for name in names.split() if name != "-")
        values = None
        if said:
            pairs = (pair.split(">") for pair in said.split() if said != "same")
            values = {theirs: _value(here) for theirs, here in pairs}
        yield from (PeerKey(key, who, ours, own or note, values) for key in keys)


def _value(word: str) -> Any:
    return int(word) if word.isdecimal() else {"true": True, "false": False}.get(word, word)


def _apart(table: str, effect: str) -> tuple[ApartKey, ...]:
    return tuple(ApartKey(key, line.who, line.above, effect) for line in _lines(table) for key in line.keys)


def _alone(table: str) -> Iterator[AloneKey]:
    for above, own, who, keys in _lines(table):
        ours, _, note = above.partition(" | ")
        for word in keys:
            names, equals, default = word.partition("=")
            yield AloneKey(
                ours, who, () if names == "-" else tuple(names.split("/")), default if equals else None, own or note
            )


PEER_KEYS = tuple(_placed("placed.txt"))
ALONE = tuple(_alone("alone.txt"))
PEER_WORDS = {row.key: row for row in _placed("words.txt")}
_APART = _apart("replaced.txt", "replaced") + _apart("missing.txt", "computed") + _apart("apart.txt", "idle")
PEER_METRICS = tuple(
    PeerMetric(key, line.who, tuple(line.above.split()), line.note)
    for line in _lines("metrics.txt")
    for key in line.keys
)

_BY_KEY: dict[str, list[PeerKey]] = {}
for _entry in PEER_KEYS:
    _BY_KEY.setdefault(_entry.key, []).append(_entry)


def peer_entry(path: str, who: str | None = None) -> PeerKey | None:
    """Return the row of a path's longest ending that is a key of ``who`` (None: of any trainer)."""
    parts = path.lstrip("+-").replace("-", "_").split(".")
    endings = (".".join(parts[start:]) for start in range(len(parts)))
    rows = (row for ending in endings for row in _BY_KEY.get(ending, ()))
    return next((row for row in rows if who is None or who in row.who), None)


def peer_hint(path: str) -> str | None:
    """Return what a peer's key is called here, for a path that ends with it; None if no trainer has it."""
    entry = peer_entry(path) or PEER_WORDS.get(path)
    return entry.hint() if entry else None


def apart_row(key: str, who: str | None = None) -> ApartKey | None:
    """Return the row whose pattern says most about a key: one without a ``*`` in front, then the longest."""
    rows = [row for row in _APART if (who is None or who in row.who) and fnmatchcase(key, row.pattern)]
    return max(rows, key=lambda row: (not row.pattern.startswith("*"), len(row.pattern)), default=None)


def in_section_apart(key: str, who: str) -> bool:
    """Return whether a whole section is apart, such as ``critic.*``: no key in it means what it means elsewhere."""
    row = apart_row(key, who)
    return row is not None and row.pattern.endswith(".*") and not row.pattern.startswith("*")


def apart_hint(path: str) -> str | None:
    """Return a sentence on a key that other trainers have and dapo has not; None if no trainer is known to have it."""
    row = apart_row(path.lstrip("+-").replace("-", "_"))
    return None if row is None else f"no such key here (of {', '.join(row.who)}): {row.reason}"


def peer_metric(key: str) -> PeerMetric | None:
    """Return a metric's entry, found with or without the ``train/`` in front that NeMo RL and TRL log it under."""
    names = {entry.key: entry for entry in PEER_METRICS}
    return names.get(key) or names.get(key.removeprefix("train/"))
