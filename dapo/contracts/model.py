"""What is to be known of a model by those who do not hold its weights. A description travels; tensors stay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A causal language model without its weights. Picklable; equal for the loaded model and for its folder alone."""

    name: str  # folder or hub name that it is loaded from
    dtype: str  # of the learner's parameters: "float32", "bfloat16"
    vocabulary: int  # rows of the embedding: token ids lie below
    positions: int | None  # longest sequence that its configuration allows; None: it names none
    exact_positions: int | None  # longest one whose rotations do not depend on its neighbours; None: any
    stop_token_ids: tuple[int, ...]  # every end-of-sequence id of config, generation config and tokenizer
    pad_token_id: int
    shapes: Mapping[str, tuple[int, ...]]  # of each parameter by its name in a checkpoint; a tied one once
    layers: int
    hidden: int  # width of the residual stream
    ffn: int  # width of the feed-forward layers
    kv_heads: int
    head_size: int
    fingerprint: Mapping[str, Any]  # JSON-able identity of the architecture: what a checkpoint must match
    config: Mapping[str, Any]  # its configuration, as config.json has it

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def key_values(self) -> int:
        """Numbers in the key-value cache per token and layer."""
        return 2 * self.kv_heads * self.head_size
