"""How a recipe's weights travel to its engines, and what of that cannot be."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dapo.config.pool import engines_on_ray, is_colocated, is_lockstep, is_pool
from dapo.config.problems import Problem
from dapo.config.schema import Recipe

if TYPE_CHECKING:  # numpy comes with it
    from dapo.types.batch import Route


def weight_route(recipe: Recipe) -> Route:
    """By which the learner's processes publish; not read where the learner is in the program's own process."""
    asked = recipe.rollout.weight_transfer
    return "folder" if asked == "auto" else asked


def check_transfer(r: Recipe) -> Iterator[Problem]:
    """A route that leads nowhere with the rest of the recipe."""
    route = r.rollout.weight_transfer
    if route in ("auto", "folder"):
        if route == "folder" and not is_pool(r) and r.learner.ranks == 1 and r.rollout.engine != "vllm_server":
            yield Problem(_KEY, "nothing travels: the engine reads the learner's own tensors; take it out", route)
        return
    if why := _nowhere(r) or _not_by(r):
        yield Problem(_KEY, f"{why}; use auto", route)


_KEY = "rollout.weight_transfer"


def _nowhere(r: Recipe) -> str:
    """Where no route leads but a folder or the learner's own tensors; "" elsewhere."""
    if r.rollout.engine == "vllm_server":
        return "a vLLM server reads new weights from a folder (rollout.server.weights_dir)"
    if not is_pool(r):
        return "the engine is in the program's own process: nothing but a folder leads there from a learner of ranks"
    if r.learner.ranks == 1 and r.rollout.max_staleness == 0:
        return (
            "a learner of one rank that takes turns with the engines is in the program's own process, and writes files"
        )
    return ""


def _not_by(r: Recipe) -> str:
    """Why this very route cannot be; "" if it can."""
    route, rollout = r.rollout.weight_transfer, r.rollout
    if route == "object_store" and not engines_on_ray(r):
        return "the object store is Ray's, and launch.backend is local"
    if route in ("broadcast", "ipc") and is_lockstep(r) and rollout.max_staleness > 0:
        return (
            "in lockstep a lost engine is led back to where it was, and beside a learner at work these weights cannot "
            "be had again"
        )
    if route == "ipc" and r.model.device == "cpu":
        return "memory of a CUDA device is lent, and model.device is cpu"
    if route == "ipc" and r.launch.backend == "ray" and not is_colocated(r):
        return "rank and engine have to share a device (cluster.colocate), and here each has its own"
    if route == "broadcast" and r.model.device.startswith("cuda") and r.launch.backend == "ray" and is_colocated(r):
        return "NCCL wants a device for each member, and here rank and engine share one (cluster.colocate)"
    return ""
