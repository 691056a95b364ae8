"""A number for a tensor's values: learner and engine tell with it whether they hold the same weights.

Only numbers travel, so the two may be in different processes, and a difference names its tensor.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

# By bytes of one element: the integers that its bits are read as. Floating-point sums would depend on their order.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_CHUNK = 2**22  # elements at once: 32 MiB of int64 words, and as much for their weights


@torch.no_grad()
def checksum(tensor: Tensor, dtype: torch.dtype | None = None, first: int = 0) -> int:
    """Signed 64-bit checksum of ``tensor`` [any shape], rounded to ``dtype`` first (None: as it is).

    ``first``: the place of its first element, where it is a part of a larger tensor. The sums of parts that follow each
    other add up, modulo 2^64, to the sum of the whole (``together``).

    The sum over all elements i, row by row, of bits(i) x (2 i + 1), modulo 2^64. One changed element always changes
    it, because the factors are odd; so does, but for a chance of about 2^-64, anything else. Integers wrap around, so
    neither the order of the sum nor the device matters. Shapes are not part of it.
    """
    flat = tensor.detach().reshape(-1)
    total = 0
    for start in range(0, flat.numel(), _CHUNK):
        part = flat[start : start + _CHUNK].to(dtype or flat.dtype).contiguous()
        part = (
            part + 0 if part.is_floating_point() else part
        )  # -0.0 as 0.0: a kernel that is read through loses the sign
        words = part.view(_WORDS[part.element_size()]).to(torch.int64)
        weights = torch.arange(first + start, first + start + len(words), device=part.device).mul_(2).add_(1)
        total += int(words.mul_(weights).sum())
    return together([total])


def together(sums: Iterable[int]) -> int:
    """The checksum of a tensor from those of its parts."""
    return (sum(sums) + 2**63) % 2**64 - 2**63


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bits; a nan equals itself."""
    word = _WORDS[a.element_size()]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(word), b.view(word))


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` -> ``bfloat16``."""
    return str(dtype).removeprefix("torch.")
