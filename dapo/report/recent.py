"""A small memory of values by key, of which the newest few are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable
from typing import TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(OrderedDict[Key, Value]):
    """The newest few values by key; threads may share it."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most, self._lock = most, threading.Lock()

    def keep(self, key: Key, value: Value) -> Value:
        """Remember a value as the newest, and forget the oldest ones."""
        with self._lock:
            self[key] = value
            self.move_to_end(key)
            while len(self) > self._most:
                self.popitem(last=False)
        return value
