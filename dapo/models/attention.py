"""One attention function, registered with transformers, serves packed training and slot-cache decoding.

A forward call passes ``attention_context=`` as a keyword; transformers hands it through to this function. The
context knows how the rows in the batch are laid out and attends accordingly; unmodified models do the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

NAME = "dapo"


class AttentionContext(Protocol):
    """How the tokens of this forward call relate: which keys each query may see, and where keys are kept."""

    def attend(
        self, module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *, scaling: float, **options: Any
    ) -> Tensor:
        """query [1 or B, heads, T, d], key and value [.., kv heads, T, d] -> output [.., T, heads, d]."""


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    *,
    attention_context: AttentionContext,
    **options: Any,
) -> tuple[Tensor, None]:
    """Compute attention: the function that transformers calls in place of its own."""
    return attention_context.attend(module, query, key, value, scaling=scaling, **options), None


def causal_attention(query: Tensor, key: Tensor, value: Tensor, scaling: float, mask: Tensor | None = None) -> Tensor:
    """torch's attention [.., heads, T, d], causal or by ``mask`` (True: visible); keys may have fewer heads.

    CUDA's kernels that keep no scores group heads in low precision only: a float32 model's are repeated.
    """
    if query.device.type != "cpu" and query.dtype == torch.float32:
        key, value = (x.repeat_interleave(query.shape[-3] // x.shape[-3], dim=-3) for x in (key, value))
    grouped = query.shape[-3] != key.shape[-3]
    return nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
    )


def register() -> None:
    """Make ``attn_implementation="dapo"`` known to transformers. Idempotent.

    Masks are the context's business. To an attention without a kind of mask transformers gives None at once; for one
    with a kind of its own it would first ask the device whether the positions are those of packed rows.
    """
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attention)


@contextmanager
def own_attention(model: Any) -> Iterator[None]:
    """Inside, the model runs its own attention (its ``generate`` works, padding masks count), whatever it is set to."""
    current = model.config._attn_implementation
    if current != NAME:
        yield
        return
    model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
    try:
        yield
    finally:
        model.set_attn_implementation(current)
