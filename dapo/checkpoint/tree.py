"""A tree of plain values and numpy arrays as two files: readable JSON, and one archive for the arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_ARRAY = "__array__"


def save_tree(tree: Any, folder: Path, name: str) -> None:
    """Write ``name.json`` and, where it holds arrays, ``name.npz``. Floats survive exactly, nan included."""
    arrays: dict[str, np.ndarray] = {}
    text = json.dumps(_take_arrays(tree, arrays), ensure_ascii=False)
    (folder / f"{name}.json").write_text(text, encoding="utf-8")
    if arrays:
        np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]


def load_tree(folder: Path, name: str) -> Any:
    """What ``save_tree`` wrote. Nothing is unpickled."""
    tree = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    path = folder / f"{name}.npz"
    if not path.exists():
        return tree
    with np.load(path, allow_pickle=False) as archive:
        return _put_arrays(tree, {key: archive[key] for key in archive.files})


def _take_arrays(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(tree, np.ndarray):
        key = f"a{len(arrays)}"
        arrays[key] = tree
        return {_ARRAY: key}
    if isinstance(tree, dict):
        if _ARRAY in tree:
            raise ValueError(f"a saved tree may not hold the key {_ARRAY!r}: got {sorted(tree)}")
        return {str(key): _take_arrays(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_take_arrays(value, arrays) for value in tree]
    if isinstance(tree, np.generic):
        return tree.item()
    return tree


def _put_arrays(tree: Any, arrays: dict[str, np.ndarray]) -> Any:
    if isinstance(tree, dict):
        if set(tree) == {_ARRAY}:
            return arrays[tree[_ARRAY]]
        return {key: _put_arrays(value, arrays) for key, value in tree.items()}
    if isinstance(tree, list):
        return [_put_arrays(value, arrays) for value in tree]
    return tree
