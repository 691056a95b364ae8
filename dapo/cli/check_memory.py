"""What a run needs of its device, estimated from the model's configuration alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dapo.config import Recipe
from dapo.config.pool import engine_count, engine_slots, server_urls
from dapo.contracts.model import ModelFacts

_GIB = 1024**3
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Memory:
    """Estimated bytes on the training device. Activations are a rule of thumb, the rest is arithmetic."""

    weights: int
    gradients: int
    optimiser: int
    activations: int
    engine: int  # weights of the engine's own, where it does not share the learner's
    cache: int
    reference: int = 0  # frozen values of the trained parameters

    @property
    def total(self) -> int:
        learner = self.weights + self.gradients + self.optimiser + self.reference + self.activations
        return learner + self.engine + self.cache


def load_tokenizer_and_facts(recipe: Recipe) -> tuple[Any, ModelFacts]:
    """The model's tokenizer and sizes, without its weights.

    Raises:
        ModelError: neither a folder nor a hub name that can be reached.
    """
    from dapo.models.builtin import is_builtin
    from dapo.models.facts import read_facts
    from dapo.models.load import quiet_transformers
    from dapo.models.tiny import make_tiny_model
    from dapo.run.parts import check_model_path, make_tokenizer

    model = recipe.model
    check_model_path(model.path)
    tokenizer = make_tokenizer(model)
    if not is_builtin(model.path):
        facts = read_facts(model.path, model.dtype, trust_remote_code=model.trust_remote_code, tokenizer=tokenizer)
        return tokenizer, facts
    with tempfile.TemporaryDirectory() as folder:
        with quiet_transformers():
            make_tiny_model(folder, heads=2)
        return tokenizer, read_facts(folder, model.dtype, tokenizer=tokenizer)


def estimate_memory(recipe: Recipe, facts: ModelFacts, longest_prompt: int) -> Memory:
    """Bytes of weights, gradients, AdamW state, activations of one micro-batch, and the key-value cache.

    Low-precision models keep float32 masters, gradients and both moments (12 bytes more per parameter each step).
    """
    size = _BYTES[recipe.model.dtype]
    n, low = facts.parameters, recipe.model.dtype != "float32"
    trained = trained_parameters(recipe, facts)
    with_adapter = recipe.model.lora.rank is not None
    tokens = max(recipe.learner.microbatch_tokens, 1)
    # Kept per token and layer: norms, attention inputs and output, feed-forward inputs; with checkpointing the
    # layer's input, plus one layer in full. The chunked logits stay small beside them.
    layer = 8 * facts.hidden + 3 * facts.ffn
    per_token = facts.layers * facts.hidden + layer if recipe.model.gradient_checkpointing else facts.layers * layer
    slots, engines = engine_slots(recipe), engine_count(recipe)
    responses = recipe.rollout.prompts_per_step * recipe.rollout.group_size
    sequences = responses if None in slots else sum(filter(None, slots))
    length = longest_prompt + recipe.rollout.max_response_tokens
    own, elsewhere = recipe.rollout.engine == "vllm", recipe.rollout.engine == "vllm_server"
    merged = with_adapter and recipe.rollout.engine == "embedded"
    engine_size = _BYTES[recipe.rollout.vllm.dtype or recipe.model.dtype] if own else size
    return Memory(
        reference=trained * size if keeps_reference(recipe) and not recipe.algorithm.reference.offload else 0,
        weights=(n + trained if with_adapter else n) * size,
        gradients=trained * (size + 4 * low),
        optimiser=trained * (8 + 4 * low),
        activations=tokens * per_token * size,
        engine=n * engine_size * engines if own or merged or (engines > 1 and not elsewhere) else 0,
        cache=0 if elsewhere else sequences * length * facts.layers * facts.key_values * engine_size,
    )


def keeps_reference(recipe: Recipe) -> bool:
    """Whether frozen weights are kept for a reference: not for a model that is one without its adapter."""
    from dapo.run.parts import needs_reference

    free = recipe.model.lora.rank is not None and recipe.algorithm.reference.refresh_every is None
    return needs_reference(recipe) and not free


def trained_parameters(recipe: Recipe, facts: ModelFacts) -> int:
    """How many numbers the optimiser moves: the model's, or the adapter's."""
    from dapo.models.adapter import adapter_parameters

    lora = recipe.model.lora
    return facts.parameters if lora.rank is None else adapter_parameters(facts.shapes, lora)


def memory_lines(recipe: Recipe, facts: ModelFacts, longest_prompt: int) -> Iterator[str]:
    memory = estimate_memory(recipe, facts, longest_prompt)
    yield f"{facts.parameters:,} parameters in {recipe.model.dtype}: {size_text(memory.weights)}"
    if recipe.model.lora.rank is not None:
        count = trained_parameters(recipe, facts)
        yield f"of them frozen; the adapter trains {count:,} ({count / facts.parameters:.2%}) of its own"
    yield f"gradients {size_text(memory.gradients)}, AdamW {size_text(memory.optimiser)}"
    if keeps_reference(recipe):
        where = "in the CPU's memory" if recipe.algorithm.reference.offload else size_text(memory.reference)
        yield f"the reference for the KL, frozen copies of the weights: {where}"
    yield f"activations of {recipe.learner.microbatch_tokens:,} tokens: about {size_text(memory.activations)}"
    if recipe.rollout.engine == "vllm_server":
        yield f"sampling weights and key-value cache: on {', '.join(server_urls(recipe))}"
        yield f"together about {size_text(memory.total)}"
        return
    if memory.engine:
        whose = "vLLM's own copy of the weights" if recipe.rollout.engine == "vllm" else "the engine's merged matrices"
        if engine_count(recipe) > 1:
            whose = "the engines' own copies of the weights"
        yield f"{whose}: {size_text(memory.engine)}"
    slots = "" if recipe.rollout.slots else " if all responses of a step decode at once; rollout.slots bounds it"
    yield f"key-value cache: at most {size_text(memory.cache)}{slots}"
    yield f"together about {size_text(memory.total)}"


def size_text(count: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", _GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
