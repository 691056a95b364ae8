"""Objects from sections of a recipe: one small function per object."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from transformers.utils.logging import disable_progress_bar

from dapo.algorithms.advantages import decoupled_advantages, group_advantages
from dapo.algorithms.correction import importance_correction
from dapo.algorithms.covariance import covariance_marks
from dapo.algorithms.hook_checks import AdvantageHook, KeepHook, LossHook, ShapingHook
from dapo.algorithms.keep import judge_group
from dapo.algorithms.losses import imitation_loss
from dapo.algorithms.objective import (
    Objective,
    cispo_objective,
    clip_cov_objective,
    clip_objective,
    kl_cov_objective,
    sapo_objective,
    with_terms,
)
from dapo.algorithms.reduction import loss_weights
from dapo.algorithms.shaping import shape_rewards
from dapo.config.checks import (
    correction_kind,
    kl_in_loss,
    kl_in_reward,
    penalty_interval,
    ratio_against,
    schedule_steps,
)
from dapo.config.schema import Model, Recipe
from dapo.errors import RecipeError
from dapo.hooks import load
from dapo.learner.determinism import reserve_workspace
from dapo.loop.algorithm import LENGTH_PENALTY, Algorithm, Float64
from dapo.loop.entropy import EntropyControl
from dapo.loop.schedule import Schedule
from dapo.models.builtin import cache_folder, check_builtin_name, ensure_builtin_model, find_builtin_model, is_builtin
from dapo.models.facts import read_facts
from dapo.models.load import check_configuration, check_files, find_device, load_model
from dapo.models.loaded import LoadedModel
from dapo.models.tiny import make_word_tokenizer
from dapo.models.tokenizer import load_tokenizer
from dapo.observe.console import Console
from dapo.types.batch import BoolArray, FloatArray, IntArray, Row
from dapo.types.model import ModelFacts
from dapo.types.seeds import ADAPTER, MARKS, derive_seed

WARMUP_PERCENT = 100
CheckedHook = TypeVar("CheckedHook", KeepHook, ShapingHook, AdvantageHook)


def load_hook(name: str, setting: str) -> Callable[..., Any]:
    """The user's function ``package.module:function``; the working directory is importable.

    Raises:
        RecipeError: no such module or function.
    """
    try:
        found = load(name)
    except (ImportError, AttributeError) as error:
        raise RecipeError(
            f"{setting}: cannot load {name!r} ({type(error).__name__}: {error}). Give package.module:function; modules "
            "are looked up in the working directory and among installed packages."
        ) from None
    if not callable(found) and not isinstance(found, Objective):
        raise RecipeError(f"{setting}: {name!r} is a {type(found).__name__}, expected a function")
    return found  # type: ignore[no-any-return]


def _hook(kind: type[CheckedHook], name: str, setting: str) -> CheckedHook:
    """Load a function of the user's with the check of what it returns before it."""
    return kind(load_hook(name, setting), setting, name)


def make_algorithm(recipe: Recipe) -> Algorithm:
    """Return the recipe's algorithm: its functions, bound to their settings, and its own state at the start."""
    a = recipe.algorithm
    sampling = a.dynamic_sampling
    judge = partial(
        judge_group,
        metric_is_accuracy=sampling.metric == "accuracy",
        correct_at=sampling.correct_at,
        tolerance=sampling.tolerance,
        band=sampling.band,
    )
    advantages: Callable[..., Any] = partial(
        group_advantages,
        baseline=a.advantage.baseline,
        scale=a.advantage.scale,
        ddof=a.advantage.ddof,
        eps=a.advantage.eps,
    )
    if a.advantage.kind == "gdpo":
        advantages = make_decoupled(recipe)
    elif a.advantage.kind != "group":
        advantages = _hook(AdvantageHook, a.advantage.kind, "algorithm.advantage.kind")
    return Algorithm(
        judge=_hook(KeepHook, sampling.keep, "algorithm.dynamic_sampling.keep") if sampling.keep else judge,
        shape=_hook(ShapingHook, a.shaping, "algorithm.shaping") if a.shaping else make_shaping(recipe),
        advantages=advantages,
        loss_weights=make_loss_weights(recipe),
        metric=sampling.metric,
        truncated_vote=not a.overlong_filtering if a.truncated_vote is None else a.truncated_vote,
        overlong_filtering=a.overlong_filtering,
        source_range=None if a.shaping or not a.reward_scaling.enabled else _source_range(recipe),
        marks=make_marks(recipe),
        needs_reference=needs_reference(recipe),
        kl_in_reward=kl_in_reward(recipe),
        ratio_against=ratio_against(recipe),
        refresh_every=a.reference.refresh_every,
        minibatch_prompts=recipe.learner.minibatch_prompts,
        entropy=make_entropy_control(recipe),
    )


def make_entropy_control(recipe: Recipe) -> EntropyControl:
    """Return the coefficient of the entropy term, which is fixed or adapts."""
    control = recipe.algorithm.entropy_control
    return EntropyControl(recipe.algorithm.entropy_coefficient, control.target, control.delta, control.min, control.max)


def make_decoupled(recipe: Recipe) -> Callable[..., list[Float64]]:
    """GDPO: every reward with its weight, and the length penalty, where there is one, as one more."""
    a = recipe.algorithm
    weights = {reward.name: reward.weight for reward in recipe.rewards if reward.weight}
    if a.overlong_punishment.enabled and a.overlong_punishment.factor:
        weights[LENGTH_PENALTY] = a.overlong_punishment.factor

    def advantages(
        rewards_PG: list[Float64], voters_PG: list[BoolArray], parts_PG: list[dict[str, Float64]]
    ) -> list[Float64]:
        return decoupled_advantages(parts_PG, voters_PG, weights=weights, ddof=a.advantage.ddof, eps=a.advantage.eps)

    return advantages


def make_marks(recipe: Recipe) -> Callable[[Sequence[Row]], list[BoolArray]] | None:
    """Which tokens of an optimiser step the loss treats apart; None for losses that treat them alike."""
    loss, seed = recipe.algorithm.loss, recipe.run.seed
    if loss.kind not in ("clip_cov", "kl_cov"):
        return None
    kind: Literal["clip_cov", "kl_cov"] = "clip_cov" if loss.kind == "clip_cov" else "kl_cov"

    def marks(rows: Sequence[Row]) -> list[BoolArray]:
        seeds = [derive_seed(seed, MARKS, row.group, row.sample) for row in rows]
        return covariance_marks(
            [row.sampler_logprobs for row in rows],
            [float(row.advantage) for row in rows],
            [row.loss_mask for row in rows],
            kind=kind,
            share=loss.cov_share,
            above=loss.cov_above,
            below=loss.cov_below,
            draws_R=[np.random.default_rng(s).random(len(r.token_ids)) for s, r in zip(seeds, rows, strict=True)],
        )

    return marks


def make_shaping(recipe: Recipe) -> Callable[[Float64, IntArray, BoolArray], tuple[Float64, Float64]]:
    """Scale, then length penalty (algorithm.md section 4)."""
    scaling, punishment = recipe.algorithm.reward_scaling, recipe.algorithm.overlong_punishment
    max_length, cache_length = penalty_interval(recipe)
    return partial(
        shape_rewards,
        source=_source_range(recipe) if scaling.enabled else None,
        target=(scaling.target_min, scaling.target_max),
        max_length=max_length if punishment.enabled else None,
        cache_length=cache_length,
        factor=punishment.factor,
    )


def _source_range(recipe: Recipe) -> tuple[float, float]:
    scaling = recipe.algorithm.reward_scaling
    return scaling.source_min, scaling.source_max


def make_loss_weights(recipe: Recipe) -> Callable[[list[BoolArray], IntArray], FloatArray]:
    """Return the reduction as a function of loss masks and groups."""
    loss = recipe.algorithm.loss

    def weights(masks: list[BoolArray], groups: IntArray) -> FloatArray:
        micro_batches = None
        if loss.micro_batch_sequences:
            size = loss.micro_batch_sequences
            micro_batches = [list(range(i, min(i + size, len(masks)))) for i in range(0, len(masks), size)]
        return loss_weights(
            masks,
            groups,
            loss.reduction,
            constant_length=loss.constant_length or recipe.rollout.max_response_tokens,
            micro_batches=micro_batches,
            micro_batch_weighted=loss.micro_batch_weighted,
        )

    return weights


def make_correction(recipe: Recipe) -> Callable[[FloatArray, FloatArray, BoolArray], FloatArray | None] | None:
    """Importance correction against the sampler; None where the ratio runs against the sampler itself."""
    settings = recipe.algorithm.correction
    kind = correction_kind(recipe)
    if recipe.run.stage == "sft" or ratio_against(recipe) == "sampler" or kind in ("none", "report"):
        return None

    def correction(learner: FloatArray, sampler: FloatArray, mask: BoolArray) -> FloatArray | None:
        return importance_correction(
            learner,
            sampler,
            kind=kind,
            cap=settings.cap,
            floor=settings.floor,
            token_cap=settings.token_cap,
            sequence_cap=settings.sequence_cap,
            loss_mask=mask,
        )

    return correction


def make_objective(recipe: Recipe) -> Objective:
    """The loss and its terms, with what is to be known about them. A plain function of the user's is taken to need
    nothing."""
    if recipe.run.stage == "sft":
        return Objective(imitation_loss)
    return with_terms(
        _loss(recipe),
        kl_coefficient=kl_in_loss(recipe),
        kl_estimator=recipe.algorithm.kl_estimator,
        entropy=make_entropy_control(recipe).used,
    )


def needs_reference(recipe: Recipe) -> bool:
    """Whether something reads log-probabilities of a reference: a KL term, a KL in the reward, or a loss of the
    user's."""
    if recipe.run.stage == "sft":
        return False
    return bool(kl_in_reward(recipe)) or "reference" in make_objective(recipe).needs


def _loss(recipe: Recipe) -> Objective:
    loss, clip = recipe.algorithm.loss, recipe.algorithm.clip
    if loss.kind == "clip":
        return clip_objective(low=clip.low, high=clip.high, dual=clip.dual, ratio=loss.ratio)
    if loss.kind == "cispo":
        return cispo_objective(cap=loss.cispo_cap, floor=loss.cispo_floor)
    if loss.kind == "sapo":
        return sapo_objective(positive=loss.sapo_positive, negative=loss.sapo_negative)
    if loss.kind == "clip_cov":
        return clip_cov_objective(low=clip.low, high=clip.high)
    if loss.kind == "kl_cov":
        return kl_cov_objective(coefficient=loss.cov_coefficient)
    found: Any = load_hook(loss.kind, "algorithm.loss.kind")
    objective = found if isinstance(found, Objective) else Objective(found)
    checked = LossHook(objective.loss, "algorithm.loss.kind", loss.kind, frozenset(objective.needs))
    return replace(objective, loss=checked)


def make_schedule(recipe: Recipe) -> Schedule:
    learner = recipe.learner
    return Schedule(
        peak=learner.learning_rate,
        kind=learner.schedule,
        unit=learner.schedule_unit,
        warmup=learner.warmup,
        total=schedule_steps(recipe),
        final_ratio=learner.final_ratio,
    )


def make_model(recipe: Recipe, console: Console, facts: ModelFacts | None = None) -> LoadedModel:
    """Load (for a built-in one: first make) the model, and say what a person should know about it.

    ``facts``: from ``make_facts``, which has found or made a built-in one and said so.
    """
    model = recipe.model
    disable_progress_bar()  # transformers' own bars would run across the console
    torch.set_num_threads(recipe.run.threads)
    torch.set_float32_matmul_precision(model.matmul_precision)
    if recipe.learner.deterministic:
        reserve_workspace()
    loaded = load_model(
        model_path(model.path, recipe, console) if facts is None else facts.name,
        dtype=getattr(torch, model.dtype),
        device=model.device,
        trust_remote_code=model.trust_remote_code,
        attention_mode=model.attention,
        fp32_head=model.fp32_head,
        activation_checkpointing=model.activation_checkpointing,
        lora=model.lora,
        seed=adapter_seed(recipe),
    )
    if recipe.data.chat_template is not None:  # an export ships what was trained with
        loaded.tokenizer.chat_template = recipe.data.chat_template
    for note in loaded.notes:
        console.say(note)
    return loaded


def adapter_seed(recipe: Recipe) -> int:
    """Of an adapter's random start, the same for one process and for ranks."""
    return derive_seed(recipe.run.seed, ADAPTER)


def make_facts(recipe: Recipe, console: Console) -> ModelFacts:
    """What is to be known of the recipe's model, without its weights (of a built-in one: made first).

    Raises:
        ModelError: as loading would, as far as configuration and tokenizer go.
    """
    model = recipe.model
    path = model_path(model.path, recipe, console)
    return read_facts(path, model.dtype, trust_remote_code=model.trust_remote_code)


def facts_without_weights(model: Model, tokenizer: Any) -> ModelFacts:
    """As ``make_facts``, of a model that is no built-in one, with the tokenizer at hand."""
    return read_facts(model.path, model.dtype, trust_remote_code=model.trust_remote_code, tokenizer=tokenizer)


def check_model(model: Model) -> None:
    """Refuse a device, a built-in name or a model folder before anything is made, read or warmed up.

    Raises:
        ModelError: as loading would.
    """
    find_device(model.device)
    check_model_path(model.path)


def check_model_path(path: str, *, weights: bool = True) -> None:
    """Refuse a built-in name that there is not, or a folder that cannot be loaded.

    Args:
        path: the recipe's ``model.path``.
        weights: False: configuration and tokenizer are enough.

    Raises:
        ModelError: with the next move.
    """
    if is_builtin(path):
        check_builtin_name(path)
    elif weights:
        check_files(path)
    else:
        check_configuration(path)


def make_tokenizer(model: Model, chat_template: str | None = None) -> Any:
    """The tokenizer alone: problems become prompts, and every refusal of data comes, before weights are read or made.

    Args:
        model: whose it is.
        chat_template: of the recipe, in place of its own.

    Raises:
        ModelError: no tokenizer can be loaded.
    """
    if is_builtin(model.path):
        tokenizer = make_word_tokenizer()  # as it is saved beside the model once that is made
    else:
        tokenizer = load_tokenizer(model.path, model.trust_remote_code, notes=[])
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer


def model_path(name: str, recipe: Recipe, console: Console) -> str:
    """Return the folder of a built-in model, made once in the user's cache; any other name is returned as it is.

    The path is absolute: engines that are started again read it, whatever the working directory is then.
    """
    if not is_builtin(name):
        return name
    cache, seed = _models_cache(recipe), recipe.run.seed
    found = find_builtin_model(name, cache, seed=seed)
    if found is not None:
        console.say(f"the warmed-up base model is {found}")
        return str(found.absolute())
    with console.progress(f"making the base model {name} (a short supervised warm-up)", WARMUP_PERCENT) as advance:
        told = 0

        def progress(done: int, total: int, metrics: dict[str, float]) -> None:
            nonlocal told
            percent = WARMUP_PERCENT * done // total
            advance(percent - told)
            told = percent

        return str(ensure_builtin_model(name, cache, seed=seed, progress=progress).absolute())


def _models_cache(recipe: Recipe) -> Path:
    """Return where built-in models are kept: the user's cache, or beside the runs.

    Machines of a Ray cluster share the folder of the runs and perhaps no home; a home may be read-only.
    """
    beside, cache = Path(recipe.run.dir) / ".models", cache_folder()
    if recipe.launch.backend == "ray":
        return beside
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError:
        return beside
    return cache if os.access(cache, os.W_OK) else beside
