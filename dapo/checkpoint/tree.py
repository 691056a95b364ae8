"""A tree of plain values and numpy arrays as two files: readable JSON, and one archive for the arrays.

A state of carried groups holds thousands of small arrays. Those of a dtype are laid end to end in one member of the
archive, since a member each would take seconds to write and read.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from dapo.errors import CheckpointError

_ARRAY = "__array__"
Flat = dict[str, list[np.ndarray]]


def save_tree(tree: Any, folder: Path, name: str) -> None:
    """Write ``name.json`` and, where it holds arrays, ``name.npz``. Floats survive exactly, nan included."""
    arrays: Flat = {}
    text = json.dumps(_take_arrays(tree, arrays, {}), ensure_ascii=False)
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    if arrays:
        np.savez(folder / f"{name}.npz", **{dtype: np.concatenate(parts) for dtype, parts in arrays.items()})  # type: ignore[arg-type]


def load_tree(folder: Path, name: str) -> Any:
    """What ``save_tree`` wrote. Nothing is unpickled.

    Raises:
        CheckpointError: an earlier version wrote it, in another layout.
    """
    tree = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    path = folder / f"{name}.npz"
    if not path.exists():
        return tree
    with np.load(path, allow_pickle=False) as archive:
        return _put_arrays(tree, {key: archive[key] for key in archive.files})


def _take_arrays(tree: Any, arrays: Flat, used: dict[str, int]) -> Any:
    """The tree with (dtype, first element, shape) in place of each array; ``used``: elements taken by dtype."""
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
            if isinstance(tree[_ARRAY], str):
                raise CheckpointError(
                    "the state was saved by an earlier version of dapo, in another layout. Go on with that version, or "
                    "start a new run from its exported model"
                )
            dtype, start, shape = tree[_ARRAY]
            return arrays[dtype][start : start + math.prod(shape)].reshape(shape).copy()
        return {key: _put_arrays(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_put_arrays(value, arrays) for value in tree]
    return tree
