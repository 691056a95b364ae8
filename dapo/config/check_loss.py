"""Settings of the loss, its terms and the adapter that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from dapo.config.deployment import engine_kind
from dapo.config.problems import Problem
from dapo.config.schema import Recipe
from dapo.config.schema.kinds import MicroBatchMean
from dapo.config.section import Section
from dapo.config.settings import REQUIRED


def check_loss(recipe: Recipe) -> Iterator[Problem]:
    """Everything that is wrong with reduction, loss, clip bounds, entropy term and adapter."""
    for part in (_micro_batches, _kinds, _clip, _entropy, _lora):
        yield from part(recipe)


def _micro_batches(r: Recipe) -> Iterator[Problem]:
    reduction = r.algorithm.loss.reduction
    if not isinstance(reduction, MicroBatchMean):
        return
    prompts = r.learner.minibatch_prompts or r.rollout.prompts_per_step
    rows = prompts * r.rollout.group_size
    if rows % reduction.sequences:
        yield Problem(
            "algorithm.loss.reduction.sequences",
            f"does not divide the {rows} responses of an optimiser step ({prompts} prompts x "
            f"{r.rollout.group_size}); choose a divisor",
            reduction.sequences,
        )


def _kinds(r: Recipe) -> Iterator[Problem]:
    advantage = r.algorithm.advantage
    for key, wrong in r.algorithm.loss.contradictions(r.algorithm.clip):
        value = attrgetter(key)(r.algorithm)
        yield Problem(f"algorithm.{key}", wrong, REQUIRED if isinstance(value, Section) else value)
    if advantage.by_reward and r.algorithm.shaping is not None:
        yield Problem(
            "algorithm.shaping", f"is not read by advantage.kind: {advantage.kind}, which sees each reward by itself"
        )
    if advantage.by_reward and r.algorithm.kl_in_reward:
        yield Problem(
            "algorithm.kl_in_reward",
            f"needs one reward, and advantage.kind: {advantage.kind} has several; put the KL into the loss",
        )


def _clip(r: Recipe) -> Iterator[Problem]:
    clip, loss = r.algorithm.clip, r.algorithm.loss
    if clip.dual is not None and "dual" not in loss.clips:
        yield Problem(
            "algorithm.clip.dual", f"{loss.kind} has no dual clip; take it out, or set loss.kind: clip", clip.dual
        )
    if "low" in loss.clips and clip.low >= 1:
        yield Problem(
            "algorithm.clip.low", "the lower bound 1 - low must stay above 0: use less than 1 (0.2)", clip.low
        )


def _entropy(r: Recipe) -> Iterator[Problem]:
    control, start = r.algorithm.entropy_control, r.algorithm.entropy_coefficient
    where = "algorithm.entropy_control"
    if control.min >= control.max:
        yield Problem(f"{where}.max", f"must be above min = {control.min:g}", control.max)
    elif control.target is not None and not control.min <= start <= control.max:
        yield Problem(
            "algorithm.entropy_coefficient",
            f"begins outside {control.min:g} .. {control.max:g} ({where}.min and .max); change one of them",
            start,
        )


def _lora(r: Recipe) -> Iterator[Problem]:
    lora = r.model.lora
    if lora.target_modules == []:
        yield Problem("model.lora.target_modules", "is empty; name layers, or `all-linear`", [])
    if lora.merge is False and (engine_kind(r) != "vllm" or lora.modules_to_save):
        what = "lora.modules_to_save" if lora.modules_to_save else f"rollout.engine: {r.rollout.engine}"
        yield Problem("model.lora.merge", f"is false, and {what} needs merged weights; take it out", False)
    named = [] if lora.target_modules == "all-linear" else lora.target_modules
    for key, names in (("target_modules", named), ("modules_to_save", lora.modules_to_save)):
        if twice := [name for n, name in enumerate(names) if name in names[:n]]:
            yield Problem(f"model.lora.{key}", f"names {twice[0]} twice; name it once", names)
    both = [a for a in named for b in lora.modules_to_save if f".{a}".endswith(f".{b}") or f".{b}".endswith(f".{a}")]
    if both:
        yield Problem(
            "model.lora.modules_to_save",
            f"names {both[0]}, which has an adapter (model.lora.target_modules): a layer is trained whole or by an "
            "adapter; take it out of one of the lists",
            lora.modules_to_save,
        )
