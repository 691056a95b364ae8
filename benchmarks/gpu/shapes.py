"""Sizes of published models, and models of random weights with these shapes. No file and no network is needed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes in config.json of a Qwen2 model: grouped keys and values, biases on q, k and v, gated feed-forward."""

    name: str
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    tied: bool

    @property
    def head_size(self) -> int:
        return self.hidden // self.heads

    @property
    def layer_matrices(self) -> int:
        """Numbers in the matrices of one layer."""
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_heads * self.head_size
        return attention + 3 * self.hidden * self.ffn

    @property
    def parameters(self) -> int:
        """All numbers, biases and norms included."""
        biases = self.hidden + 2 * self.kv_heads * self.head_size
        layer = self.layer_matrices + biases + 2 * self.hidden
        return self.layers * layer + self.hidden + (1 if self.tied else 2) * self.vocabulary * self.hidden

    def with_layers(self, layers: int) -> Shape:
        """The same width with another depth."""
        return replace(self, name=f"{self.name}, {layers} of {self.layers} layers", layers=layers)


# config.json of Qwen/Qwen2.5-0.5B, -1.5B and -7B as published on the hub.
PUBLISHED = {
    "0.5b": Shape("Qwen2.5-0.5B", 896, 24, 14, 2, 4864, 151936, tied=True),
    "1.5b": Shape("Qwen2.5-1.5B", 1536, 28, 12, 2, 8960, 151936, tied=True),
    "7b": Shape("Qwen2.5-7B", 3584, 28, 28, 4, 18944, 152064, tied=False),
}
REHEARSED = Shape("a tiny shape", 128, 2, 4, 2, 192, 512, tied=True)


def config_of(shape: Shape, **more: Any) -> Any:
    """transformers' configuration of the shape."""
    from transformers import Qwen2Config

    settings = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "intermediate_size": shape.ffn,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": shape.tied,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
    }
    return Qwen2Config(**(settings | more))


def make_loaded(shape: Shape, device: str, dtype: str, *, checkpointing: bool = False, seed: int = 0) -> Any:
    """A ``LoadedModel`` of random weights made on ``device``, probed as a loaded one is.

    Raises:
        ModelError: packed rows do not give the model's own log-probabilities here.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from dapo.errors import ModelError
    from dapo.models import attention
    from dapo.models.load import _quiet, fingerprint_of
    from dapo.models.loaded import LoadedModel
    from dapo.models.probe import probe

    torch.manual_seed(seed)
    kind = getattr(torch, dtype)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config_of(shape), dtype=kind).eval()
    model.generation_config.eos_token_id = None
    attention.register()
    loaded = LoadedModel(
        model=model, tokenizer=None, stop_token_ids=(1,), pad_token_id=0, device=next(model.parameters()).device,
        dtype=kind, packed=True, name=shape.name, fingerprint=fingerprint_of(model, kind),
    )  # fmt: skip
    if (reason := probe(loaded)) is not None:
        raise ModelError(f"{shape.name} {reason}")
    model.set_attn_implementation(attention.NAME)
    _quiet(model, "full" if checkpointing else "none")
    return loaded
