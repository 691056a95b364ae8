"""The same bits from the same numbers, where a device's fastest kernels do not promise that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def reserve_workspace() -> None:
    """Set the workspace that cuBLAS needs for equal results; cuBLAS reads it at first use, so call this before a model
    is loaded."""
    os.environ.setdefault(_WORKSPACE, ":4096:8")


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Inside, torch takes deterministic algorithms only, and raises RuntimeError where it has none.

    On a CPU all that is used here is deterministic anyway. On CUDA the backward pass of attention otherwise adds up the
    gradients of its queries in the order in which threads arrive.
    """
    reserve_workspace()
    enabled, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    memory: Any = torch.utils.deterministic
    fills = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)  # with warn_only the attention kernels would keep their order
    memory.fill_uninitialized_memory = False  # nothing here reads memory before it is written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(enabled, warn_only=warns)
        memory.fill_uninitialized_memory = fills
