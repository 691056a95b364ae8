"""A key of another trainer, and its place here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        """The value that our first setting has for one of theirs; None where a single key does not tell it."""
        if self.values is None or not self.ours:
            return None
        if not self.values:
            return (value,)
        word = str(value).lower()
        return (self.values[word],) if word in self.values else None

    def hint(self) -> str:
        """One sentence: "`epsilon_high` is called `algorithm.clip.high` here (ms-swift, TRL)", and the note."""
        who = ", ".join(self.who)
        names = " and ".join(f"`{o}`" for o in self.ours)
        first = f"`{self.key}` is called {names} here ({who})" if self.ours else f"`{self.key}` ({who}) has no key here"
        return f"{first}: {self.note}" if self.note else first


SAME: dict[str, Any] = {}
"""As ``values``: they are the same there."""


def peer_keys(
    keys: str, who: str | tuple[str, ...], ours: str, note: str = "", values: Mapping[str, Any] | None = None
) -> list[PeerKey]:
    """Rows of keys that mean the same; ``keys`` and ``ours`` are divided by blanks."""
    people = (who,) if isinstance(who, str) else who
    return [PeerKey(key, people, tuple(ours.split()), note, values) for key in keys.split()]
