"""Memory and time that a run takes on this machine: arithmetic, with this processor's own speed of a matrix product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from dapo.cli.check_memory import Memory, estimate_memory
from dapo.cli.check_time import MEAN_LENGTH, SPARE, step_work
from dapo.config import Recipe
from dapo.config.deployment import Deployment, deployment_of
from dapo.system import core_count, memory_size
from dapo.types.model import ModelFacts

_PROCESS = 350 * 2**20  # bytes of a process that has imported torch and transformers, measured
_REACHED = 0.7  # of the measured products' speed that decoding and learning reach (SmolLM2-135M, both precisions)
_WEIGHTS = 2**23  # numbers of the measured product's second factor: more than a core's own cache holds
_LAYER = 1.5e-4  # seconds that a layer's small operations take in each decode step, whatever its width
_UPDATE = 6e-9  # seconds of AdamW for each trained parameter, bounded by memory


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
    generate: float | None = None  # seconds of a step; None on a GPU
    learn: float | None = None
    evaluation: float | None = None  # seconds of one evaluation

    @property
    def fits(self) -> bool:
        """Whether the machine has the memory, as far as it says."""
        return self.has is None or self.memory <= self.has

    @property
    def step(self) -> float | None:
        """Seconds of a training step in which engine and learner take turns."""
        return None if self.generate is None or self.learn is None else self.generate + self.learn

    def seconds(self, recipe: Recipe) -> float | None:
        """Return the seconds of the whole run with its evaluations; None on a GPU."""
        if self.step is None or self.evaluation is None:
            return None
        return recipe.trainer.steps * self.step + evaluations(recipe) * self.evaluation


def evaluations(recipe: Recipe) -> int:
    """Return how often the recipe evaluates: at the start, every ``validation.every`` steps and at the end."""
    steps, every = recipe.trainer.steps, recipe.validation.every
    return steps // every + 1 + bool(steps % every) if every else 0


def needs_here(recipe: Recipe, facts: ModelFacts, prompts: Prompts) -> Needs:
    """Estimate what a run takes on this machine.

    On a processor the seconds are within a factor of two of those measured (SmolLM2-135M: docs/howto_memory.md), if
    nothing else runs there and responses reach half of their limit.

    Args:
        recipe: trains by reward.
        facts: of its model.
        prompts: of its data.
    """
    if runs_on_gpu(recipe):
        import torch

        memory = estimate_memory(recipe, facts, prompts.longest)
        needed = int(max(memory.learning, memory.generating) * SPARE)
        return Needs("cuda", needed, torch.cuda.get_device_properties(0).total_memory)
    model = recipe.model.model_copy(update={"device": "cpu"})
    here = recipe.model_copy(update={"model": model})
    memory = estimate_memory(here, facts, prompts.longest)
    work = step_work(here, facts, prompts.mean)
    rollout, validation, found = here.rollout, here.validation, deployment_of(here)
    cores = core_count()
    threads = min(cores, here.run.threads * max(1, found.engines))
    learning = min(cores, here.run.threads * found.ranks)
    updates = rollout.prompts_per_step // (here.learner.minibatch_prompts or rollout.prompts_per_step)
    updates *= here.learner.epochs_per_rollout
    responses = rollout.prompts_per_step * rollout.group_size
    groups = work.generated / (MEAN_LENGTH * rollout.max_response_tokens * rollout.group_size)
    answers = prompts.held_out * (validation.samples + validation.greedy)
    tokens = answers * MEAN_LENGTH * (validation.max_response_tokens or rollout.max_response_tokens)
    read = prompts.held_out * prompts.mean
    return Needs(
        "cpu",
        on_processor(here, memory),
        memory_size(),
        generate=_decoding(here, facts, work.generated, responses, groups * prompts.mean) / threads,
        learn=work.operations / _speed(here, facts, 128) / learning + updates * _updating(here, facts),
        evaluation=_decoding(here, facts, tokens, answers, read) / threads if answers else 0.0,
    )


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
    return _REACHED * _product_rate(name, facts.hidden, 1 << (min(rows, 128) - 1).bit_length())


@cache
def _product_rate(name: str, hidden: int, rows: int) -> float:
    from dapo.models.precision import product_rate

    return product_rate(name, hidden, max(1, _WEIGHTS // hidden), rows)
