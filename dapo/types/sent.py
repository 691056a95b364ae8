"""Dataclasses that travel between processes by the thousand."""

from __future__ import annotations

from typing import Any, ClassVar


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
    __match_args__: ClassVar[tuple[str, ...]]  # names of the fields, those of base classes first

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple([getattr(self, name) for name in self.__match_args__])
