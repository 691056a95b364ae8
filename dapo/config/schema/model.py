"""The recipe's section ``model``: what is trained."""

from __future__ import annotations

from typing import Literal

from dapo.config.section import Section


class Model(Section):
    path: str
    """Local folder or hub name of a Hugging Face causal language model, or ``builtin/signed-sum``: the quickstart's
    tiny model, made on the spot by a short supervised warm-up."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Parameter type while training."""
    device: str = "auto"
    """``auto`` (CUDA when present), ``cpu`` or ``cuda``."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless you trust its author."""
    attention: Literal["auto", "packed", "padded"] = "auto"
    """``packed``: rows without padding and shared prompts. ``padded``: the model's own attention. ``auto``: packed
    when the probe at loading shows equal log-probabilities, padded otherwise."""
    fp32_head: bool = False
    """Compute logits in float32 when the model is bfloat16."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """``torch.set_float32_matmul_precision``. On AMD CPUs ``medium`` is twice as fast at the same accuracy."""
