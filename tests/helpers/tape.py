"""A CUDA graph for a CPU: the operators that some work called, to be called again on the very same tensors.

As a graph does, it repeats what was recorded and nothing else: numbers that Python read, shapes, and addresses are
those of the recording, and what does not lie at them when it is replayed is not seen. What cannot be captured on a
card, an operator that waits for a number, cannot be recorded.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

WAITS = {"_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "unique_dim", "_unique2", "item"}
"""What cannot go on without a number from the device."""


class _Listen(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Any, Any, Any, Any]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ in WAITS:
            raise RuntimeError(f"{func} is not permitted when stream is capturing")
        made = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, made))
        return made


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _places(tree: Any) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in _tensors(tree)} - {0}


class TapeRecording:
    def __init__(self, calls: list[tuple[Any, Any, Any, Any]]) -> None:
        self.calls, self.replays = calls, 0

    def replay(self) -> None:
        assert self.calls, "it was given back"
        self.replays += 1
        for func, args, kwargs, made in self.calls:
            if not func._schema.is_mutable and _places(made) & _places((args, kwargs)):
                continue  # a view: it lies where it lay
            again = func(*args, **kwargs)
            if not func._schema.is_mutable:
                for old, new in zip(_tensors(made), _tensors(again), strict=True):
                    old.copy_(new)

    def reset(self) -> None:
        self.calls = []


class TapeRecorder:
    """A ``Recorder`` of ``dapo.engines.graphs``."""

    def __init__(self) -> None:
        self.made: list[TapeRecording] = []
        self._pool: list[TapeRecording] = []  # recordings that share memory

    def renew(self) -> None:
        self._pool = []

    def record(self, work: Any) -> TapeRecording:
        if self._pool and not any(recording.calls for recording in self._pool):
            raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED: the last graph of this pool was given back")
        with _Listen() as listening:
            work()
        self.made.append(TapeRecording(listening.calls))
        self._pool.append(self.made[-1])
        return self.made[-1]
