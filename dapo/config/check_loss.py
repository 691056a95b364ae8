"""Settings of the loss, its terms and the adapter that contradict each other."""

from __future__ import annotations

from dapo.config.deployment import Deployment
from dapo.config.faults import Broken
from dapo.config.schema import Recipe
from dapo.config.schema.kinds import MicroBatchMean


def _micro_batches(r: Recipe) -> Broken:
    reduction = r.algorithm.loss.reduction
    prompts, size = r.learner.minibatch_prompts or r.rollout.prompts_per_step, r.rollout.group_size
    if isinstance(reduction, MicroBatchMean) and prompts * size % reduction.sequences:
        rows = f"{prompts * size} responses of an optimiser step ({prompts} prompts x {size})"
        yield "algorithm.loss.reduction.sequences", f"does not divide the {rows}; choose a divisor"


def _clip(r: Recipe) -> Broken:
    clip, loss = r.algorithm.clip, r.algorithm.loss
    for key, wrong in loss.contradictions(clip):
        yield f"algorithm.{key}", wrong
    if clip.dual is not None and "dual" not in loss.clips:
        yield "algorithm.clip.dual", f"{loss.kind} has no dual clip; take it out, or set loss.kind: clip"
    if "low" in loss.clips and clip.low >= 1:
        yield "algorithm.clip.low", "the lower bound 1 - low must stay above 0: use less than 1 (0.2)"


def _entropy(r: Recipe) -> Broken:
    control, start = r.algorithm.entropy_control, r.algorithm.entropy_coefficient
    where = "algorithm.entropy_control"
    if control.min >= control.max:
        yield f"{where}.max", f"must be above min = {control.min:g}"
    elif control.target is not None and not control.min <= start <= control.max:
        bounds = f"{control.min:g} .. {control.max:g} ({where}.min and .max)"
        yield "algorithm.entropy_coefficient", f"begins outside {bounds}; change one of them"


def _lora(r: Recipe) -> Broken:
    lora = r.model.lora
    if lora.target_modules == []:
        yield "model.lora.target_modules", "is empty; name layers, or `all-linear`"
    if lora.merge is False and (Deployment(r).engine != "vllm" or lora.modules_to_save):
        what = "lora.modules_to_save" if lora.modules_to_save else f"rollout.engine: {r.rollout.engine}"
        yield "model.lora.merge", f"is false, and {what} needs merged weights; take it out"
    named = [] if lora.target_modules == "all-linear" else lora.target_modules
    for key, names in (("target_modules", named), ("modules_to_save", lora.modules_to_save)):
        if twice := [name for n, name in enumerate(names) if name in names[:n]]:
            yield f"model.lora.{key}", f"names {twice[0]} twice; name it once"
    both = [a for a in named for b in lora.modules_to_save if f".{a}".endswith(f".{b}") or f".{b}".endswith(f".{a}")]
    if both:
        yield (
            "model.lora.modules_to_save",
            f"names {both[0]}, which has an adapter (model.lora.target_modules): a layer is trained whole or by an "
            "adapter; take it out of one of the lists",
        )


RULES = (_micro_batches, _clip, _entropy, _lora)
