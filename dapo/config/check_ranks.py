"""What is wrong with a learner over ranks, across its settings."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.config.problems import Problem
from dapo.config.schema import Recipe


def check_ranks(r: Recipe) -> Iterator[Problem]:
    """Settings that nothing would read, and those that ranks cannot keep."""
    learner = r.learner
    if learner.ranks % learner.replicas:
        yield Problem(
            "learner.replicas",
            f"does not divide learner.ranks = {learner.ranks}: each copy of the model is cut over ranks / replicas",
            learner.replicas,
        )
    if learner.ranks == 1:
        for key, value, given in (
            ("learner.reshard_after_forward", learner.reshard_after_forward, learner.reshard_after_forward != "auto"),
            ("learner.cpu_offload", True, learner.cpu_offload),
        ):
            if given:
                yield Problem(key, "is only read with learner.ranks above 1; take it out, or set learner.ranks", value)
        return
    if r.rollout.engine == "generate" or ":" in r.rollout.engine:
        move = "computes with the learner's own tensors, which lie in other processes with learner.ranks above 1; "
        yield Problem("rollout.engine", f"{move}use embedded", r.rollout.engine)
    if learner.cpu_offload and r.model.device == "cpu":
        yield Problem("learner.cpu_offload", "moves slices away from a CUDA device; model.device is cpu", True)
    if ":" in r.model.device:
        move = "names one device, and every rank takes one of its own: use cuda, and CUDA_VISIBLE_DEVICES to choose"
        yield Problem("model.device", move, r.model.device)
