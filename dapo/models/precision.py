"""float32 matrix products as the recipe asks for them, and exact where something is compared."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


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


def float32_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Multiply two matrices, or two batches of them, in low precision, with the sums left in float32.

    On CUDA the product of two bfloat16 numbers is exact in float32, and so is nothing rounded but the sums; elsewhere
    both are widened first, which gives the same.
    """
    if a.is_cuda:
        product = torch.mm if a.dim() == 2 else torch.bmm
        return product(a, b, out_dtype=torch.float32)  # type: ignore[call-overload, no-any-return]
    return a.float() @ b.float()
