"""Bytes that a forward pass keeps for its backward pass, from a model's sizes alone. No torch is imported here.

Counted from transformers' Llama-like layers (norm, grouped attention, gated feed-forward): a test compares each term
with the tensors that autograd really saves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LayerSizes:
    """Widths of one layer."""

    hidden: int
    ffn: int
    heads: int  # of queries
    queries: int  # heads x head size
    keys: int  # key-value heads x head size
    experts: int = 0  # of a layer's feed-forward; 0: it is dense, and ``ffn`` its width
    chosen: int = 0  # experts that compute a token, each ``ffn`` wide
    shared: int = 0  # width of what computes every token beside them

    @property
    def width(self) -> int:
        """Width of the feed-forward that computes one token."""
        return self.chosen * self.ffn + self.shared if self.experts else self.ffn


def layer_bytes(layer: LayerSizes, size: int) -> int:
    """Bytes per token that one layer keeps; ``size``: bytes of a number of the model's type.

    Two norms work in float32 and keep their input, its scale, the normalised input and the output. Attention keeps
    queries, keys, values, its output and a log-sum-exp for each head. The feed-forward keeps gate, activation, up and
    their product. Each expert of a token also keeps the token on its way in and out, its weight and four indices; the
    router keeps a float32 number for each expert.
    """
    norms = 2 * (4 * layer.hidden + 2 * size * layer.hidden + 4)
    attention = size * (2 * layer.queries + 2 * layer.keys) + 4 * layer.heads
    routed = layer.chosen * (2 * size * layer.hidden + size + 4 * 8) + 4 * layer.experts
    return norms + attention + 4 * size * layer.width + routed


def activation_bytes(layer: LayerSizes, layers: int, tokens: int, size: int, *, checkpointing: bool) -> int:
    """Bytes of activations of one micro-batch when its backward pass begins.

    With checkpointing only each layer's input, and one whole layer, which is computed again. Either way the layer that
    the backward pass is in has gradients of about the size of what it kept.
    """
    own = layer_bytes(layer, size)
    kept = layers * layer.hidden * size + own if checkpointing else layers * own
    last_norm = layer.hidden * (4 + 2 * size)
    return tokens * (kept + own + last_norm)


def forward_bytes(layer: LayerSizes, tokens: int, size: int) -> int:
    """Return a bound of the bytes of a forward pass without gradients: one layer's tensors, and the last norm."""
    return tokens * (layer_bytes(layer, size) + layer.hidden * (4 + 2 * size))


def head_bytes(rows: int, vocabulary: int, size: int) -> int:
    """Return the bytes that one chunk of the output head needs. They are logits in the model's type and in float32,
    their log-softmax, and three tensors of that size while entropy or gradient is computed."""
    return rows * vocabulary * (size + 5 * 4)


_LAUNCHES = 23  # kernels of a decode step's layer, at most (Qwen3's, in one pool of the cache)
_OF_A_LAUNCH = 8 * 1024  # bytes that the driver keeps for a recorded launch: assumed, not measured
_WORKSPACE = 32 * 2**20  # of cuBLAS, for the stream that recordings are made on


def graph_bytes(layer: LayerSizes, layers: int, rows: int, longest: int, size: int, recordings: int) -> int:
    """Return the bytes that recordings of decode steps (CUDA graphs) hold: an estimate, not compared with a GPU yet.

    They share the memory of what a step computes on the way: scores and their softmax in float32 and once more in the
    model's type, or gate and up and their product, beside the residual stream, queries, keys and values. What the
    driver keeps grows with the launches.

    Args:
        layer: widths.
        layers: of the model.
        rows: responses that decode at once.
        longest: tokens of the longest.
        size: bytes of a number of the model's type.
        recordings: held at once.
    """
    attention = layer.heads * longest * (4 + 4 + size)
    stream = size * (3 * layer.hidden + layer.ffn) + 4 * (layer.queries + layer.keys) + size * 2 * layer.queries
    step = rows * (max(attention, 3 * layer.ffn * size) + stream)
    return step + recordings * layers * _LAUNCHES * _OF_A_LAUNCH + _WORKSPACE
