"""Memory that a run needs on its device, estimated from the model's configuration alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from dapo.cli.check_ranks import gathered_numbers
from dapo.config import Recipe
from dapo.config.check_teacher import teacher_paths
from dapo.config.deployment import Deployment, deployment_of
from dapo.models.memory import LayerSizes, activation_bytes, forward_bytes, graph_bytes, head_bytes
from dapo.types.model import ModelFacts
from dapo.words import counted

_GIB = 1024**3
LARGE = 10**8  # parameters from which a card is asked about; below, a step costs what its many small launches cost


@dataclass(frozen=True, slots=True)
class Memory:
    """Estimated bytes on a device: arithmetic, but for activations of other layers than Llama's kind.

    With one rank the learner's device, which holds everything. With several, one rank's, and one of those of an engine.
    """

    weights: int
    gradients: int
    optimiser: int
    activations: int
    head: int  # of the logits that stand in memory at once
    engine: int  # weights of the engine's own: a copy, or the embedded engine's fused matrices
    cache: int  # keys and values; on a card of the embedded engine also what drawing a token of each slot takes
    reference: int = 0  # frozen values of the trained parameters
    teachers: int = 0  # weights of the models that judge the policy's tokens
    held: int = 0  # of engine and cache, what stays while the learner works
    gathered: int = 0  # of other ranks' slices, and their gradients, while the learner works
    apart: bool = False  # the engine's device is no rank's
    fixed: bool = False  # the cache is taken once, for all slots
    graphs: int = 0  # of the embedded engine's recorded decode steps
    checking: int = 0  # of the learner's forward pass after each publish, while the engine is awake

    @property
    def resident(self) -> int:
        """Always there."""
        return self.weights + self.optimiser + self.reference + self.teachers

    @property
    def learning(self) -> int:
        """While the learner works."""
        return self.resident + self.gradients + self.gathered + self.activations + self.head + self.held

    @property
    def generating(self) -> int:
        """While the engine works."""
        return self.engine + self.cache + self.graphs + (0 if self.apart else self.resident + self.checking)

    @property
    def total(self) -> int:
        """The larger of both."""
        return max(self.learning, self.generating)


def load_tokenizer_and_facts(recipe: Recipe) -> tuple[Any, ModelFacts]:
    """Return what ``dapo.run.model.tokenizer_and_facts`` does; what it says goes to stderr."""
    from dapo.run.model import tokenizer_and_facts

    return tokenizer_and_facts(recipe, to_stderr)


def to_stderr(note: str) -> None:
    print(note, file=sys.stderr, flush=True)


def estimate_memory(recipe: Recipe, facts: ModelFacts, longest_prompt: int, pass_tokens: int | None = None) -> Memory:
    """Return the bytes of weights, gradients, AdamW state, activations of one pass, and the key-value cache.

    Low-precision models keep float32 masters, gradients and both moments (12 bytes more per parameter each step).

    Args:
        recipe: of the run.
        facts: of its model.
        longest_prompt: tokens of the longest prompt.
        pass_tokens: of the learner's largest pass; None: as ``largest_pass`` says.
    """
    from dapo.models.policy import MAX_LOGITS, MAX_LOGITS_CUDA, MIN_CHUNK
    from dapo.run.held import BYTES, learner_holds

    size, n, learner = BYTES[recipe.model.dtype], facts.parameters, learner_holds(recipe, facts)
    with_adapter = recipe.model.lora.rank is not None
    tokens = pass_tokens or largest_pass(recipe, longest_prompt)
    tokens = -(-tokens // recipe.learner.context_parallel)  # of one rank
    layer, device = layer_sizes(facts), recipe.model.device
    on_card = device != "cpu" and (device != "auto" or n >= LARGE)  # small ones mostly run where there is no card
    most = MAX_LOGITS_CUDA if on_card else MAX_LOGITS
    found = deployment_of(recipe)
    own, elsewhere = (found.kind == kind for kind in ("vllm", "vllm_server"))
    embedded = found.kind == found.engine and found.engine_facts.ours
    engine_size = BYTES[recipe.rollout.vllm.dtype or recipe.model.dtype] if own else size
    # One embedded engine computes with the tensors of a learner in its process; an adapter is merged into those that it
    # does not fuse.
    copies = own or ((found.pool or found.ranks > 1) and found.engines > 0 and not elsewhere)
    merged = with_adapter and not copies
    rows = layer.queries + 2 * layer.keys + 2 * layer.ffn + merged * (layer.queries + layer.ffn)
    fused = embedded * (not layer.experts) * facts.layers * layer.hidden * rows * size
    copied, fused = found.engines * copies * n * engine_size, found.engines * fused
    longest = longest_prompt + recipe.rollout.max_response_tokens
    cache = 0 if elsewhere else _cache_bytes(recipe, facts, longest, key_value_size(recipe), fixed=embedded and on_card)
    # On a card vLLM hands all back while the learner works, the embedded engine its cache; working beside it, neither.
    asleep = on_card and not found.overlaps and (embedded or (own and recipe.rollout.vllm.sleep))
    graphs = _graph_bytes(recipe, facts, longest) if embedded and on_card else 0
    held = 0 if asleep and own else copied + fused if asleep else copied + fused + cache + graphs
    whole = Memory(
        reference=learner.reference,
        teachers=learner.teachers,
        weights=learner.weights,
        gradients=learner.gradients,
        optimiser=learner.optimiser,
        activations=activation_bytes(
            layer, facts.layers, tokens, size, checkpointing=recipe.model.activation_checkpointing == "full"
        ),
        head=head_bytes(min(tokens, max(MIN_CHUNK, most // facts.vocabulary)), facts.vocabulary, size),
        engine=copied + fused,
        cache=cache,
        held=held,
        fixed=embedded and on_card,
        graphs=graphs,
        checking=_checking_bytes(recipe, facts, longest_prompt) if copies else 0,
    )
    return whole if found.ranks == 1 else _of_a_rank(whole, recipe, facts)


def largest_pass(recipe: Recipe, longest_prompt: int) -> int:
    """Return the most tokens that one pass of the learner can have: no more than a minibatch has.

    A row above ``learner.microbatch_tokens`` has a pass to itself. Packed rows of a group share their prompt.

    Args:
        recipe: of the run.
        longest_prompt: tokens of the longest prompt, or of the longest example of a supervised run.
    """
    rollout, game = recipe.rollout, recipe.environment
    if recipe.run.stage == "sft":
        longest, minibatch = longest_prompt, recipe.sft.batch_size * longest_prompt
    else:
        longest = longest_prompt + rollout.max_response_tokens
        groups = recipe.learner.minibatch_prompts or rollout.prompts_per_step
        if game.kind is not None and game.rows == "turns":
            minibatch = groups * rollout.group_size * game.max_turns * longest
        elif recipe.model.attention == "padded":
            minibatch = groups * rollout.group_size * longest
        else:
            minibatch = groups * (longest_prompt + rollout.group_size * rollout.max_response_tokens)
    return max(longest, min(recipe.learner.microbatch_tokens, minibatch))


def key_value_size(recipe: Recipe) -> int:
    """Return the bytes of a number of the engine's key-value cache."""
    from dapo.run.held import BYTES

    found, own = Deployment(recipe), recipe.rollout.vllm.dtype
    if found.keeps_8_bits:
        return 1
    return BYTES[(own if found.engine == "vllm" else None) or recipe.model.dtype]


def _cache_bytes(recipe: Recipe, facts: ModelFacts, longest: int, size: int, *, fixed: bool) -> int:
    """Return the bytes of keys and values of a step's responses at full length, as far as there are slots. ``fixed``
    counts all slots that the embedded engine may choose on a GPU, used or not."""
    slots = deployment_of(recipe).slots
    if fixed:
        import torch

        from dapo.engines.pools import CacheShape
        from dapo.engines.slots import MOST_SLOTS, slot_bytes

        dtype = getattr(torch, recipe.model.dtype)
        shape = CacheShape(facts.layers, facts.kv_heads, facts.head_size, dtype, torch.device("meta"))
        return sum(number or MOST_SLOTS for number in slots) * slot_bytes(
            shape, facts.vocabulary, longest, keeps=recipe.environment.kind is not None
        )
    responses = recipe.rollout.prompts_per_step * recipe.rollout.group_size
    sequences = responses if None in slots else min(responses, sum(filter(None, slots)))
    return sequences * longest * facts.layers * facts.key_values * size


def _checking_bytes(recipe: Recipe, facts: ModelFacts, longest_prompt: int) -> int:
    """Return the most that the learner takes to check the engines' weights, with its layers where ranks gather them.

    Each engine answers the same few prompts; a rank computes whole groups of answers.
    """
    from dapo.loop.sync_check import RESPONSES, TOKENS
    from dapo.run.held import BYTES

    learner, size, answers = recipe.learner, BYTES[recipe.model.dtype], TOKENS * Deployment(recipe).engines
    groups = -(-RESPONSES // max(1, learner.ranks // learner.context_parallel))
    most = max(learner.microbatch_tokens, longest_prompt + TOKENS)
    tokens = min(groups * (longest_prompt + answers), most) // learner.context_parallel
    gathered = gathered_numbers(recipe, facts) * size if learner.ranks > 1 else 0
    head = head_bytes(min(groups * answers, most), facts.vocabulary, size)
    return forward_bytes(layer_sizes(facts), tokens, size) + head + gathered


def _graph_bytes(recipe: Recipe, facts: ModelFacts, longest: int) -> int:
    """Return the bytes of graphs of all embedded engines on GPUs; 0 where steps are not recorded."""
    from dapo.engines.fused import ARCHITECTURES
    from dapo.engines.graphs import MOST
    from dapo.engines.slots import MOST_SLOTS
    from dapo.run.held import BYTES

    if recipe.rollout.embedded.cuda_graphs is False or facts.fingerprint.get("architecture") not in ARCHITECTURES:
        return 0
    layer, size = layer_sizes(facts), BYTES[recipe.model.dtype]
    return sum(
        graph_bytes(layer, facts.layers, slots or MOST_SLOTS, longest, size, MOST) for slots in Deployment(recipe).slots
    )


def _of_a_rank(whole: Memory, recipe: Recipe, facts: ModelFacts) -> Memory:
    """Slices, gradients and moments of what is trained in float32; what is frozen, and layers as they are needed, in
    the model's type."""
    from dapo.run.held import BYTES, moments, trained_parameters

    found, size, here = Deployment(recipe), BYTES[recipe.model.dtype], not recipe.learner.cpu_offload
    parts, devices, apart = found.shards, max(1, found.engines * found.engine_devices), found.engines_apart
    trained, adapter = trained_parameters(recipe, facts), recipe.model.lora.rank is not None
    slices = here * -(-4 * trained // parts)
    frozen = here * adapter * -(-facts.parameters * size // parts)
    gathered = gathered_numbers(recipe, facts)
    return replace(
        whole,
        weights=frozen + slices,
        gradients=slices,
        optimiser=here * -(-moments(recipe, facts) // parts),
        reference=slices if whole.reference else 0,
        teachers=-(-whole.teachers // parts),
        gathered=(gathered * size + trained * (size + 4)) if adapter else gathered * (size + 4),
        engine=whole.engine // devices,
        cache=whole.cache // devices,
        graphs=whole.graphs // devices,
        held=0 if apart else whole.held // devices,
        apart=apart,
    )


def layer_sizes(facts: ModelFacts) -> LayerSizes:
    """Widths of the model's layers."""
    experts, chosen = facts.experts
    config = facts.config if experts else {}
    return LayerSizes(
        facts.hidden,
        config.get("moe_intermediate_size") or facts.ffn,
        facts.queries // max(facts.head_size, 1),
        queries=facts.queries,
        keys=facts.kv_heads * facts.head_size,
        experts=experts,
        chosen=chosen,
        shared=_shared_width(config),
    )


def _shared_width(config: Mapping[str, Any]) -> int:
    """Return the width of experts that compute every token, as Qwen2-MoE or DeepSeek and GLM name it; 0: none."""
    each = (config.get("n_shared_experts") or 0) * (config.get("moe_intermediate_size") or 0)
    return config.get("shared_expert_intermediate_size") or each


def memory_lines(recipe: Recipe, facts: ModelFacts, longest_prompt: int) -> Iterator[str]:
    from dapo.run.held import BYTES

    memory = estimate_memory(recipe, facts, longest_prompt)
    weights = facts.parameters * BYTES[recipe.model.dtype]
    yield f"{facts.parameters:,} parameters in {recipe.model.dtype}: {size_text(weights)}"
    yield from _state_lines(recipe, facts, memory)
    sharing = recipe.learner.context_parallel
    shared = f" over {sharing} ranks, of each rank" if sharing > 1 else ""
    tokens = largest_pass(recipe, longest_prompt)
    yield (
        f"activations of {tokens:,} tokens{shared}: about {size_text(memory.activations)}; "
        f"logits and what is made of them: {size_text(memory.head)}"
    )
    yield from _engine_memory_lines(recipe, memory)
    if recipe.model.device != "cpu" and facts.parameters >= LARGE:
        yield "on a GPU also about 1 GiB for CUDA itself. `make gpu` compares this estimate with a GPU's peak"


def _state_lines(recipe: Recipe, facts: ModelFacts, memory: Memory) -> Iterator[str]:
    from dapo.run.held import keeps_reference, trained_parameters

    ranks, copies, lora = recipe.learner.ranks, recipe.learner.replicas, recipe.model.lora.rank is not None
    if lora:
        count = trained_parameters(recipe, facts)
        yield f"of them frozen; the adapter trains {count:,} ({count / facts.parameters:.2%}) of its own"
    part = f"1/{ranks // copies} of the model" + (f" ({copies} copies)" if copies > 1 else "")
    if ranks == 1:
        yield f"gradients {size_text(memory.gradients)}, AdamW {size_text(memory.optimiser)}"
    elif recipe.learner.cpu_offload:
        yield f"each of {ranks} ranks has {part}, with gradients and AdamW, in the processor's memory"
    else:
        state = memory.weights + memory.gradients + memory.optimiser
        kind = f"{recipe.model.dtype}, and as much of the adapter in float32" if lora else "float32"
        yield f"each of {ranks} ranks: {part} in {kind}, with gradients and AdamW: {size_text(state)}"
    if ranks > 1:
        yield f"gathered from other ranks while it computes, with gradients: at most {size_text(memory.gathered)}"
    if keeps_reference(recipe):
        where = "in the CPU's memory" if recipe.algorithm.reference.offload else size_text(memory.reference)
        whole, part = (
            "the reference for the KL, frozen copies of the weights",
            "the rank's part of the reference for the KL",
        )
        yield f"{whole if ranks == 1 else part}: {where}"
    if taught := len(teacher_paths(recipe, served=False)):
        where = "in the CPU's memory" if recipe.algorithm.teacher.offload else size_text(memory.teachers)
        yield f"{counted(taught, 'teacher')}{'' if ranks == 1 else ', the part of a rank'}: {where}"


def _engine_memory_lines(recipe: Recipe, memory: Memory) -> Iterator[str]:

    deployment = deployment_of(recipe)
    over_ranks = deployment.learner == "ranks"
    on = " on each device" if over_ranks else ""
    if deployment.kind == "none":
        yield f"together{on} about {size_text(memory.learning)}; there is no engine"
        return
    if deployment.kind == "vllm_server":
        yield f"sampling weights and key-value cache: on {', '.join(deployment.urls)}"
        yield f"together about {size_text(memory.learning if over_ranks else memory.total)}{on}"
        return
    if memory.engine:
        whose = "the engine's merged matrices" if recipe.model.lora.rank is not None else "the engine's fused matrices"
        if deployment.kind == "vllm":
            whose = "vLLM's own copy of the weights"
        elif deployment.route != "shared" and deployment.engines == 1:
            whose = "the engine's own copy of the weights"
        if deployment.engines > 1:
            whose = "its engine's own copy of the weights" if over_ranks else "the engines' own copies of the weights"
        yield f"{whose}{on}: {size_text(memory.engine)}"
    slots = "" if recipe.rollout.slots else f" {_of_all_slots(recipe, memory)}; rollout.slots bounds it"
    yield f"key-value cache{on}: at most {size_text(memory.cache)}{slots}"
    if deployment.kind == "vllm" and recipe.model.device != "cpu" and recipe.rollout.vllm.kv_cache_mib is None:
        share = recipe.rollout.vllm.gpu_memory_utilization
        taken = ", ".join(f"{share * card:.0f} of {card} GB" for card in (24, 80, 141))
        yield (
            f"while it generates, vLLM takes {share:.0%} of a GPU for weights and cache, needed or not "
            f"(rollout.vllm.gpu_memory_utilization): {taken}; responses that its cache cannot hold wait"
        )
    if memory.checking and not memory.apart and recipe.model.device != "cpu":
        yield (
            f"beside it{on} the learner's pass that checks published weights, while the engine is awake: at most "
            f"{size_text(memory.checking)}"
        )
    if memory.graphs:
        yield (
            f"recorded decode steps (CUDA graphs){on}: about {size_text(memory.graphs)}, by arithmetic that no GPU "
            "confirmed; rollout.embedded.cuda_graphs=false does without"
        )
    if memory.apart and over_ranks:
        yield f"a rank's device about {size_text(memory.learning)}, an engine's {size_text(memory.generating)}"
    elif memory.held < memory.engine + memory.cache + memory.graphs:
        yield (
            f"together{on} about {size_text(memory.learning)} while learning (the engine sleeps), "
            f"{size_text(memory.generating)} while generating"
        )
    else:
        beside = ": learner and engines work at the same time, each with weights of its own in a process of its own"
        yield f"together{on} about {size_text(memory.total)}{beside if deployment.overlaps else ''}"


def _of_all_slots(recipe: Recipe, memory: Memory) -> str:
    """When the cache is as large as it may be, where the recipe does not say how many responses decode at once."""
    if not memory.fixed:
        return "if all responses of a step decode at once"
    from dapo.engines.slots import MOST_SLOTS

    return f"for {MOST_SLOTS} responses at once, drawing their tokens included; fewer where they do not fit"


def size_text(count: int) -> str:
    """Bytes for people."""
    for unit, scale in (("GiB", _GIB), ("MiB", 1024**2), ("KiB", 1024)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"
