"""Remember in which process each episode is played."""

from __future__ import annotations

from collections import Counter
from typing import Generic, TypeVar

from dapo.types.batch import Key

H = TypeVar("H")


class Homes(Generic[H]):
    """Map episodes to the processes that play them.

    >>> homes = Homes[str](grouped=True)
    >>> homes.put(Key("train", 3, 0), "worker 1")
    >>> homes.find(Key("train", 3, 5)), homes.find(Key("train", 4, 0))
    ('worker 1', None)

    Args:
        grouped: all episodes of a group are played in one process.
    """

    def __init__(self, *, grouped: bool = False) -> None:
        self.grouped = grouped
        self._of: dict[Key, H] = {}
        self._groups: dict[tuple[str, int], set[Key]] = {}  # the episodes of each group that have a home

    def find(self, key: Key) -> H | None:
        """Return the home of an episode, or that of its group; None: it has none yet."""
        if key in self._of or not self.grouped:
            return self._of.get(key)
        return next((self._of[other] for other in self._groups.get(key[:2], ())), None)

    def put(self, key: Key, home: H) -> None:
        """Give an episode a home."""
        self._of[key] = home
        self._groups.setdefault(key[:2], set()).add(key)

    def pop(self, key: Key) -> H | None:
        """Forget an episode; return its home, None if it had none."""
        home = self._of.pop(key, None)
        if home is not None:
            group = self._groups[key[:2]]
            group.remove(key)
            if not group:
                del self._groups[key[:2]]
        return home

    def lose(self, home: H) -> None:
        """Forget all episodes of a home."""
        for key in [key for key, own in self._of.items() if own == home]:
            self.pop(key)

    def counts(self) -> Counter[H]:
        """Return how many episodes each home has."""
        return Counter(self._of.values())
