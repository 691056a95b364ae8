"""Description of a model for code that holds no weights. The description can be pickled; tensors stay."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.errors import CheckpointError


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """A causal language model without its weights. Picklable; equal for the loaded model and for its folder alone.

    Example: ``dapo.models.facts.read_facts`` reads those of a model's folder, ``facts_of`` those of a loaded model.
    """

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
    linear: tuple[str, ...] = ()  # names of the linear layers that can get an adapter, the output head not among them

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        return sum(map(math.prod, self.shapes.values()))

    @property
    def has_experts(self) -> bool:
        """Return whether it is a mixture of experts."""
        return any(".experts." in name for name in self.shapes)

    @property
    def key_values(self) -> int:
        """Numbers in the key-value cache per token and layer."""
        return 2 * self.kv_heads * self.head_size

    @property
    def queries(self) -> int:
        """Width of attention: heads x head size."""
        heads = self.fingerprint.get("num_attention_heads") or max(1, self.hidden // max(self.head_size, 1))
        return int(heads) * self.head_size

    @property
    def experts(self) -> tuple[int, int]:
        """Return the experts of a layer, and how many of them compute a token; (0, 0) for a dense model."""
        names = ("num_experts", "num_local_experts", "n_routed_experts")
        count = next((self.config[name] for name in names if self.config.get(name)), 0)
        chosen = self.config.get("num_experts_per_tok") or 0
        return (count, chosen) if count and chosen else (0, 0)

    @property
    def expert_parameters(self) -> int:
        """How many numbers the weights of all experts are."""
        if not self.experts[0]:
            return 0
        return sum(math.prod(shape) for name, shape in self.shapes.items() if ".experts." in name)

    @property
    def active(self) -> int:
        """How many numbers of the weights compute a token: of the experts those of its share."""
        count, chosen = self.experts
        return self.parameters - (self.expert_parameters * (count - chosen) // count if count else 0)


def check_fingerprint(saved: Mapping[str, Any], found: Mapping[str, Any], folder: Path) -> None:
    """Compare the model that a checkpoint was made of with the loaded one, both as JSON has them.

    Raises:
        CheckpointError: they differ; each property is named with both values.
    """
    found = json.loads(json.dumps(dict(found)))  # tuples and numbers compare as they were written
    keys = sorted(saved.keys() | found.keys())
    differing = [key for key in keys if saved.get(key) != found.get(key)]
    if differing:
        named = "; ".join(f"{key} {saved.get(key)!r} there, {found.get(key)!r} here" for key in differing)
        raise CheckpointError(
            f"the checkpoint {folder} belongs to another model: {named}. Resume with the model that the "
            "run was started with (model.path, model.dtype), or start a new run."
        )
