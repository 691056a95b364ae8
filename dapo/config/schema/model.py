"""The recipe's section ``model``: what is trained."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Above, Section


class Lora(Section):
    rank: Annotated[int, Field(gt=0, le=4096)] | None = None
    """Train an adapter of this rank (LoRA, arXiv 2106.09685; extra ``lora``) and freeze the model. None: every
    parameter is trained. The other settings have PEFT's names."""
    lora_alpha: Above | None = None
    """The adapter's product is multiplied by lora_alpha / rank; None: the rank, that is by 1."""
    target_modules: Literal["all-linear"] | list[str] = "all-linear"
    """Linear layers that get an adapter, by the end of their name (``[q_proj, v_proj]``); ``all-linear``: every one but
    the output head."""
    use_rslora: bool = False
    """Multiply by lora_alpha / sqrt(rank) instead (rsLoRA, arXiv 2312.03732)."""
    modules_to_save: list[str] = Field(default_factory=list)
    """Further modules to train whole, by the end of their name."""
    lora_dropout: float = 0.0
    """0 and nothing else: the sampler has no dropout, and the ratio would take it for a change of the policy."""


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
    activation_checkpointing: Literal["none", "full", "selective"] = "none"
    """Recompute activations in the backward pass. ``full``: least memory, about a third more time. ``selective``: keeps
    the results of matrix products and attention, and recomputes the rest."""
    lora: Lora = Lora()
    """An adapter instead of the whole model."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """``torch.set_float32_matmul_precision``. On AMD CPUs ``medium`` is twice as fast at the same accuracy."""
