"""Safetensors files of a checkpoint: written one tensor at a time, read by name and by rows.

A name that several files hold is one tensor, cut along its first dimension in the order of the files. Reading a file
runs no code: the format is a JSON header and the tensors' bytes.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from dapo.types.batch import SavedFile

_TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Names of the format."""


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> SavedFile:
    """Write a safetensors file and describe it by the bytes that were handed to the disk.

    Only one tensor at a time is copied to the processor's memory.

    Raises:
        OSError: the file cannot be written.
        ValueError: a tensor has a type that the format, or this table of its types, does not know.
    """
    # Wide types first, so that every tensor begins at a multiple of its item size.
    names = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header: dict[str, Any] = {}
    end = 0
    for name in names:
        tensor = tensors[name]
        if tensor.dtype not in _TYPES:
            raise ValueError(f"{name} is a tensor of {tensor.dtype}; a checkpoint holds {', '.join(_TYPES.values())}")
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _TYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps({"__metadata__": {"format": "pt"}, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    crc = 0
    with path.open("wb") as file:
        for part in (len(text).to_bytes(8, "little"), text):
            crc = zlib.crc32(part, crc)
            file.write(part)
        for name in names:
            content = tensors[name].detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
            crc = zlib.crc32(content, crc)
            file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return SavedFile(path.name, 8 + len(text) + end, crc)


class TensorFiles:
    """Tensors of open files; a context that closes them.

    Args:
        paths: of the files.

    Raises:
        OSError: a file is missing, is cut off, or is no safetensors file. The message names it.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._stack = ExitStack()
        self._parts: dict[str, list[Any]] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        """Of each tensor, whole."""
        try:
            for path in paths:
                self._open(path)
        except BaseException:
            self._stack.close()
            raise

    def rows(self, name: str, first: int, count: int) -> Tensor:
        """Return rows ``first`` to ``first + count`` of a tensor."""
        found, start = [], 0
        for file in self._parts[name]:
            part = file.get_slice(name)
            length = part.get_shape()[0]
            begin, end = max(first - start, 0), min(first + count - start, length)
            if begin < end:
                found.append(part[begin:end])
            start += length
        if not found:
            return self._parts[name][0].get_slice(name)[0:0]  # type: ignore[no-any-return]
        return found[0] if len(found) == 1 else torch.cat(found)

    def whole(self, name: str) -> Tensor:
        """Return a tensor of all its files."""
        parts = [file.get_tensor(name) for file in self._parts[name]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def __enter__(self) -> TensorFiles:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._parts.clear()
        self._stack.close()

    def _open(self, path: Path) -> None:
        try:
            file = self._stack.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 - not a mapping
                self._add(name, file)
        except OSError as error:
            raise OSError(f"{path.name}: {error.strerror or error}") from error
        except Exception as error:  # safetensors raises an error of its own, or ValueError
            raise OSError(f"{path.name} is no whole safetensors file: {error}") from error

    def _add(self, name: str, file: Any) -> None:
        shape = tuple(file.get_slice(name).get_shape())
        before = self.shapes.get(name)
        if before is not None:
            if not shape or not before or shape[1:] != before[1:]:
                raise ValueError(f"{name} of shape {list(shape)} does not continue {list(before)}")
            shape = (before[0] + shape[0], *shape[1:])
        self.shapes[name] = shape
        self._parts.setdefault(name, []).append(file)
