"""Memory and time that a run takes on this machine: arithmetic, with this processor's own speed of a matrix product."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from dapo.cli.check_memory import Memory, estimate_memory, size_text
from dapo.cli.check_time import KEPT, MEAN_LENGTH, needed_memory, step_work
from dapo.config import Recipe
from dapo.config.check_sft import supervised
from dapo.config.deployment import Deployment, deployment_of
from dapo.observe.text import span
from dapo.system import core_count, memory_size
from dapo.types.model import ModelFacts
from dapo.words import counted

_PROCESS = 350 * 2**20  # bytes of a process that has imported torch and transformers, measured
_REACHED = {"float32": 0.9, "medium": 0.75, "bfloat16": 0.75}
"""Share of a layer's product's speed that decoding and learning reach, by precision, measured on SmolLM2-135M."""
_WEIGHTS = 2**23  # the most numbers of the measured product's second factor
_LAYER = 1.5e-4  # seconds that a layer's small operations take in each decode step, whatever its width
_UPDATE = 6e-9  # seconds of AdamW for each trained parameter, bounded by memory

WORTH_MEASURING = 10_000_000  # parameters: below, other things than products take most of the time
LONG = 24 * 3600.0  # seconds above which a run on a processor is not called good
NEAR = 0.8  # of the memory: an estimate above it is doubted


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts of a run: what the estimates need of its data."""

    mean: float  # tokens of a training prompt
    longest: int  # tokens
    held_out: int = 0  # problems of one evaluation


@dataclass(frozen=True, slots=True)
class Needs:
    """Memory and time of a run on this machine, estimated."""

    device: str  # "cpu" or "cuda", where the run would compute here
    memory: int  # bytes at the peak: of all its processes on a CPU, of one device on a GPU
    has: int | None  # bytes of the machine's memory or of its GPU; None: the system does not say
    generate: float | None = None  # seconds of a step; None on a GPU, and of a small model
    learn: float | None = None
    evaluation: float | None = None  # seconds of one evaluation
    steps: int | None = None  # of a supervised run; None: trainer.steps
    overlaps: bool = False  # engines generate while the learner works
    full: int = 0  # bytes of ``memory`` that are taken only if all responses reach their limit at once

    @property
    def fits(self) -> bool:
        """Whether the machine has the memory, as far as it says."""
        return self.has is None or self.memory <= self.has

    @property
    def step(self) -> float | None:
        """Seconds of a training step; None: not estimated."""
        if self.generate is None or self.learn is None:
            return None
        return max(self.generate, self.learn) if self.overlaps else self.generate + self.learn

    def seconds(self, recipe: Recipe) -> float | None:
        """Return the seconds of the whole run with its evaluations; None: not estimated."""
        if self.step is None or self.evaluation is None:
            return None
        return (self.steps or recipe.trainer.steps) * self.step + evaluations(recipe) * self.evaluation


@dataclass(slots=True)
class Fit:
    """Whether a run fits this machine, in lines."""

    lines: list[str] = field(default_factory=list)  # memory and hours here
    doubts: list[str] = field(default_factory=list)
    grave: list[str] = field(default_factory=list)  # for which the run is not called good
    refusals: list[str] = field(default_factory=list)  # why this machine does not hold it
    numbers: dict[str, float | None] = field(default_factory=dict)  # of the lines


@dataclass(frozen=True, slots=True)
class Looked:
    """Findings of a check: the recipe's model, and whether its run fits this machine."""

    facts: ModelFacts
    fit: Fit
    held_out: int = 0  # problems of an evaluation
    forms: Mapping[str, str] = field(default_factory=dict)  # how a gold answer is written, by source


def evaluations(recipe: Recipe) -> int:
    """Return how often the recipe evaluates: at the start, every ``validation.every`` steps and at the end."""
    steps, every = recipe.trainer.steps, recipe.validation.every
    return steps // every + 1 + bool(steps % every) if every else 0


def needs_here(recipe: Recipe, facts: ModelFacts, prompts: Prompts, steps: int | None = None) -> Needs:
    """Estimate what a run takes on this machine.

    On a processor the seconds are within a factor of two of those measured (SmolLM2-135M: docs/howto_memory.md), if
    nothing else runs there and responses reach half of their limit.

    Args:
        recipe: of the run.
        facts: of its model.
        prompts: of its data, or the examples of a supervised run.
        steps: of a supervised run; None: it trains by reward.
    """
    given = recipe if steps is None else supervised(recipe, steps)
    if runs_on_gpu(recipe):
        import torch

        needed = int(needed_memory(estimate_memory(given, facts, prompts.longest)))
        return Needs("cuda", needed, torch.cuda.get_device_properties(0).total_memory)
    here, found = on_cpu(given), deployment_of(given)
    memory = estimate_memory(here, facts, prompts.longest)
    held = on_processor(here, memory)
    without = replace(memory, cache=0, held=max(0, memory.held - memory.cache))
    full = held - on_processor(here, without)
    needs = Needs("cpu", held, memory_size(), steps=steps, overlaps=found.overlaps, full=full)
    if facts.parameters < WORTH_MEASURING:
        return needs
    computing = _speed(here, facts, 128) * min(core_count(), here.run.threads * found.ranks)
    if steps is not None:
        learn = 6.0 * _computing(facts) * recipe.sft.batch_size * prompts.mean / computing + _updating(here, facts)
        return replace(needs, generate=0.0, learn=learn, evaluation=0.0)
    work, rollout, validation = step_work(here, facts, prompts.mean), here.rollout, here.validation
    threads = min(core_count(), here.run.threads * max(1, found.engines))
    updates = rollout.prompts_per_step // (here.learner.minibatch_prompts or rollout.prompts_per_step)
    updates *= here.learner.epochs_per_rollout
    responses = rollout.prompts_per_step * rollout.group_size
    read = work.generated / (MEAN_LENGTH * rollout.max_response_tokens * rollout.group_size) * prompts.mean
    answers = prompts.held_out * (validation.samples + validation.greedy)
    tokens = answers * MEAN_LENGTH * (validation.max_response_tokens or rollout.max_response_tokens)
    evaluated = _decoding(here, facts, tokens, answers, prompts.held_out * prompts.mean) if answers else 0.0
    return replace(
        needs,
        generate=_decoding(here, facts, work.generated, responses, read) / threads,
        learn=work.operations / computing + updates * _updating(here, facts),
        evaluation=evaluated / threads,
    )


def judge(recipe: Recipe, needs: Needs) -> Fit:
    """Compare what a run takes with what this machine has.

    Args:
        recipe: of the run.
        needs: its estimate here.
    """
    fit, found = Fit(), deployment_of(recipe)
    place = "GPU memory" if needs.device == "cuda" else "memory"
    used, has = size_text(needs.memory), "an unknown size" if needs.has is None else size_text(needs.has)
    fit.lines.append(f"about {used} of {has} of {place}, estimated")
    fit.numbers |= {"memory_bytes": needs.memory, "memory_bytes_here": needs.has}
    rows = _rows(recipe) * recipe.learner.context_parallel
    if found.ranks > rows:
        fit.grave.append(
            f"learner.ranks is {found.ranks}, and an optimizer step has {counted(_rows(recipe), 'response')}: the "
            f"other ranks would never have one. Set learner.ranks to at most {rows}"
        )
    if needs.has is not None and needs.memory - needs.full <= needs.has < needs.memory:
        fit.grave.append(
            f"it takes up to {used} of {place} if all responses of a step reach their limit, and this machine has "
            f"{has}: a lower rollout.slots lets fewer decode at once"
        )
    elif not needs.fits:
        here = "this machine" if needs.device == "cuda" else "this machine, without a GPU,"
        fit.refusals.append(f"it takes about {used} of {place}, and {here} has {has}: {_smaller(recipe, needs)}")
        return fit
    elif needs.has is not None and needs.memory > NEAR * needs.has:
        fit.doubts.append(f"it takes about {used} of {has} of {place}, by an estimate: {_smaller(recipe, needs)}")
    if needs.device == "cpu":
        fit.grave += _crowded(recipe, found)
    if needs.step is None:
        return fit
    whole, times = needs.seconds(recipe), evaluations(recipe) if needs.evaluation else 0
    assert whole is not None
    fit.numbers |= {"step_seconds": needs.step, "hours": whole / 3600}
    steps, parts, assumed = counted(needs.steps or recipe.trainer.steps, "step"), "", ""
    if needs.generate:
        parts = f" ({span(needs.generate)} to generate, {span(needs.learn)} to learn)"
        assumed = f"responses reach {MEAN_LENGTH:.0%} of their limit, {KEPT:.0%} of the groups are kept and "
    told = f" and {counted(times, 'evaluation')} of {span(needs.evaluation)}" if times else ""
    fit.lines.append(
        f"a step about {span(needs.step)}{parts}, {steps}{told} in about {span(whole)}: within a factor of two, if "
        f"{assumed}nothing else runs here"
    )
    if whole > LONG:
        fit.grave.append(
            f"it takes about {span(whole)} on this processor: fewer trainer.steps, prompts (rollout.prompts_per_step) "
            "or tokens (rollout.max_response_tokens), a smaller model, or a GPU"
        )
    return fit


def _smaller(recipe: Recipe, needs: Needs) -> str:
    """Return the settings that make a run smaller, those of the largest part first."""
    if recipe.learner.ranks > 1 and needs.device == "cpu":
        return "fewer learner.ranks, since each holds layers, gradients and a process of its own (docs/howto_memory.md)"
    if recipe.rollout.engines > 1 and needs.device == "cpu" and recipe.run.stage != "sft":
        return "fewer rollout.engines, since each holds the model in a process of its own (docs/howto_memory.md)"
    cache = "" if recipe.run.stage == "sft" else " or rollout.slots"
    return (
        f"a lower learner.microbatch_tokens{cache}, model.activation_checkpointing=full, model.lora.rank=16 "
        "or a smaller model (docs/howto_memory.md)"
    )


def _crowded(recipe: Recipe, found: Deployment) -> Iterator[str]:
    """Yield that a processor has fewer cores than the processes of a run keep busy at once."""
    engines = len(found.engine_hosts) if found.transport == "processes" else 1
    busy = found.ranks + engines if found.overlaps else max(found.ranks, engines)
    cores, threads = core_count(), recipe.run.threads
    if busy > 1 and busy * threads > cores:
        each = "" if threads == 1 else f" of {threads} threads (run.threads)"
        yield (
            f"{busy} processes{each} compute at once (learner.ranks is {found.ranks}, rollout.engines {engines}), and "
            f"this machine has {counted(cores, 'core')}: they would wait for each other; set both to what it has"
        )


def _rows(recipe: Recipe) -> int:
    """Return the rows of one optimizer step."""
    if recipe.run.stage == "sft":
        return recipe.sft.batch_size
    game = recipe.environment
    turns = game.max_turns if game.kind is not None and game.rows == "turns" else 1
    return (recipe.learner.minibatch_prompts or recipe.rollout.prompts_per_step) * recipe.rollout.group_size * turns


def on_cpu(recipe: Recipe) -> Recipe:
    """Return the recipe with ``model.device: cpu``."""
    return recipe.model_copy(update={"model": recipe.model.model_copy(update={"device": "cpu"})})


def no_gpu(recipe: Recipe) -> bool:
    """Return whether the recipe names a GPU, and torch sees none here."""
    import torch

    return recipe.model.device.startswith("cuda") and not torch.cuda.is_available()


def runs_on_gpu(recipe: Recipe) -> bool:
    """Return whether the recipe's run would compute on a GPU of this machine."""
    import torch

    return recipe.model.device != "cpu" and torch.cuda.is_available()


def on_processor(recipe: Recipe, memory: Memory) -> int:
    """Return the bytes of all processes of a run on this machine's processor.

    Args:
        recipe: of the run.
        memory: its estimate with ``model.device: cpu``: of one rank, and of one engine.
    """
    found = deployment_of(recipe)
    elsewhere = len({"driver", *found.learner_hosts, *found.engine_hosts})
    if found.ranks == 1:
        return memory.total + elsewhere * _PROCESS
    devices = found.engines * found.engine_devices * (found.kind != "vllm_server")
    engines = devices * (memory.engine + memory.cache)
    return found.ranks * (memory.learning - memory.held) + engines + elsewhere * _PROCESS


def _decoding(recipe: Recipe, facts: ModelFacts, tokens: float, rows: float, read: float) -> float:
    """Return the seconds of one thread that generate ``tokens`` of ``rows`` responses, and read prompts of ``read``."""
    slots = Deployment(recipe).slots
    together = max(1.0, min(rows, sum(number or rows for number in slots)) / len(slots))
    products = (
        2.0 * _computing(facts) * (tokens / _speed(recipe, facts, round(together)) + read / _speed(recipe, facts, 128))
    )
    return products + tokens / together * facts.layers * _LAYER


def _computing(facts: ModelFacts) -> int:
    """Return the numbers of the weights that a token is multiplied with."""
    tied = facts.fingerprint.get("tied", True)
    return facts.active - (0 if tied else facts.vocabulary * facts.hidden)


def _updating(recipe: Recipe, facts: ModelFacts) -> float:
    """Return the seconds of an optimizer step beside its passes."""
    from dapo.run.held import trained_parameters

    return trained_parameters(recipe, facts) * _UPDATE / deployment_of(recipe).shards


def _speed(recipe: Recipe, facts: ModelFacts, rows: int) -> float:
    """Return the operations per second that a thread of this machine reaches with so many rows at once."""
    from dapo.models.precision import precision_of

    name = precision_of(recipe.model.dtype, recipe.model.matmul_precision)
    outer = max(1, min(2 * facts.ffn, _WEIGHTS // facts.hidden))
    return _REACHED[name] * _product_rate(name, facts.hidden, outer, 1 << (min(rows, 128) - 1).bit_length())


@cache
def _product_rate(name: str, inner: int, outer: int, rows: int) -> float:
    from dapo.models.precision import product_rate

    return product_rate(name, inner, outer, rows)
