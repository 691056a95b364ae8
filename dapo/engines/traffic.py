"""Transfers between an engine and its device, with as little waiting as possible.

On CUDA a plain copy of host memory to the device waits until the device has done all earlier work, and so
does every read. So everything is sent from pinned memory, without a wait, and a step reads once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def send(array: NDArray[Any], device: torch.device) -> Tensor:
    """``array`` on the device; the host goes on at once."""
    tensor = torch.from_numpy(array)
    if device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def read(tokens: Tensor, logprobs: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Token ids [rows] and log-probabilities [rows] on the host; the one time that a decode step waits.

    Both travel as one float64 tensor, which holds either exactly.
    """
    if tokens.device.type == "cpu":
        return tokens.numpy(), logprobs.numpy()
    return unpacked(packed(tokens, logprobs).cpu())


def as_bytes(tensor: Tensor) -> NDArray[np.uint8]:
    """Return a tensor [..., n] of a CPU as its bytes [..., n x size], in any type that numpy lacks too."""
    return tensor.contiguous().view(torch.uint8).numpy().copy()


def of_bytes(array: NDArray[np.uint8], dtype: torch.dtype) -> Tensor:
    """Return the tensor of type ``dtype`` that ``as_bytes`` was given."""
    return torch.from_numpy(array.copy()).view(dtype)


def packed(tokens: Tensor, logprobs: Tensor) -> Tensor:
    """[2, rows] float64."""
    return torch.stack([tokens.double(), logprobs.double()])


def unpacked(both: Tensor) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Return the arrays that ``packed`` joined, bit for bit."""
    tokens, logprobs = both.numpy()
    return tokens.astype(np.int64), logprobs.astype(np.float32)
