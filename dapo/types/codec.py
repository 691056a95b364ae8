"""Turn dataclasses into plain trees for checkpoints, and back by the types of their fields: a field is written once.

A tree has dicts whose keys are text, lists, text, numbers, None and numpy arrays: what ``dapo.checkpoint.tree`` writes.
A field that a resume needs is a field of one of the dataclasses, and nothing else has to be written.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import cache
from inspect import isabstract
from types import NoneType, UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

T = TypeVar("T")
Reader = Callable[[Any], Any]

NOT_SAVED = {"saved": False}
"""Metadata of a field that trees leave out: a setting, or what is computed anew."""
_LEAVES = (NoneType, str, bool, int, float, np.ndarray)


def to_tree(value: Any) -> Any:
    """Return the tree of a dataclass, or of a dict or sequence of them.

    Later changes of ``value`` do not reach the tree, except those in an array: it is the same one.
    """
    kind: Any = type(value)
    if kind in _LEAVES:
        return value
    if hasattr(kind, "__dataclass_fields__"):
        return {name: to_tree(getattr(value, name)) for name in _readers(kind)}
    if isinstance(value, Mapping):
        return {key: to_tree(each) for key, each in value.items()}
    if isinstance(value, list | tuple | deque):
        return [to_tree(each) for each in value]
    return value.value if isinstance(value, Enum) else value


def from_tree(kind: type[T], tree: Any) -> T:
    """Return the value of type ``kind`` that ``to_tree`` made ``tree`` of. A field that is missing gets its default.

    Raises:
        ValueError: ``tree`` is of another type. The text names the fields on the way to the place, from the outermost.
        TypeError: a field that has no default is missing. The text names it.
    """
    asked: Any = kind
    value: T = _reader(asked)(tree)
    return value


def fill(target: Any, tree: Any) -> None:
    """Set the saved fields of the dataclass ``target`` to those of ``tree``. A field that is missing stays as it is.

    Raises:
        ValueError: as in ``from_tree``; nothing is set then.
    """
    for name, value in _values(type(target), tree).items():
        setattr(target, name, value)


@cache
def _readers(kind: Any) -> dict[str, Reader]:
    """Return what reads each saved field of a dataclass, by the field's name."""
    types = get_type_hints(kind)
    return {one.name: _reader(types[one.name]) for one in fields(kind) if one.init and one.metadata != NOT_SAVED}


def _values(kind: Any, tree: Any) -> dict[str, Any]:
    """Return the values of a dataclass's fields, by name."""
    readers, values = _readers(kind), {}
    if unknown := _checked(dict, tree).keys() - readers.keys():
        raise ValueError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    for name, value in tree.items():
        try:
            values[name] = readers[name](value)
        except ValueError as error:
            raise ValueError(f"{kind.__name__}.{name}: {error}") from None
    return values


@cache
def _reader(kind: Any) -> Reader:
    """Return what makes a value of type ``kind`` out of its tree.

    Raises:
        TypeError: no tree is of that type.
    """
    origin: Any = get_origin(kind) or kind
    inner = get_args(kind)
    if kind is Any:
        return lambda tree: tree
    if origin is UnionType:
        return _of_one(inner)
    if hasattr(origin, "__dataclass_fields__"):
        return lambda tree: origin(**_values(origin, tree))
    if origin in _LEAVES:
        return lambda tree: _checked(int | float if kind is float else origin, tree)
    if issubclass(origin, Enum):
        return lambda tree: origin(tree)
    if issubclass(origin, Mapping):
        make, read = dict if isabstract(origin) else origin, _reader(int if origin is Counter else inner[1])
        return lambda tree: make({key: read(each) for key, each in _checked(dict, tree).items()})
    if issubclass(origin, Sequence) and inner[1:] in ((), (...,)):
        read = _reader(inner[0])
        return lambda tree: origin([read(each) for each in _checked(list, tree)])
    raise TypeError(f"no tree is of the type {kind}")


def _of_one(kinds: Sequence[Any]) -> Reader:
    """Return what reads a value of one kind, or None; arrays of any dtype are of one kind."""
    first, *others = [kind for kind in kinds if kind is not NoneType]
    if any(get_origin(kind) is not np.ndarray for kind in others):
        raise TypeError(f"a tree does not say which of {kinds} it is of")
    read = _reader(first)
    return lambda tree: None if tree is None and NoneType in kinds else read(tree)


def _checked(kind: Any, tree: Any) -> Any:
    """Return ``tree``, of which only the type is looked at."""
    if not isinstance(tree, kind):
        raise ValueError(f"found {str(tree)[:40]!r}, expected {getattr(kind, '__name__', kind)}")
    return tree
