"""Demands of mixture-of-experts settings on the rest of a recipe."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.config.deployment import engine_kind
from dapo.config.problems import Problem
from dapo.config.schema import Recipe

RECORDING = ("embedded", "vllm")
"""Engines that can give the experts of each token."""


def check_experts(r: Recipe, ratio_against: str) -> Iterator[Problem]:
    """Refuse routers that have nothing to repeat.

    Args:
        r: the recipe.
        ratio_against: whose log-probabilities the ratio runs against.
    """
    replay, key = r.learner.router_replay, "learner.router_replay"
    if replay == "off":
        return
    if r.run.stage == "sft":
        yield Problem(key, "repeats what a rollout chose, and supervised training has none; set it off", replay)
    elif replay == "sampler" and engine_kind(r) not in RECORDING:
        yield Problem(
            key,
            f"needs the experts of each token, which rollout.engine = {r.rollout.engine} does not give; set "
            f"rollout.engine to {' or '.join(RECORDING)}, or {key}: learner",
            replay,
        )
    elif replay == "learner" and ratio_against != "learner":
        yield Problem(
            key,
            "repeats the passes that compute the old log-probabilities, and this run takes those of the engine; set "
            f"algorithm.old_logprobs: learner, or {key}: sampler",
            replay,
        )
    elif replay == "learner" and _rows_move(r):
        yield Problem(
            key,
            f"keeps choices on the rank that made them, and with learner.epochs_per_rollout = "
            f"{r.learner.epochs_per_rollout} and several minibatches later passes take rows to other ranks; set "
            f"learner.minibatch_prompts: null, or {key}: sampler",
            replay,
        )


def _rows_move(r: Recipe) -> bool:
    mini = r.learner.minibatch_prompts
    several = mini is not None and mini < r.rollout.prompts_per_step
    return r.learner.ranks > 1 and r.learner.epochs_per_rollout > 1 and several
