"""Settings of the loss, its terms and the adapter that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.config.deployment import engine_kind
from dapo.config.problems import Problem
from dapo.config.schema import Recipe
from dapo.config.schema.kinds import Cispo, ClipCov, ClippedLoss, MicroBatchMean


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
    loss, advantage = r.algorithm.loss, r.algorithm.advantage
    if isinstance(loss, Cispo) and (loss.floor or 0) >= loss.cap:
        yield Problem("algorithm.loss.floor", f"must be below cap = {loss.cap:g}", loss.floor)
    if isinstance(loss, ClipCov) and loss.above >= loss.below:
        yield Problem("algorithm.loss.below", f"must be above {loss.above:g} (algorithm.loss.above)", loss.below)
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
    if "low" not in loss.clips:
        return
    if clip.low >= 1:
        yield Problem(
            "algorithm.clip.low", "the lower bound 1 - low must stay above 0: use less than 1 (0.2)", clip.low
        )
    if isinstance(loss, ClippedLoss) and loss.ratio == "sequence" and max(clip.low, clip.high) > 0.05:
        yield Problem(
            "algorithm.clip",
            f"bounds of {clip.low:g} / {clip.high:g} never bind on a sequence ratio, which averages over tokens; "
            "use 3e-4 / 4e-4 (algorithm.clip.low, algorithm.clip.high)",
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
