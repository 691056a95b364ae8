"""Count ranks and engines from the GPUs that there are: ``learner.ranks: auto``, ``rollout.engines: auto``."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from dapo.config.check_slurm import gpus_per_option
from dapo.config.deployment import Deployment, deployment_of
from dapo.config.faults import Broken, Problem
from dapo.config.schema import Recipe
from dapo.config.settings import value_at
from dapo.system import gpu_count

_RANKS, _ENGINES = "learner.ranks", "rollout.engines"
_GPUS = {"gpus", "gpus-per-node", "gpus-per-socket", "gpus-per-task", "gres", "tres-per-node", "tres-per-task"}
_CORES = {"cpus-per-task", "cpus-per-gpu", "exclusive", "mincpus"}
"""Options of sbatch that ask for GPUs, and for cores."""
_CORES_OF_GPU = 8
"""For its rank and its engine, the verifiers and the driver."""


def count_auto(given: Mapping[str, Any]) -> tuple[dict[str, Any], list[Problem]]:
    """Return settings with a number in place of each ``auto``, and why there is none.

    A job has ``slurm.nodes`` x ``slurm.options.gpus-per-node`` GPUs, a Ray cluster ``cluster.nodes`` x
    ``cluster.gpus_per_node``, and otherwise those of this machine count. Without any GPU the number is 1. Ranks and
    engines that take turns share all of them; where they work at the same time one takes what the other leaves.
    """
    asked = [key for key in (_RANKS, _ENGINES) if value_at(given, key) == "auto"]
    if not asked:
        return dict(given), []
    total = _total(given)
    if total is None:
        move = "counts the GPUs of a cluster: give cluster.nodes and cluster.gpus_per_node, or a number here"
        return _filled(given, dict.fromkeys(asked, 1)), [Problem(key, move, "auto") for key in asked]
    engine = str(value_at(given, "rollout.engine") or "embedded")
    width = _number(given, "rollout.vllm.tensor_parallel_size") if engine == "vllm" else 1
    one = engine == "vllm_server" or ":" in engine  # servers are counted by their addresses
    apart = _number(given, "rollout.max_staleness", 0) > 0 and not one
    if apart and len(asked) == 2:
        move = (
            "ranks and engines work at the same time (rollout.max_staleness) and share no GPU: give a number to one of "
            f"{_RANKS} and {_ENGINES}; auto takes the rest"
        )
        return _filled(given, dict.fromkeys(asked, 1)), [Problem(key, move, "auto") for key in asked]
    ranks = total - apart * width * _number(given, _ENGINES)
    engines = 1 if one else (total - apart * _number(given, _RANKS)) // width
    counts = {_RANKS: ranks, _ENGINES: engines}
    problems = [
        Problem(key, f"there are {total} GPUs, and none is left for it: give the other one a lower number", "auto")
        for key in asked
        if counts[key] < 1 and total > 1
    ]
    return _filled(given, {key: max(1, counts[key]) for key in asked}), problems


def gpus_used(recipe: Recipe) -> int:
    """Return how many GPUs ranks and engines of a recipe take; servers are not counted."""
    return 0 if recipe.model.device == "cpu" else _places(recipe)


def job_needs(recipe: Recipe) -> dict[str, int]:
    """Return the options of sbatch, for one machine, that ranks and engines need and ``slurm.options`` leaves out.

    A built-in model gains nothing from a GPU, and gets one only if ``model.device`` names it.
    """
    slurm, threads, places = recipe.slurm, recipe.run.threads, _places(recipe)
    small = recipe.model.path.startswith("builtin/") and not recipe.model.device.startswith("cuda")
    gpus = gpus_per_option(slurm.options) or (0 if small else -(-gpus_used(recipe) // slurm.nodes))
    needs = {}
    if gpus and not slurm.options.keys() & _GPUS:
        needs["gpus-per-node"] = gpus
    if not slurm.options.keys() & _CORES:
        needs["cpus-per-task"] = max(gpus * max(_CORES_OF_GPU, threads), -(-places // slurm.nodes) * threads)
    return needs


def _places(recipe: Recipe) -> int:
    """Return how many ranks and engines compute at the same time."""
    found = deployment_of(recipe)
    engines = found.engines * found.engine_devices
    if found.kind in ("none", "vllm_server", "own"):
        return found.ranks
    return found.ranks + engines if found.engines_apart else max(found.ranks, engines)


def check_gpus(recipe: Recipe) -> Broken:
    """Yield a problem if a job reserves GPUs that the recipe does not use.

    A server in the job, and lines of ``slurm.setup`` that may start one, have use of their own for them.
    """
    slurm = recipe.slurm
    each = gpus_per_option(slurm.options)
    if not each or slurm.setup or Deployment(recipe).engine == "vllm_server":
        return
    total, used = slurm.nodes * each, gpus_used(recipe)
    if used < total:
        many = f" on {slurm.nodes} machines" if slurm.nodes > 1 else ""
        move = (
            f"reserves {total} GPUs{many}, and ranks and engines use {used}: set {_RANKS}: auto and {_ENGINES}: auto, "
            "which use all of them, or ask for fewer"
        )
        if recipe.model.device == "cpu":
            move = f"reserves {total} GPUs{many}, and model.device is cpu: take it out, or set model.device: auto"
        yield "slurm.options.gpus-per-node", move


def _total(given: Mapping[str, Any]) -> int | None:
    """Return the GPUs of the job, the cluster or this machine; None: a cluster of which too little is said."""
    if value_at(given, "model.device") == "cpu":
        return 1
    options = value_at(given, "slurm.options")
    if each := gpus_per_option(options if isinstance(options, Mapping) else {}):
        return _number(given, "slurm.nodes") * each
    if value_at(given, "launch.backend") == "ray" or _number(given, "slurm.nodes") > 1:
        nodes, gpus = value_at(given, "cluster.nodes"), value_at(given, "cluster.gpus_per_node")
        return nodes * gpus if isinstance(nodes, int) and isinstance(gpus, int) and nodes * gpus > 0 else None
    return max(1, gpu_count())


def _number(given: Mapping[str, Any], path: str, otherwise: int = 1) -> int:
    """Return a whole number; ``otherwise`` for anything else, which is refused later."""
    found = value_at(given, path)
    return found if isinstance(found, int) and not isinstance(found, bool) and found >= 0 else otherwise


def _filled(given: Mapping[str, Any], counts: Mapping[str, int]) -> dict[str, Any]:
    result = deepcopy(dict(given))
    for path, count in counts.items():
        section, name = path.split(".")
        result[section] = {**result[section], name: count}
    return result
