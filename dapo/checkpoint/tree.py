"""A tree of plain values and numpy arrays as two files: readable JSON, and one archive for the arrays.

A state of carried groups holds thousands of small arrays. Those of a dtype are laid end to end in one member of the
archive, since a member each would take seconds to write and read.
"""

from __future__ import annotations

import json
import math
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from dapo.errors import CheckpointError, DapoError

FORMAT = 2
"""Number of the layout of a run's state."""
STATE = "state"
_ARRAY = "__array__"
_MISSHAPEN = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""What values of another shape than expected raise, wherever they are used."""
Flat = dict[str, list[np.ndarray]]


def save_state(tree: dict[str, Any], folder: Path) -> None:
    """Write a run's state, with the number of its format."""
    save_tree({"format": FORMAT, **tree}, folder, STATE)


def load_state(folder: Path) -> dict[str, Any]:
    """Return the state that ``save_state`` wrote.

    Raises:
        CheckpointError: it is damaged, or of another format.
        FileNotFoundError: it is not there, perhaps since a running process removed the checkpoint.
    """
    tree = load_tree(folder, STATE)
    if not isinstance(tree, dict):
        raise CheckpointError(f"{folder / STATE}.json holds {type(tree).__name__}, expected the state of a run")
    if tree.get("format") != FORMAT:
        raise CheckpointError(
            f"checkpoint {folder} has format {tree.get('format')!r}; this version of dapo reads format {FORMAT}. Go on "
            "with the version that wrote it, or start a new run from its exported model"
        )
    return tree


@contextmanager
def as_damage(folder: Path, what: str = f"{STATE}.json") -> Iterator[None]:
    """Whatever goes wrong while a part of a checkpoint is taken over, as a CheckpointError that names the file."""
    try:
        yield
    except _MISSHAPEN as error:
        if isinstance(error, DapoError):
            raise
        raise CheckpointError(
            f"checkpoint {folder} is damaged: {what} does not hold what this version of dapo writes "
            f"({type(error).__name__}: {str(error)[:200]}). To go on from the one before, delete this folder"
        ) from error


def save_tree(tree: Any, folder: Path, name: str) -> None:
    """Write ``name.json`` and, where it holds arrays, ``name.npz``. Floats survive exactly, nan included."""
    arrays: Flat = {}
    text = json.dumps(_take_arrays(tree, arrays, {}), ensure_ascii=False)
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    if arrays:
        np.savez(folder / f"{name}.npz", **{dtype: np.concatenate(parts) for dtype, parts in arrays.items()})  # type: ignore[arg-type]


def load_tree(folder: Path, name: str) -> Any:
    """Return the tree that ``save_tree`` wrote. Nothing is unpickled.

    Raises:
        CheckpointError: a file cannot be read.
        FileNotFoundError: there is no ``name.json``.
    """
    path = folder / f"{name}.json"
    arrays = folder / f"{name}.npz"
    with _readable(folder, path):
        tree = json.loads(path.read_text(encoding="utf-8"))
    found: dict[str, np.ndarray] = {}
    with _readable(folder, arrays):
        if arrays.exists():
            with np.load(arrays, allow_pickle=False) as archive:
                found = {key: archive[key] for key in archive.files}
    with as_damage(folder, f"{path.name} or {arrays.name}"):
        return _put_arrays(tree, found)


@contextmanager
def _readable(folder: Path, path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except (*_MISSHAPEN, OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise CheckpointError(
            f"checkpoint {folder} is damaged: {path.name} cannot be read ({error}). To go on from the one before, "
            "delete this folder"
        ) from error


def _take_arrays(tree: Any, arrays: Flat, used: dict[str, int]) -> Any:
    """Return the tree with (dtype, first element, shape) in place of each array; ``used``: elements taken by dtype."""
    if isinstance(tree, np.ndarray):
        dtype = tree.dtype.str.strip("<>|=")
        start = used.get(dtype, 0)
        arrays.setdefault(dtype, []).append(np.ascontiguousarray(tree, tree.dtype.newbyteorder("=")).ravel())
        used[dtype] = start + tree.size
        return {_ARRAY: [dtype, start, list(tree.shape)]}
    if isinstance(tree, dict):
        if _ARRAY in tree:
            raise ValueError(f"a saved tree may not hold the key {_ARRAY!r}: got {sorted(tree)}")
        return {str(key): _take_arrays(value, arrays, used) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_take_arrays(value, arrays, used) for value in tree]
    if isinstance(tree, np.generic):
        return tree.item()
    return tree


def _put_arrays(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {_ARRAY}:
            dtype, start, shape = tree[_ARRAY]
            return arrays[dtype][start : start + math.prod(shape)].reshape(shape).copy()
        return {key: _put_arrays(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_put_arrays(value, arrays) for value in tree]
    return tree
