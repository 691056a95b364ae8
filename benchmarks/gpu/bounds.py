"""What a card could do at best: bytes that must move, operations that must be made. Arithmetic alone."""

from __future__ import annotations

from benchmarks.gpu.shapes import Shape


def key_value_bytes(shape: Shape, size: int = 2) -> int:
    """Bytes of one token's keys and values in all layers; ``size``: bytes of a number."""
    return 2 * shape.layers * shape.kv_heads * shape.head_size * size


def decode_matrices(shape: Shape) -> int:
    """Numbers of the matrices that a decode step multiplies by: those of the layers, and the head."""
    return shape.layers * shape.layer_matrices + shape.vocabulary * shape.hidden


def decode_bytes(shape: Shape, rows: int, tokens: float, size: int = 2) -> float:
    """Bytes that one decode step has to read: every matrix once, the head, and the keys and values of all rows.

    Args:
        shape: Of the model.
        rows: Responses that decode together.
        tokens: Mean length of a row in the cache.
        size: Bytes of a number.
    """
    return decode_matrices(shape) * size + rows * tokens * key_value_bytes(shape, size)


def decode_bound(shape: Shape, rows: int, tokens: float, bandwidth: float, size: int = 2) -> float:
    """Tokens per second of all rows at ``bandwidth`` bytes per second: no decoding is faster than its reads."""
    return rows * bandwidth / decode_bytes(shape, rows, tokens, size)


def decode_floor(shape: Shape, rows: int, tokens: float, bandwidth: float, peak: float, size: int = 2) -> float:
    """Tokens per second where products take their time, too: of many rows they take longer than reading the matrices.

    Matrices are read while they are multiplied by; keys and values are read before or behind that, by other kernels.

    Args:
        shape: Of the model.
        rows: Responses that decode together.
        tokens: Mean length of a row in the cache.
        bandwidth: Bytes per second.
        peak: Floating-point operations per second of matrix products.
        size: Bytes of a number.
    """
    matrices = max(decode_matrices(shape) * size / bandwidth, 2.0 * rows * decode_matrices(shape) / peak)
    return rows / (matrices + rows * tokens * key_value_bytes(shape, size) / bandwidth)


def forward_operations(shape: Shape, tokens: int, attended: float, predicted: int) -> float:
    """Floating-point operations of one forward pass; a multiplication and its addition are two.

    Args:
        shape: Of the model.
        tokens: Input tokens.
        attended: Mean number of keys that a query sees.
        predicted: Tokens whose logits are computed.
    """
    matrices = 2.0 * shape.layers * shape.layer_matrices * tokens
    attention = 4.0 * shape.layers * shape.hidden * tokens * attended
    return matrices + attention + 2.0 * shape.vocabulary * shape.hidden * predicted


def training_operations(shape: Shape, tokens: int, attended: float, predicted: int) -> float:
    """Forward and backward: three times the forward pass. What is computed again (checkpointing, the head in chunks)
    does not count: it is not what training needs."""
    return 3.0 * forward_operations(shape, tokens, attended, predicted)


def attended_tokens(prompt: int, response: int, group: int) -> float:
    """Mean keys of a query in packed rows: a prompt of ``prompt`` tokens once, ``group`` responses behind it.

    A response's last token is no input.
    """
    inputs = response - 1
    own = prompt * (prompt + 1) / 2
    behind = group * (inputs * prompt + inputs * (inputs + 1) / 2)
    return (own + behind) / (prompt + group * inputs)


def layers_that_fit(shape: Shape, free: float, activations: float, per_parameter: float = 20.0) -> int:
    """Layers of the shape that can be trained in ``free`` bytes.

    Args:
        shape: With all its layers.
        free: Bytes.
        activations: Bytes of activations per layer.
        per_parameter: Bytes for weights, gradients, masters and moments: 2 + 2 + 4 + 4 + 8 in bfloat16.
    """
    outside = shape.with_layers(0).parameters * per_parameter
    layer = (shape.with_layers(1).parameters - shape.with_layers(0).parameters) * per_parameter + activations
    return max(0, min(shape.layers, int((free - outside) // layer)))
