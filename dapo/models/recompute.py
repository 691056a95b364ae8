"""Activation checkpointing: what a layer computes is not kept for the backward pass, but computed again."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

from dapo.errors import ModelError

_aten = torch.ops.aten
_KEPT = {
    _aten.mm.default,
    _aten.addmm.default,
    _aten.bmm.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops._c10d_functional.all_to_all_single.default,
}
"""What takes long: matrix products, attention, and what ranks exchange for it. Norms, activations and rotations are
cheap to make again."""
_VARIABLE_LENGTH = "torch_attn"  # namespace of the kernel behind packed rows on CUDA, known once it is imported


def recompute(model: Any, *, selective: bool) -> None:
    """Switch it on in every layer; parameters keep their names.

    Args:
        model: of transformers; it is set to training mode, in which alone it recomputes.
        selective: keep the results of matrix products and attention: more memory, hardly more time.

    Raises:
        ModelError: the architecture does not support it.
    """
    if not model.supports_gradient_checkpointing:
        raise ModelError(
            f"{type(model).__name__} does not support activation checkpointing; set model.activation_checkpointing=none"
        )
    options: dict[str, Any] = {"use_reentrant": False}
    if selective:
        options["context_fn"] = functools.partial(create_selective_checkpoint_contexts, _policy)
    # Older transformers have the second name only, newer ones deprecate it.
    enable = getattr(model, "activation_checkpointing_enable", None) or model.gradient_checkpointing_enable
    enable(options)
    model.train()


def _policy(context: Any, operation: Any, *args: Any, **options: Any) -> CheckpointPolicy:
    kept = operation in _KEPT or getattr(operation, "namespace", "") == _VARIABLE_LENGTH
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
