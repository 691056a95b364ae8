"""Settings of the loss, its terms and the adapter that contradict each other."""

from __future__ import annotations

from collections.abc import Iterator

from dapo.config.problems import Problem
from dapo.config.schema import Recipe


def check_loss(recipe: Recipe) -> Iterator[Problem]:
    """Everything that is wrong with reduction, loss, clip bounds, entropy term and adapter."""
    for part in (_micro_batches, _loss_only, _clip, _entropy, _lora):
        yield from part(recipe)


def _micro_batches(r: Recipe) -> Iterator[Problem]:
    loss = r.algorithm.loss
    size = loss.micro_batch_sequences
    key = "algorithm.loss.micro_batch_sequences"
    if loss.reduction != "micro_batch_mean":
        if size is not None:
            yield Problem(
                key, f"is only read with reduction: micro_batch_mean, not {loss.reduction}; take it out", size
            )
        return
    prompts = r.learner.minibatch_prompts or r.rollout.prompts_per_step
    rows = prompts * r.rollout.group_size
    if size is None:
        yield Problem(
            key, f"micro_batch_mean is defined by its split: say how many of the {rows} responses go together"
        )
    elif rows % size:
        yield Problem(
            key,
            f"does not divide the {rows} responses of an optimiser step ({prompts} prompts x "
            f"{r.rollout.group_size}); choose a divisor",
            size,
        )


def _loss_only(r: Recipe) -> Iterator[Problem]:
    loss = r.algorithm.loss
    if loss.constant_length is not None and loss.reduction != "constant":
        yield Problem(
            "algorithm.loss.constant_length",
            f"is only read with reduction: constant, not {loss.reduction}; take it out or set the reduction",
            loss.constant_length,
        )
    named = loss.kind in ("cispo", "sapo", "clip_cov", "kl_cov")
    if named and r.algorithm.clip.dual is not None:
        move = f"{loss.kind} has no dual clip; take it out, or set loss.kind: clip"
        yield Problem("algorithm.clip.dual", move, r.algorithm.clip.dual)
    if loss.cispo_floor is not None and loss.kind != "cispo":
        yield Problem("algorithm.loss.cispo_floor", f"is only read with kind: cispo, not {loss.kind}", loss.cispo_floor)
    if loss.kind == "cispo" and (loss.cispo_floor or 0) >= loss.cispo_cap:
        yield Problem("algorithm.loss.cispo_floor", f"must be below cispo_cap = {loss.cispo_cap:g}", loss.cispo_floor)
    if named and loss.ratio == "sequence":
        yield Problem("algorithm.loss.ratio", f"{loss.kind} is defined on token ratios; use ratio: token", loss.ratio)
    if loss.kind == "clip_cov" and loss.cov_above >= loss.cov_below:
        yield Problem("algorithm.loss.cov_below", f"must be above cov_above = {loss.cov_above:g}", loss.cov_below)
    if r.algorithm.advantage.kind == "gdpo" and r.algorithm.shaping is not None:
        yield Problem("algorithm.shaping", "is not read by advantage.kind: gdpo, which sees each reward by itself")
    if r.algorithm.advantage.kind == "gdpo" and r.algorithm.kl_in_reward:
        yield Problem(
            "algorithm.kl_in_reward", "needs one reward, and advantage.kind: gdpo has several; put the KL into the loss"
        )


def _clip(r: Recipe) -> Iterator[Problem]:
    clip = r.algorithm.clip
    if r.algorithm.loss.kind not in ("clip", "clip_cov"):
        return
    if clip.low >= 1:
        yield Problem(
            "algorithm.clip.low", "the lower bound 1 - low must stay above 0: use less than 1 (0.2)", clip.low
        )
    if r.algorithm.loss.ratio == "sequence" and max(clip.low, clip.high) > 0.05:
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
    if lora.lora_dropout != 0:
        yield Problem(
            "model.lora.lora_dropout",
            "the sampler has no dropout, so the ratio would take the learner's for a change of the policy; set 0. For "
            "less overfitting lower model.lora.rank or learner.learning_rate",
            lora.lora_dropout,
        )
    if lora.target_modules == []:
        yield Problem("model.lora.target_modules", "is empty; name layers, or `all-linear`", [])
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
