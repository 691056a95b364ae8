"""Memory of a model on each rank of a learner, and the cost of publishing its weights: arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dapo.config import Recipe
from dapo.config.deployment import (
    engine_count,
    engine_devices,
    engine_kind,
    is_colocated,
    overlaps,
    sends_adapter,
)
from dapo.types.model import ModelFacts
from dapo.words import counted

if TYPE_CHECKING:  # numpy comes with it
    from dapo.types.batch import Route

MEMORY = (1.7e9, 3.3e9)
"""Bytes per second written to /dev/shm and read from it, measured with 256 MiB in 64 tensors on two busy cores."""
DISK = (1.5e9, 1.5e9)
"""The same of a file system that several machines share: assumed."""
NCCL = (40e9, 200e9)
"""Bytes per second of a broadcast between machines (InfiniBand), and within one (NVLink): assumed."""
GLOO = 0.8e9
"""Of a broadcast between processors: measured with 256 MiB in 64 tensors to two processes, on two busy cores."""
DEVICE = 1.5e12
"""Of a copy within a device's memory: assumed."""
STORE = (2e9, 1.5e9)
"""Put into Ray's object store, and fetched by a machine: assumed."""

_FILES = ("folder", "object_store")


def reshards(recipe: Recipe, facts: ModelFacts) -> bool:
    """Whether a layer is freed between its forward and its backward pass."""
    from dapo.learner.sharding import KEPT_WHOLE  # imports torch

    asked = recipe.learner.reshard_after_forward
    return facts.parameters > KEPT_WHOLE if asked == "auto" else asked == "true"


def gathered_numbers(recipe: Recipe, facts: ModelFacts) -> int:
    """Numbers of others' slices that a rank has with it while it computes, at most.

    The root group (what is in no layer: tied or small embeddings and heads) is whole until the optimiser step, and so
    are layers where they are not freed. Else two layers at a time, one that computes and the next; a large embedding
    or head takes their place for a moment.
    """
    from dapo.learner.sharding import LARGE

    if not reshards(recipe, facts):
        return facts.parameters
    matrix, tied = facts.vocabulary * facts.hidden, bool(facts.fingerprint.get("tied", True))
    tables = matrix if tied else 2 * matrix
    apart = not tied and matrix >= LARGE
    two_layers = 2 * (facts.parameters - tables) // max(facts.layers, 1)
    return max(two_layers, matrix) if apart else tables + two_layers


def shards(recipe: Recipe) -> int:
    """Parts that each copy of the model is cut into."""
    return recipe.learner.ranks // recipe.learner.replicas


def devices_of_engines(recipe: Recipe) -> int:
    """Devices of all engines together, as many as each wants."""
    return engine_count(recipe) * engine_devices(recipe)


def engines_apart(recipe: Recipe) -> bool:
    """Return whether engines have devices that no rank has: servers, those that work beside the learner, and on a
    cluster those that share no places with ranks."""
    elsewhere = overlaps(recipe) or engine_kind(recipe) == "vllm_server"
    cluster = recipe.launch.backend == "ray" or recipe.slurm.nodes > 1
    return elsewhere or (cluster and not is_colocated(recipe))


def publish_lines(recipe: Recipe, facts: ModelFacts, size: int) -> Iterator[str]:
    """Yield how much each publish moves, and how long that takes.

    Args:
        recipe: of the run.
        facts: of its model.
        size: bytes of a number of the model's type.
    """
    from dapo.run.deployment import deployment_of

    count, deployment = _published_numbers(recipe, facts) * size, deployment_of(recipe)
    billions = f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
    engines, ranks, route = deployment.engines, deployment.ranks, deployment.route
    if route == "shared":
        if deployment.kind != "vllm":
            yield "a publish moves nothing between processes: the engine reads the learner's own tensors"
        elif (workers := deployment.engine_devices) > 1:
            yield f"a publish copies {billions} into the weights of {workers} vLLM workers, by this machine's memory"
        else:
            yield f"a publish copies {billions} into the weights of vLLM, within this process and without a file"
        return
    seconds = publish_seconds(recipe, facts, size)
    whom = f"{engines} engines, each of which reads all of it" if engines > 1 else "one engine"
    writers = f", written by {shards(recipe)} ranks at once" if ranks > 1 and route in _FILES else ""
    yield f"a publish is a set of {billions}{writers}, for {whom}"
    if route != "folder":
        yield _cost(recipe, route, count)
        return
    local = count / MEMORY[0] + count / MEMORY[1]
    yield f"through /dev/shm of one machine ({MEMORY[0] / 1e9:g} GB/s in, {MEMORY[1] / 1e9:g} out): {local:,.1f} s"
    if _several_machines(recipe):
        yield (
            f"through a file system that machines share ({DISK[0] / 1e9:g} GB/s in all): {seconds:,.1f} s, since "
            f"{counted(_readers(recipe), 'machine')} read it over the same network"
        )


def publish_seconds(recipe: Recipe, facts: ModelFacts, size: int) -> float:
    """Return the seconds of a publish; 0 where the weights stay in one process. Arguments as for ``publish_lines``."""
    from dapo.run.deployment import deployment_of

    count, deployment = _published_numbers(recipe, facts) * size, deployment_of(recipe)
    match deployment.route:
        case "folder" if _several_machines(recipe):
            return count / DISK[0] + count * _readers(recipe) / DISK[1]
        case "folder":
            return count / MEMORY[0] + count / MEMORY[1]
        case "broadcast":
            return count / NCCL[0 if _several_machines(recipe) else 1]
        case "ipc":
            return (count / NCCL[1] if recipe.learner.ranks > 1 else 0.0) + 2 * count / DEVICE
        case "object_store":
            return count / shards(recipe) / STORE[0] + count / STORE[1]
    return 0.0


def _readers(recipe: Recipe) -> int:
    """Return the machines that read a set of weights: engines of one machine read it from its memory once it is there.

    If the number of machines is unknown, each engine counts as one.
    """
    machines = recipe.slurm.nodes if recipe.slurm.nodes > 1 else recipe.cluster.nodes or engine_count(recipe)
    return min(machines, engine_count(recipe))


def _published_numbers(recipe: Recipe, facts: ModelFacts) -> int:
    """Return how many numbers a publish moves: the model's, or those of an adapter that engines apply themselves."""
    from dapo.run.held import trained_parameters

    return trained_parameters(recipe, facts) if sends_adapter(recipe) else facts.parameters


def _several_machines(recipe: Recipe) -> bool:
    return recipe.launch.backend == "ray" or recipe.slurm.nodes > 1 or engine_kind(recipe) == "vllm_server"


def _cost(recipe: Recipe, route: Route, count: int) -> str:
    """Seconds of a publish of ``count`` bytes by any route but a folder."""
    if route == "broadcast":
        between, within = (count / speed for speed in NCCL)
        return (
            f"by broadcast, whatever the number of engines: {between:,.1f} s between machines ({NCCL[0] / 1e9:g} GB/s "
            f"over NCCL), {within:,.1f} s within one ({NCCL[1] / 1e9:g}); between processors {count / GLOO:,.1f} s "
            f"({GLOO / 1e9:g} over gloo)"
        )
    if route == "ipc":
        gathered = count / NCCL[1] if recipe.learner.ranks > 1 else 0.0
        kept = ", and each rank holds all of it meanwhile" if recipe.learner.ranks > 1 else ""
        return f"by the memory of the device that rank and engine share: {gathered + 2 * count / DEVICE:,.2f} s{kept}"
    put, fetched = count / shards(recipe) / STORE[0], count / STORE[1]
    return (
        f"by Ray's object store ({STORE[0] / 1e9:g} GB/s into it from each rank's machine, {STORE[1] / 1e9:g} out on "
        f"each engine's): {put + fetched:,.1f} s, all machines at once"
    )
