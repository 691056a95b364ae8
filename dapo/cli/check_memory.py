"""What a run needs of its device, estimated from the model's configuration alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dapo.config import Recipe
from dapo.errors import ModelError, of_the_machine

_GIB = 1024**3
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a model that its memory depends on."""

    parameters: int
    layers: int
    hidden: int
    ffn: int
    key_values: int  # numbers in the key-value cache per token and layer
    vocabulary: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Estimated bytes on the training device. Activations are a rule of thumb, the rest is arithmetic."""

    weights: int
    gradients: int
    optimiser: int
    activations: int
    engine: int  # weights of the engine's own, where it does not share the learner's
    cache: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.optimiser + self.activations + self.engine + self.cache


def load_tokenizer_and_shape(recipe: Recipe) -> tuple[Any, Shape]:
    """The model's tokenizer and sizes, without its weights.

    Raises:
        ModelError: neither a folder nor a hub name that can be reached.
    """
    from dapo.models.builtin import is_builtin
    from dapo.models.load import quiet_transformers
    from dapo.models.tiny import make_tiny_model
    from dapo.run.parts import check_model_path, make_tokenizer

    path = recipe.model.path
    check_model_path(path)
    tokenizer = make_tokenizer(recipe.model)
    if not is_builtin(path):
        return tokenizer, _shape(path, recipe)
    with tempfile.TemporaryDirectory() as folder:
        with quiet_transformers():
            make_tiny_model(folder, heads=2)
        return tokenizer, _shape(folder, recipe)


def _shape(path: str, recipe: Recipe) -> Shape:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    remote = recipe.model.trust_remote_code
    try:
        config = AutoConfig.from_pretrained(path, trust_remote_code=remote)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config, trust_remote_code=remote)
        return _sizes(config.get_text_config(), sum(p.numel() for p in model.parameters()))
    except Exception as error:  # transformers raises OSError, ValueError, KeyError and others for a bad folder
        if told := of_the_machine(error):
            raise told from error
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ModelError(
            f"model.path: {path} cannot be loaded: {reason}; give the folder of a Hugging Face causal language model, "
            "or a hub name that can be reached from here"
        ) from error


def _sizes(config: Any, parameters: int) -> Shape:
    heads = getattr(config, "num_attention_heads", None) or 1  # a model without attention keeps no keys and values
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    return Shape(
        parameters=parameters,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        ffn=getattr(config, "intermediate_size", None) or 4 * config.hidden_size,
        key_values=2 * (getattr(config, "num_key_value_heads", None) or heads) * width,
        vocabulary=config.vocab_size,
    )


def estimate_memory(recipe: Recipe, shape: Shape, longest_prompt: int) -> Memory:
    """Bytes of weights, gradients, AdamW state, activations of one micro-batch, and the key-value cache.

    Low-precision models keep float32 masters, gradients and both moments (12 bytes more per parameter each step).
    """
    size = _BYTES[recipe.model.dtype]
    n, low = shape.parameters, recipe.model.dtype != "float32"
    tokens = max(recipe.learner.microbatch_tokens, 1)
    # Kept per token and layer: norms, attention inputs and output, feed-forward inputs; with checkpointing the
    # layer's input, plus one layer in full. The chunked logits stay small beside them.
    layer = 8 * shape.hidden + 3 * shape.ffn
    per_token = shape.layers * shape.hidden + layer if recipe.model.gradient_checkpointing else shape.layers * layer
    sequences = recipe.rollout.slots or recipe.rollout.prompts_per_step * recipe.rollout.group_size
    length = longest_prompt + recipe.rollout.max_response_tokens
    own, elsewhere = recipe.rollout.engine == "vllm", recipe.rollout.engine == "vllm_server"
    engine_size = _BYTES[recipe.rollout.vllm.dtype or recipe.model.dtype] if own else size
    return Memory(
        weights=n * size,
        gradients=n * (size + 4 * low),
        optimiser=n * (8 + 4 * low),
        activations=tokens * per_token * size,
        engine=n * engine_size if own else 0,
        cache=0 if elsewhere else sequences * length * shape.layers * shape.key_values * engine_size,
    )


def memory_lines(recipe: Recipe, shape: Shape, longest_prompt: int) -> Iterator[str]:
    memory = estimate_memory(recipe, shape, longest_prompt)
    yield f"{shape.parameters:,} parameters in {recipe.model.dtype}: {size_text(memory.weights)}"
    yield f"gradients {size_text(memory.gradients)}, AdamW {size_text(memory.optimiser)}"
    yield f"activations of {recipe.learner.microbatch_tokens:,} tokens: about {size_text(memory.activations)}"
    if recipe.rollout.engine == "vllm_server":
        yield f"sampling weights and key-value cache: on the server {recipe.rollout.server.url}"
        yield f"together about {size_text(memory.total)}"
        return
    if memory.engine:
        yield f"vLLM's own copy of the weights: {size_text(memory.engine)}"
    slots = "" if recipe.rollout.slots else " if all responses of a step decode at once; rollout.slots bounds it"
    yield f"key-value cache: at most {size_text(memory.cache)}{slots}"
    yield f"together about {size_text(memory.total)}"


def size_text(count: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", _GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
