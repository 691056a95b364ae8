"""Consequences of ``rollout.max_staleness`` where the recipe leaves them open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

from dapo.config.deployment import Deployment
from dapo.config.faults import Broken
from dapo.config.schema import DynamicSampling, Recipe


def follow_staleness(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with the age limit and the work ahead that S = ``rollout.max_staleness`` implies, unless it sets them.

    ``max_age`` becomes S: a larger one would break the promise. ``lookahead`` becomes S - 1/2 from S = 2 on, so that
    the engines do not run dry; at S = 1 there is space for one step's groups, whatever it says.
    """
    result = deepcopy(dict(given))
    rollout = result.get("rollout")
    limit = rollout.get("max_staleness", 0) if isinstance(rollout, dict) else 0
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
        return result
    here: Any = result
    for name in ("algorithm", "dynamic_sampling"):
        here = here.setdefault(name, {}) if isinstance(here, dict) else None
    if isinstance(here, dict):
        here.setdefault("max_age", limit)
        if limit > 1:
            here.setdefault("lookahead", limit - 0.5)
    return result


def followers(old: Recipe, preset: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return the settings of ``old`` that follow ``rollout.max_staleness`` from its old value to ``limit``.

    A setting follows if it has the value that the old one implies. Without staleness ``overlap_turns`` goes.

    Args:
        old: the recipe of a run, in which every setting has a value.
        preset: the settings of its preset.
        limit: the new ``rollout.max_staleness``.

    Returns:
        New values by path.
    """
    before, after = (_implied(preset, one) for one in (old.rollout.max_staleness, limit))
    sampling = old.algorithm.dynamic_sampling
    found: dict[str, Any] = {
        f"algorithm.dynamic_sampling.{name}": after[name]
        for name in before
        if getattr(sampling, name) == before[name] != after[name]
    }
    if limit == 0 and old.rollout.overlap_turns is not None:
        found["rollout.overlap_turns"] = None
    return found


def _implied(preset: Mapping[str, Any], limit: int) -> dict[str, Any]:
    """Return ``max_age`` and ``lookahead`` of a recipe that sets neither."""
    given = follow_staleness({**preset, "rollout": {"max_staleness": limit}})
    sampling = DynamicSampling.model_validate(given.get("algorithm", {}).get("dynamic_sampling", {}))
    return {"max_age": sampling.max_age, "lookahead": sampling.lookahead}


def keeps_old_cache(recipe: Recipe) -> bool:
    """Return whether responses go on behind keys and values of earlier weights."""
    found = Deployment(recipe)
    return found.engine_facts.ours and found.overlaps and not recipe.rollout.embedded.recompute_cache


def check_staleness(r: Recipe) -> Broken:
    """Yield settings that contradict generation during learning."""
    limit, sampling = r.rollout.max_staleness, r.algorithm.dynamic_sampling
    yield from _interpolated(r)
    if not limit:
        return
    if sampling.max_age > limit:
        yield (
            "algorithm.dynamic_sampling.max_age",
            f"is above rollout.max_staleness = {limit}, the age that no trained token may exceed; set it to {limit} or "
            f"less (algorithm.dynamic_sampling.max_age={limit})",
        )
    if r.rollout.lockstep and r.rollout.overlap_turns is None:
        yield (
            "rollout.lockstep",
            "repeats a run only if no clock decides how long engines work while the learner does: set "
            "rollout.overlap_turns too, or take it out",
        )
    if Deployment(r).engine == "own":
        move = "computes with the learner's own tensors, so it cannot go on while they change; use embedded or vllm"
        yield "rollout.engine", move
    if Deployment(r).engine == "generate":
        yield "rollout.engine", "runs whole batches, with no response under way between; use embedded"


def _interpolated(r: Recipe) -> Broken:
    """Interpolation begins at age 2."""
    sampling = r.algorithm.dynamic_sampling
    if r.algorithm.old_logprobs != "interpolated":
        return
    kept = sampling.mode == "filter" and "carry" in (sampling.surplus, sampling.unfinished)
    carries = Deployment(r).overlaps or kept
    if not carries or sampling.max_age < 2:
        why = f"algorithm.dynamic_sampling.max_age = {sampling.max_age}" if carries else "nothing is carried over"
        yield (
            "algorithm.old_logprobs",
            f"is `sampler` in every token of this run: only ages of 2 and more are interpolated, and {why}; set "
            "sampler, or rollout.max_staleness=2",
        )
    if r.learner.epochs_per_rollout > 1:
        yield (
            "learner.epochs_per_rollout",
            "needs old log-probabilities from before the first of all passes, and algorithm.old_logprobs: interpolated "
            "follows the weights of each optimiser step; set algorithm.old_logprobs=sampler or learner, or use 1",
        )


def staleness_warnings(r: Recipe) -> Iterator[str]:
    """Yield advice on a recipe that generates during learning."""
    limit, sampling = r.rollout.max_staleness, r.algorithm.dynamic_sampling
    if limit == 1 and sampling.mode == "filter":
        yield (
            "rollout.max_staleness = 1 waits in every step for every group that was begun: engines idle while the "
            "last responses end. 2 is recommended; 0 carries over and never waits"
        )
    size, epochs = r.learner.minibatch_prompts, r.learner.epochs_per_rollout
    several = {
        f"learner.minibatch_prompts = {size}": size is not None and size < r.rollout.prompts_per_step,
        f"learner.epochs_per_rollout = {epochs}": epochs > 1,
    }
    if limit and any(several.values()):
        yield (
            f"rollout.max_staleness = {limit} beside {' and '.join(name for name, on in several.items() if on)}: the "
            "last minibatch of a step is further from the weights that sampled it than the age says (by the optimiser "
            "steps before it)"
        )
