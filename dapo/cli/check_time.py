"""Estimated time of a run on GPUs with a known datasheet: arithmetic whose assumptions are printed with it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dapo.cli.check_memory import LARGE, Memory, key_value_size, size_text
from dapo.cli.check_ranks import publish_seconds
from dapo.config import Recipe
from dapo.config.checks import ratio_against
from dapo.config.deployment import Deployment
from dapo.observe.text import span
from dapo.types.model import ModelFacts

if TYPE_CHECKING:  # numpy comes with it
    from dapo.types.batch import Row

MEAN_LENGTH = 0.5  # of the response limit
KEPT = 0.5  # share of the groups that dynamic sampling keeps
_ROWS = 256  # responses that decode together, unless the recipe says otherwise
_LEAST_CACHE = 4 * 1024**3  # responses then wait for their turn
SPARE = 1.1  # for CUDA itself and the allocator's gaps


@dataclass(frozen=True, slots=True)
class Card:
    """From the vendor's datasheet: memory in bytes, bytes per second, dense bfloat16 operations per second."""

    name: str
    memory: float
    bandwidth: float
    peak: float


_H200 = Card("H200", 141e9, 4.8e12, 989e12)
CARDS = (
    Card("RTX 4090", 24 * 1024**3, 1.008e12, 165e12),
    Card("L40S", 48 * 1024**3, 0.864e12, 362e12),
    Card("A100 80 GB", 80e9, 2.039e12, 312e12),
    Card("H100 80 GB", 80e9, 3.35e12, 989e12),
    _H200,
)
_MEASURED = ((0.5e9, 0.11, 0.20), (1.54e9, 0.21, 0.33), (7.6e9, 0.35, 0.44))
"""What one H200 reached (``make gpu``, benchmarks/results/gpu), by parameters: the share of the datasheet's bandwidth
that 256 rows read while decoding, and the share of its bfloat16 matrix peak while learning."""


@dataclass(frozen=True, slots=True)
class Work:
    """One training step, in what has to be moved and computed."""

    generated: float  # tokens
    trained: float  # response tokens
    decode_bytes: float
    operations: float


def step_work(
    recipe: Recipe, facts: ModelFacts, prompt: float, card: Card | None = None, memory: Memory | None = None
) -> Work:
    """Return the bytes that decoding reads and the operations that learning makes in a step.

    Args:
        recipe: of the run.
        facts: of its model.
        prompt: mean tokens of a prompt.
        card: GPU whose memory bounds the responses that decode at once; None: nothing does.
        memory: of the run, which the embedded engine's cache has to fit in.
    """
    rollout, size, found = recipe.rollout, _bytes(recipe.model.dtype), Deployment(recipe)
    responses, mean = rollout.prompts_per_step * rollout.group_size, MEAN_LENGTH * rollout.max_response_tokens
    filtered = recipe.algorithm.dynamic_sampling.mode == "filter"
    generated, trained = responses * mean / (KEPT if filtered else 1.0), responses * mean
    rows: float = min(sum(slots or _ROWS for slots in found.slots), responses)
    if card is not None:
        held = found.engines * _rows_of_cache(recipe, facts, card, prompt + mean / 2, memory)
        rows = max(1.0, min(rows, held))
    untied = not facts.fingerprint.get("tied", True)
    embeddings = untied * facts.vocabulary * facts.hidden  # which a step looks up
    count, chosen = facts.experts
    idle = (1 - chosen / count) ** (rows / found.engines) if count else 0.0  # an expert for all responses
    read = facts.parameters - embeddings - facts.expert_parameters * idle
    cached = (prompt + mean / 2) * facts.layers * facts.key_values * key_value_size(recipe)
    step = found.engines * read * size + rows * cached
    tokens = trained + rollout.prompts_per_step * prompt
    operations = 2.0 * (facts.active - embeddings) * tokens * _passes(recipe)
    return Work(generated, trained, generated / rows * step, operations)


def _rows_of_cache(recipe: Recipe, facts: ModelFacts, card: Card, tokens: float, memory: Memory | None) -> float:
    """Return the responses of ``tokens`` tokens whose keys and values one engine holds on GPUs of this kind.

    The embedded engine reserves each slot at its full length; ``memory`` says what a slot takes. A server: any number.
    """
    found, vllm = Deployment(recipe), recipe.rollout.vllm
    if found.engine_facts.ours and memory is not None and memory.fixed:
        from dapo.engines.slots import MOST_SLOTS

        slots = sum(number or MOST_SLOTS for number in found.slots) / found.engines
        room = card.memory / SPARE - (memory.generating - memory.cache)
        return slots * min(1.0, max(room, 0.0) / memory.cache)
    if found.engine != "vllm":
        return math.inf
    size = _bytes(vllm.dtype or recipe.model.dtype)
    cache = vllm.gpu_memory_utilization * card.memory * found.engine_devices - facts.parameters * size
    if vllm.kv_cache_mib is not None:
        cache = vllm.kv_cache_mib * 1024**2
    return max(cache, 0.0) / (tokens * facts.layers * facts.key_values * key_value_size(recipe))


def lockstep_efficiency(recipe: Recipe, facts: ModelFacts, prompt: float) -> float:
    """Return the share of learning in which ranks do not wait for each other: planned for drawn response lengths.

    Lengths of a minibatch are lognormal around ``MEAN_LENGTH`` of the limit: sigma 0.6 between groups, 0.35 within one.
    """
    from dapo.learner.balance import attention_of
    from dapo.learner.plan import efficiency, plan_step
    from dapo.metrics.stats import values
    from dapo.types.batch import LearnStep

    rollout, learner = recipe.rollout, recipe.learner
    units = learner.ranks // learner.context_parallel  # ranks that share rows are planned for as one
    if units == 1:
        return 1.0
    attention = attention_of(facts)
    rows = _drawn_rows(learner.minibatch_prompts or rollout.prompts_per_step, recipe, round(prompt))
    plans = plan_step(LearnStep([rows], [0.0], 0), learner.microbatch_tokens, ranks=units, attention=attention)
    return values(efficiency(plans, attention=attention))["train/lockstep_efficiency"]


def _drawn_rows(groups: int, recipe: Recipe, prompt: int) -> list[Row]:
    import numpy as np

    from dapo.types.batch import Row

    limit, size = recipe.rollout.max_response_tokens, recipe.rollout.group_size
    random = np.random.default_rng(0)
    centres = math.log(MEAN_LENGTH * limit) + 0.6 * random.standard_normal(groups) - 0.6**2 / 2
    drawn = np.exp(centres[:, None] + 0.35 * random.standard_normal((groups, size))).clip(2, limit).astype(int)
    ids, real, flags = np.zeros(max(limit, prompt, 1), np.int32), np.zeros(limit, np.float32), np.ones(limit, np.bool_)
    return [
        Row(
            group=group,
            sample=sample,
            prompt_ids=ids[: max(prompt, 1)],
            token_ids=ids[:length],
            loss_mask=flags[:length],
            sampler_logprobs=real[:length],
            versions=ids[:length],
            loss_weight=1.0,
            advantage=1.0,
        )
        for group in range(groups)
        for sample, length in enumerate(drawn[group].tolist())
    ]


def _passes(recipe: Recipe) -> int:
    """Forward passes' worth of work in a step: the backward pass is two."""
    from dapo.run.held import keeps_reference

    minibatch = recipe.learner.minibatch_prompts or recipe.rollout.prompts_per_step
    old = ratio_against(recipe) == "learner" and minibatch < recipe.rollout.prompts_per_step
    training = 3 + (recipe.model.activation_checkpointing == "full")
    return recipe.learner.epochs_per_rollout * training + old + keeps_reference(recipe)


def _bytes(dtype: str) -> int:
    return 4 if dtype == "float32" else 2


def shares(parameters: int, card: Card) -> tuple[float, float]:
    """Return the shares of bandwidth and matrix peak that a model of this size reaches, between those measured.

    A small model waits for the launches of its kernels, so that it is as fast on a slower GPU and uses that one better,
    up to the shares of the largest model.
    """
    import numpy as np

    sizes, bandwidth, peak = zip(*_MEASURED, strict=True)
    at, known = math.log(parameters), [math.log(size) for size in sizes]
    reached = float(np.interp(at, known, bandwidth)), float(np.interp(at, known, peak))
    return (
        min(bandwidth[-1], reached[0] * _H200.bandwidth / card.bandwidth),
        min(peak[-1], reached[1] * _H200.peak / card.peak),
    )


def step_seconds(work: Work, card: Card, parameters: int) -> tuple[float, float]:
    """Return the seconds to generate and to learn with a model of so many parameters."""
    bandwidth, peak = shares(parameters, card)
    return work.decode_bytes / (card.bandwidth * bandwidth), work.operations / (card.peak * peak)


def needed_memory(memory: Memory) -> float:
    """Return the bytes that a GPU must have: an engine makes do with a smaller cache and fewer responses at once."""
    least = memory.generating - memory.cache + min(memory.cache, _LEAST_CACHE)
    return max(memory.learning, least) * SPARE


def largest_share(recipe: Recipe, memory: Memory, card: Card) -> float:
    """Return the share of a GPU that vLLM may take beside what the learner keeps there. 1: all of it."""
    if Deployment(recipe).engine != "vllm" or memory.apart or recipe.rollout.vllm.kv_cache_mib is not None:
        return 1.0
    return max(0.0, 1 - (memory.resident + memory.checking) / card.memory)


def holds(recipe: Recipe, memory: Memory, card: Card) -> bool:
    """Return whether a GPU holds the run: also beside the share of it that vLLM takes while it generates."""
    share = recipe.rollout.vllm.gpu_memory_utilization if Deployment(recipe).engine == "vllm" else 0.0
    return needed_memory(memory) <= card.memory and share <= largest_share(recipe, memory, card)


def time_lines(recipe: Recipe, facts: ModelFacts, memory: Memory, prompt: float) -> Iterator[str]:
    """Yield tokens of a step and hours of the run on each known GPU that holds it; nothing for small models and CPUs.

    A synchronous run generates, learns and publishes in turn. With ``rollout.max_staleness`` it generates meanwhile.
    What links between GPUs cost while ranks compute is not counted.
    """
    if facts.parameters < LARGE or recipe.model.device == "cpu":
        return
    work, steps = step_work(recipe, facts, prompt), recipe.trainer.steps
    waiting, size = lockstep_efficiency(recipe, facts, prompt), _bytes(recipe.model.dtype)
    publish = publish_seconds(recipe, facts, size)
    filtered = recipe.algorithm.dynamic_sampling.mode == "filter"
    kept = f", {KEPT:.0%} of the groups are kept" if filtered else ""
    bandwidth, peak = shares(facts.parameters, _H200)
    yield (
        f"assumed: responses reach {MEAN_LENGTH:.0%} of the limit{kept}, decoding reads at {bandwidth:.0%} of the "
        f"bandwidth of an H200, learning computes at {peak:.0%} of its matrix peak, as measured at this size; other "
        "GPUs by their datasheets. `dapo check --try 4` measures on yours"
    )
    yield f"a step: about {work.generated:,.0f} tokens generated, {work.trained:,.0f} trained on"
    fitting = [card for card in CARDS if holds(recipe, memory, card)]
    found, ranks = Deployment(recipe), recipe.learner.ranks
    engines, beside = (found.engines * found.engine_devices, found.engines_apart) if ranks > 1 else (1, False)
    cards = ranks + engines if beside else max(ranks, engines)
    for card in fitting:
        generate, learn = step_seconds(step_work(recipe, facts, prompt, card, memory), card, facts.parameters)
        generate, learn = generate / engines, learn / ranks / waiting
        both = max(generate, learn) if found.overlaps else generate + learn
        parts = [f"{span(generate)} to generate", f"{span(learn)} to learn" + " meanwhile" * found.overlaps]
        parts += [f"{publish:.0f} s to publish"] if publish >= 0.5 else []
        yield (
            f"{f'{cards} x ' * (cards > 1)}{card.name}: {' and '.join([', '.join(parts[:-1]), parts[-1]])}, "
            f"{steps:,} steps in about {span((both + publish) * steps)}, evaluations not counted"
        )
    if not fitting:
        yield _none_fits(recipe, memory)


def _none_fits(recipe: Recipe, memory: Memory) -> str:
    most = max(CARDS, key=lambda card: card.memory)
    if needed_memory(memory) > most.memory:
        return f"no GPU known here holds {size_text(int(needed_memory(memory)))}; the largest is the {most.name}"
    share = math.floor(100 * largest_share(recipe, memory, most)) / 100
    return (
        f"no GPU known here holds what vLLM takes ({recipe.rollout.vllm.gpu_memory_utilization:.0%} of it) beside "
        f"{size_text(memory.resident + memory.checking)} of the learner: on the {most.name} "
        f"rollout.vllm.gpu_memory_utilization can be {share:g}"
    )
