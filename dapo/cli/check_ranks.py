"""Memory of a model on each rank of a learner, and the cost of publishing its weights: arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dapo.config import Recipe
from dapo.config.deployment import Deployment, deployment_of
from dapo.types.model import ModelFacts

if TYPE_CHECKING:  # numpy comes with it
    from dapo.weights.route import PublishSize


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
    return Deployment(recipe).engines * Deployment(recipe).engine_devices


def engines_apart(recipe: Recipe) -> bool:
    """Return whether engines have devices that no rank has: servers, those that work beside the learner, and on a
    cluster those that share no places with ranks."""
    elsewhere = Deployment(recipe).overlaps or Deployment(recipe).engine == "vllm_server"
    cluster = recipe.launch.backend == "ray" or recipe.slurm.nodes > 1
    return elsewhere or (cluster and not Deployment(recipe).shares_places)


def publish_lines(recipe: Recipe, facts: ModelFacts, size: int) -> Iterator[str]:
    """Yield how much each publish moves, and how long that takes.

    Args:
        recipe: of the run.
        facts: of its model.
        size: bytes of a number of the model's type.
    """
    from dapo.weights.routes import ROUTES  # imports torch

    count, deployment = _published_numbers(recipe, facts) * size, deployment_of(recipe)
    billions = f"{count / 1e9:,.1f} GB" if count >= 1e8 else f"{count / 1e6:,.1f} MB"
    engines, ranks, route = deployment.engines, deployment.ranks, deployment.route
    if route == "shared":
        if deployment.kind != "vllm":
            yield from ROUTES[route].prices(_load(recipe, count))
        elif (workers := deployment.engine_devices) > 1:
            yield f"a publish copies {billions} into the weights of {workers} vLLM workers, by this machine's memory"
        else:
            yield f"a publish copies {billions} into the weights of vLLM, within this process and without a file"
        return
    load, way = _load(recipe, count), ROUTES[route]
    whom = f"{engines} engines, each of which reads all of it" if engines > 1 else "one engine"
    writers = f", written by {load.shards} ranks at once" if ranks > 1 and way.files else ""
    yield f"a publish is a set of {billions}{writers}, for {whom}"
    yield from way.prices(load)


def publish_seconds(recipe: Recipe, facts: ModelFacts, size: int) -> float:
    """Return the seconds of a publish; 0 where the weights stay in one process. Arguments as for ``publish_lines``."""
    from dapo.weights.routes import ROUTES  # imports torch

    route = ROUTES[deployment_of(recipe).route]
    return route.seconds(_load(recipe, _published_numbers(recipe, facts) * size))


def _load(recipe: Recipe, size: int) -> PublishSize:
    """Return what a publish of ``size`` bytes moves."""
    from dapo.weights.route import PublishSize

    return PublishSize(size, recipe.learner.ranks, shards(recipe), _readers(recipe), _several_machines(recipe))


def _readers(recipe: Recipe) -> int:
    """Return the machines that read a set of weights: engines of one machine read it from its memory once it is there.

    If the number of machines is unknown, each engine counts as one.
    """
    machines = recipe.slurm.nodes if recipe.slurm.nodes > 1 else recipe.cluster.nodes or Deployment(recipe).engines
    return min(machines, Deployment(recipe).engines)


def _published_numbers(recipe: Recipe, facts: ModelFacts) -> int:
    """Return how many numbers a publish moves: the model's, or those of an adapter that engines apply themselves."""
    from dapo.run.held import trained_parameters

    return trained_parameters(recipe, facts) if Deployment(recipe).sends_adapter else facts.parameters


def _several_machines(recipe: Recipe) -> bool:
    return recipe.launch.backend == "ray" or recipe.slurm.nodes > 1 or Deployment(recipe).engine == "vllm_server"
