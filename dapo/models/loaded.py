"""What loading a model yields: the object that the learner and the embedded engine share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(slots=True)
class LoadedModel:
    """A Hugging Face causal language model with its tokenizer, probed and ready."""

    model: nn.Module  # transformers' *ForCausalLM, its attention routed through dapo.models.attention
    tokenizer: Any
    stop_token_ids: tuple[int, ...]  # every end-of-sequence id of config, generation config and tokenizer
    pad_token_id: int
    device: torch.device
    dtype: torch.dtype
    packed: bool  # the probe found packed rows equal to the model's own attention
    fp32_head: bool = False
    name: str = ""  # as given in the recipe
    fingerprint: dict[str, Any] = field(default_factory=dict)  # architecture, sizes: what a checkpoint must match

    def head(self, hidden: Tensor) -> Tensor:
        """Logits [tokens, vocabulary] of hidden states [tokens, width], in float32 where the recipe asks for it."""
        head = self.model.get_output_embeddings()
        if self.fp32_head and hidden.dtype != torch.float32:
            bias = None if head.bias is None else head.bias.float()
            return nn.functional.linear(hidden.float(), head.weight.float(), bias)
        return head(hidden)
