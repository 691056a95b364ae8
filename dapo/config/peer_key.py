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


SAME: dict[str, Any] = {}
"""As ``values``: they are the same there."""


def peer_keys(
    owners: Mapping[str, str], ours: str, note: str = "", values: Mapping[str, Any] | None = None
) -> list[PeerKey]:
    """Return a row for each key of several that mean the same.

    Args:
        owners: for each trainer its keys, divided by blanks.
        ours: our settings, divided by blanks; empty: there is none.
        note: as in ``PeerKey``.
        values: likewise.
    """
    who: dict[str, list[str]] = {}
    for owner, keys in owners.items():
        for key in keys.split():
            who.setdefault(key, []).append(owner)
    return [PeerKey(key, tuple(people), tuple(ours.split()), note, values) for key, people in who.items()]


@dataclass(frozen=True, slots=True)
class ApartKey:
    """Keys of other trainers without a place here."""

    pattern: str  # of whole keys, dots included
    who: tuple[str, ...]
    reason: str


def apart_keys(reason: str, owners: Mapping[str, str]) -> list[ApartKey]:
    """Return a row for each pattern of several with the same reason; ``owners``: as in ``peer_keys``."""
    who: dict[str, list[str]] = {}
    for owner, patterns in owners.items():
        for pattern in patterns.split():
            who.setdefault(pattern, []).append(owner)
    return [ApartKey(pattern, tuple(people), reason) for pattern, people in who.items()]
