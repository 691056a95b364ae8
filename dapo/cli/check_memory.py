"""What a run needs of its device, estimated from the model's configuration alone."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from dapo.config import Recipe
from dapo.config.pool import engine_count, engine_slots, is_pool, server_urls
from dapo.contracts.model import ModelFacts
from dapo.models.memory import LayerSizes, activation_bytes, head_bytes

_GIB = 1024**3
LARGE = 10**8  # parameters from which a card is asked about; below, a step costs what its many small launches cost
_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclass(frozen=True, slots=True)
class Memory:
    """Estimated bytes on the training device: arithmetic, but for activations of other layers than Llama's kind."""

    weights: int
    gradients: int
    optimiser: int
    activations: int
    head: int  # of the logits that stand in memory at once
    engine: int  # weights of the engine's own: a copy, or the embedded engine's fused matrices
    cache: int
    reference: int = 0  # frozen values of the trained parameters
    held: int = 0  # of engine and cache, what stays while the learner works

    @property
    def resident(self) -> int:
        """Always there."""
        return self.weights + self.optimiser + self.reference

    @property
    def learning(self) -> int:
        """While the learner works."""
        return self.resident + self.gradients + self.activations + self.head + self.held

    @property
    def generating(self) -> int:
        """While the engine works."""
        return self.resident + self.engine + self.cache

    @property
    def total(self) -> int:
        """The larger of both."""
        return max(self.learning, self.generating)


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
    tokenizer = make_tokenizer(model, recipe.data.chat_template)
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
    from dapo.models.policy import MAX_LOGITS, MAX_LOGITS_CUDA, MIN_CHUNK

    size = _BYTES[recipe.model.dtype]
    n, low = facts.parameters, recipe.model.dtype != "float32"
    trained = trained_parameters(recipe, facts)
    with_adapter = recipe.model.lora.rank is not None
    tokens = max(recipe.learner.microbatch_tokens, 1)
    layer, device = layer_sizes(facts), recipe.model.device
    on_card = device != "cpu" and (device != "auto" or n >= LARGE)  # small ones mostly run where there is no card
    most = MAX_LOGITS_CUDA if on_card else MAX_LOGITS
    slots, engines = engine_slots(recipe), engine_count(recipe)
    responses = recipe.rollout.prompts_per_step * recipe.rollout.group_size
    sequences = responses if None in slots else min(responses, sum(filter(None, slots)))
    length = longest_prompt + recipe.rollout.max_response_tokens
    own, elsewhere = recipe.rollout.engine == "vllm", recipe.rollout.engine == "vllm_server"
    engine_size = _BYTES[recipe.rollout.vllm.dtype or recipe.model.dtype] if own else size
    # One embedded engine computes with the learner's tensors; an adapter is merged into those that it does not fuse.
    copies = own or (is_pool(recipe) and not elsewhere)
    embedded = recipe.rollout.engine == "embedded"
    merged = with_adapter and not copies
    rows = layer.queries + 2 * layer.keys + 2 * layer.ffn + merged * (layer.queries + layer.ffn)
    fused = embedded * facts.layers * layer.hidden * rows * size
    copied, fused = engines * copies * n * engine_size, engines * fused
    cache = 0 if elsewhere else sequences * length * facts.layers * facts.key_values * engine_size
    # On a card vLLM hands all back while the learner works, the embedded engine its cache; working beside it, neither.
    asleep = on_card and not recipe.rollout.max_staleness and (embedded or (own and recipe.rollout.vllm.sleep))
    held = 0 if asleep and own else copied + fused if asleep else copied + fused + cache
    return Memory(
        reference=trained * size if keeps_reference(recipe) and not recipe.algorithm.reference.offload else 0,
        weights=(n + trained if with_adapter else n) * size,
        gradients=trained * (size + 4 * low),
        optimiser=trained * (8 + 4 * low),
        activations=activation_bytes(
            layer, facts.layers, tokens, size, checkpointing=recipe.model.activation_checkpointing == "full"
        ),
        head=head_bytes(min(tokens, max(MIN_CHUNK, most // facts.vocabulary)), facts.vocabulary, size),
        engine=copied + fused,
        cache=cache,
        held=held,
    )


def layer_sizes(facts: ModelFacts) -> LayerSizes:
    """Widths of the model's layers."""
    heads = facts.fingerprint.get("num_attention_heads") or max(1, facts.hidden // max(facts.head_size, 1))
    return LayerSizes(
        facts.hidden, facts.ffn, heads, queries=heads * facts.head_size, keys=facts.kv_heads * facts.head_size
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
    yield (
        f"activations of {recipe.learner.microbatch_tokens:,} tokens: about {size_text(memory.activations)}; logits "
        f"and what is made of them: {size_text(memory.head)}"
    )
    if recipe.rollout.engine == "vllm_server":
        yield f"sampling weights and key-value cache: on {', '.join(server_urls(recipe))}"
        yield f"together about {size_text(memory.total)}"
        return
    if memory.engine:
        whose = "the engine's merged matrices" if recipe.model.lora.rank is not None else "the engine's fused matrices"
        if recipe.rollout.engine == "vllm":
            whose = "vLLM's own copy of the weights"
        elif is_pool(recipe) and engine_count(recipe) == 1:
            whose = "the engine's own copy of the weights"
        if engine_count(recipe) > 1:
            whose = "the engines' own copies of the weights"
        yield f"{whose}: {size_text(memory.engine)}"
    slots = "" if recipe.rollout.slots else " if all responses of a step decode at once; rollout.slots bounds it"
    yield f"key-value cache: at most {size_text(memory.cache)}{slots}"
    if memory.held < memory.engine + memory.cache:
        yield (
            f"together about {size_text(memory.learning)} while learning (the engine sleeps), "
            f"{size_text(memory.generating)} while generating"
        )
    else:
        beside = ": learner and engines work at the same time, each with weights of its own in a process of its own"
        yield f"together about {size_text(memory.total)}{beside if recipe.rollout.max_staleness else ''}"
    if recipe.model.device != "cpu" and facts.parameters >= LARGE:
        yield "on a card also about 1 GiB for CUDA itself. `make gpu` compares this estimate with a card's peak"


def size_text(count: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", _GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
