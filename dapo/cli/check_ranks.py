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


def publish_lines(recipe: Recipe, facts: ModelFacts, size: int) -> Iterator[str]:
    """Yield how much each publish moves, and how long that takes.

    Args:
        recipe: of the run.
        facts: of its model.
        size: bytes of a number of the model's type.
    """
    from dapo.weights.routes import ROUTES  # imports torch

    found, load = deployment_of(recipe), _load(recipe, facts, size)
    billions = f"{load.size / 1e9:,.1f} GB" if load.size >= 1e8 else f"{load.size / 1e6:,.1f} MB"
    engines, way = found.engines, ROUTES[found.route]
    if found.route != "shared":
        whom = f"{engines} engines, each of which reads all of it" if engines > 1 else "one engine"
        writers = f", written by {load.shards} ranks at once" if found.ranks > 1 and way.files else ""
        yield f"a publish is a set of {billions}{writers}, for {whom}"
    if found.route != "shared" or found.kind != "vllm":
        yield from way.prices(load)
    elif (workers := found.engine_devices) > 1:
        yield f"a publish copies {billions} into the weights of {workers} vLLM workers, by this machine's memory"
    else:
        yield f"a publish copies {billions} into the weights of vLLM, within this process and without a file"


def publish_seconds(recipe: Recipe, facts: ModelFacts, size: int) -> float:
    """Return the seconds of a publish; 0 where the weights stay in one process. Arguments as for ``publish_lines``."""
    from dapo.weights.routes import ROUTES  # imports torch

    return ROUTES[deployment_of(recipe).route].seconds(_load(recipe, facts, size))


def _load(recipe: Recipe, facts: ModelFacts, size: int) -> PublishSize:
    """Return what a publish moves: the model's numbers, or those of an adapter that engines apply themselves.

    Engines of one machine read a set of weights from its memory once it is there. If the number of machines is
    unknown, each engine counts as one.
    """
    from dapo.run.held import trained_parameters
    from dapo.weights.route import PublishSize

    found = Deployment(recipe)
    numbers = trained_parameters(recipe, facts) if found.sends_adapter else facts.parameters
    machines = recipe.slurm.nodes if recipe.slurm.nodes > 1 else recipe.cluster.nodes or found.engines
    several = found.several_machines or found.engine == "vllm_server"
    return PublishSize(numbers * size, found.ranks, found.shards, min(machines, found.engines), several)
