"""A number for a tensor's values: learner and engine tell with it whether they hold the same weights.

Only numbers travel, so the two may be in different processes, and a difference names its tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

# By bytes of one element: the integers that its bits are read as. Floating-point sums would depend on their order.
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
# Elements at once. On a CPU 2 MiB of int64 words, which stay in its cache; elsewhere a few large operations are quick.
_CHUNK_CPU, _CHUNK = 2**18, 2**22
_ROW, _MANY = 2**9, 2**15  # of them in a row, and from which on rows are quicker than products


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
    chunk = _CHUNK_CPU if flat.device.type == "cpu" else _CHUNK
    total = 0
    for start in range(0, flat.numel(), chunk):
        part = flat[start : start + chunk].to(dtype or flat.dtype).contiguous()
        if part.is_floating_point():
            part = part + 0  # -0.0 as 0.0: a kernel that is read through loses the sign
        words = part.view(_WORDS[part.element_size()]).to(torch.int64)
        whole = len(words) // _ROW * _ROW if len(words) >= _MANY else 0
        total += _by_rows(words[:whole].view(-1, _ROW), first + start) + _by_words(words[whole:], first + start + whole)
    return together([total])


def _by_words(words: Tensor, first: int) -> int:
    """Sum of word x (2 place + 1) over ``words`` [n], the first of which is at place ``first``; modulo 2^64."""
    factors = torch.arange(2 * first + 1, 2 * (first + len(words)) + 1, 2, device=words.device)
    return int((words * factors).sum())


def _by_rows(words: Tensor, first: int) -> int:
    """Compute the same of ``words`` [rows, width] from the sums of rows and of columns. A word's place is where its row
    begins, plus its place in the row, so each word is only added, twice. Products would need as many factors as there
    are words."""
    rows, width = words.shape
    if not rows:
        return 0
    begins = torch.arange(rows, device=words.device).mul_(2 * width).add_(2 * first + 1)
    within = torch.arange(width, device=words.device)
    return int((words.sum(1) * begins).sum()) + 2 * int((words.sum(0) * within).sum())


def once_each(names: Iterable[str], key: Callable[[str], Hashable], make: Callable[[str], T]) -> dict[str, T]:
    """``make`` of each name; of names with one key, such as those of a tied tensor, only once."""
    made: dict[Hashable, T] = {}
    found: dict[str, T] = {}
    for name in names:
        if (same := key(name)) not in made:
            made[same] = make(name)
        found[name] = made[same]
    return found


def together(sums: Iterable[int]) -> int:
    """Return the checksum of a tensor from those of its parts."""
    return (sum(sums) + 2**63) % 2**64 - 2**63


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors hold the same bits; a nan equals itself."""
    word = _WORDS[a.element_size()]
    return a.shape == b.shape and a.dtype == b.dtype and torch.equal(a.view(word), b.view(word))


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.bfloat16`` -> ``bfloat16``."""
    return str(dtype).removeprefix("torch.")
