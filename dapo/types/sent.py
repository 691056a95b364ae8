"""Dataclasses that travel between processes by the thousand."""

from __future__ import annotations

from typing import Any


class SentByValue:
    """Base of frozen dataclasses with slots: pickled as a call with their values.

    By default Python asks such a class for its fields, in Python, for each object at both ends.

    >>> import pickle
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True, slots=True)
    ... class Point(SentByValue):
    ...     x: int
    ...     y: int = 0
    >>> Point(1, 2).__reduce__()[1]
    (1, 2)
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        kind = type(self)
        names: tuple[str, ...] = kind.__slots__
        return kind, tuple([getattr(self, name) for name in names])
