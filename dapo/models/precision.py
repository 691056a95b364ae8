"""Precision of matrix products: exact where something is compared, and how fast a processor is in each.

Processors differ: with AMX a product of bfloat16 numbers takes a third of float32's time, and without instructions for
them (AVX2) seven times as much. So :func:`product_rate` measures where the question is asked.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

PRECISIONS = {"float32": ("float32", "highest"), "medium": ("float32", "medium"), "bfloat16": ("bfloat16", "highest")}
"""``model.dtype`` and ``model.matmul_precision`` of each."""


@contextmanager
def exact_matmuls() -> Iterator[None]:
    """Inside, float32 matrix products are float32, whatever ``model.matmul_precision`` says.

    On CUDA its ``high`` and ``medium`` are both TF32, which keeps 10 bits: two ways to compute the same thing then
    differ by some 0.002 to 0.004 nats, and a probe could not tell rounding from a mistake.
    """
    precision = torch.get_float32_matmul_precision()
    if precision == "highest":
        yield
        return
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)


def float32_product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply two matrices, or two batches of them, in low precision, with the sums left in float32.

    On CUDA the product of two bfloat16 numbers is exact in float32, and so is nothing rounded but the sums; elsewhere
    both are widened first, which gives the same.
    """
    if a.is_cuda:
        product = torch.mm if a.dim() == 2 else torch.bmm
        return product(a, b, out_dtype=torch.float32)  # type: ignore[call-overload, no-any-return]
    return a.float() @ b.float()


def product_seconds(make: Callable[[], tuple[Tensor, Tensor]], spend: float = 0.1) -> float:
    """Return the least processor seconds of one product of two matrices (or batches of them), among three tries.

    Args:
        make: returns the two factors.
        spend: seconds of a try; a product that takes longer is made once in each.
    """
    left, right = make()
    product = torch.bmm if left.dim() == 3 else torch.mm
    product(left, right)
    best = float("inf")
    for _ in range(3):
        start, times = time.process_time(), 0
        while (spent := time.process_time() - start) < spend:
            product(left, right)
            times += 1
        best = min(best, spent / times)
    return best


def product_rate(name: str, inner: int, outer: int, rows: int = 128) -> float:
    """Measure operations per second of ``[rows, inner] x [inner, outer]`` on one thread, in some 0.2 seconds.

    Args:
        name: of ``PRECISIONS``.
        inner: numbers that are added up.
        outer: columns of the second factor, which is laid out as a linear layer's weight.
        rows: of the first factor.
    """
    dtype, products = PRECISIONS[name]
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()

    def factors() -> tuple[Tensor, Tensor]:
        kind = getattr(torch, dtype)
        return torch.ones(rows, inner, dtype=kind), torch.ones(outer, inner, dtype=kind).t()

    try:
        torch.set_num_threads(1)  # so that seconds of the processor are those of the product
        torch.set_float32_matmul_precision(products)
        return 2.0 * rows * inner * outer / product_seconds(factors, 0.05)
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.set_num_threads(threads)


def precision_of(dtype: str, matmul_precision: str) -> str:
    """Return the name in ``PRECISIONS`` of a recipe's ``model.dtype`` and ``model.matmul_precision``."""
    return "medium" if (dtype, matmul_precision) == PRECISIONS["medium"] else dtype
