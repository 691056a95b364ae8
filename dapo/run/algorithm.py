"""The algorithm that a recipe names: its formulas with their settings, hooks of the user, corrections, the schedule.

One small function per object.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from typing import Any

from dapo.algorithms import hook_checks
from dapo.algorithms.advantages import normalise
from dapo.algorithms.algorithm import LENGTH_PENALTY, Algorithm, Float64, Passes
from dapo.algorithms.correction import CorrectionKind, OffPolicyMask, importance_correction
from dapo.algorithms.entropy import EntropyControl
from dapo.algorithms.keep import judge_group
from dapo.algorithms.losses import imitation_loss
from dapo.algorithms.objective import Objective, with_terms
from dapo.algorithms.reduction import loss_weights
from dapo.algorithms.shaping import shape_rewards
from dapo.algorithms.teacher import TeacherTerm
from dapo.config.check_teacher import taught_alone, teachers
from dapo.config.checks import (
    correction_kind,
    kl_in_loss,
    kl_in_reward,
    penalty_interval,
    ratio_against,
    schedule_steps,
)
from dapo.config.mixed import mixed_by_spread
from dapo.config.schema import Recipe
from dapo.config.schema.kinds import (
    AdvantageKind,
    Clip,
    Constant,
    LossKind,
    MaskOffPolicy,
    MicroBatchMean,
    OwnAdvantage,
    OwnLoss,
)
from dapo.config.section import Section
from dapo.errors import HookError, RecipeError
from dapo.hooks import load
from dapo.loop.schedule import Schedule
from dapo.types.batch import TEACHER, BoolArray, FloatArray, IntArray, Row
from dapo.types.extra import Extra
from dapo.types.seeds import MARKS, derive_seed


def load_hook(name: str, setting: str) -> Callable[..., Any]:
    """Return the user's function ``package.module:function``; the working directory is importable.

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


def make_algorithm(recipe: Recipe) -> Algorithm:
    """Return the recipe's algorithm: its functions, bound to their settings, and its own state at the start."""
    a = recipe.algorithm
    sampling = a.dynamic_sampling

    def checked(setting: str, name: str, read: Callable[..., Any]) -> Callable[..., Any]:
        return hook_checks.checked(load_hook(name, setting), setting, name, read)

    judge = partial(
        judge_group,
        metric_is_accuracy=not mixed_by_spread(recipe),
        correct_at=sampling.correct_at,
        tolerance=sampling.tolerance,
        band=sampling.band,
    )
    return Algorithm(
        judge=checked("algorithm.dynamic_sampling.keep", sampling.keep, hook_checks.read_verdict)
        if sampling.keep
        else judge,
        shape=checked("algorithm.shaping", a.shaping, hook_checks.read_shaping) if a.shaping else make_shaping(recipe),
        advantages=make_advantages(recipe),
        loss_weights=make_loss_weights(recipe),
        normalise=None if a.advantage_norm is None else partial(normalise, **_options(a.advantage_norm)),
        advantage_range=(
            -math.inf if a.advantage_clip.low is None else a.advantage_clip.low,
            math.inf if a.advantage_clip.high is None else a.advantage_clip.high,
        ),
        metric=sampling.metric,
        truncated_vote=not a.overlong_filtering if a.truncated_vote is None else a.truncated_vote,
        overlong_filtering=a.overlong_filtering,
        source_range=None if a.shaping or not a.reward_scaling.enabled else _source_range(recipe),
        extra=make_extra(recipe),
        needs_reference=needs_reference(recipe),
        kl_in_reward=kl_in_reward(recipe),
        ratio_against=ratio_against(recipe),
        refresh_every=a.reference.refresh_every,
        teachers={source: f"{TEACHER}{path}" for source, path in teachers(recipe).items()},
        taught_alone=taught_alone(recipe),
        passes=Passes(recipe.learner.minibatch_prompts, recipe.learner.epochs_per_rollout, recipe.run.seed),
        entropy_coefficient=a.entropy_coefficient,
        entropy=make_entropy_control(recipe),
    )


def make_entropy_control(recipe: Recipe) -> EntropyControl | None:
    """Return what adapts the coefficient of the entropy term; None: it is fixed."""
    control = recipe.algorithm.entropy_control
    if control.target is None:
        return None
    return EntropyControl(recipe.algorithm.entropy_coefficient, control.target, control.delta, control.min, control.max)


def make_advantages(recipe: Recipe) -> Callable[..., list[Float64]]:
    """Return the recipe's advantages, as a function of rewards and voters and perhaps of the rewards one by one."""
    advantage = recipe.algorithm.advantage
    if isinstance(advantage, OwnAdvantage):
        setting = "algorithm.advantage.kind"
        found = load_hook(advantage.kind, setting)
        own = _with_options(found, advantage, "algorithm.advantage", given=2)
        return hook_checks.checked(own, setting, advantage.kind, hook_checks.read_advantages)
    weights = {"weights": _reward_weights(recipe)} if advantage.by_reward else {}
    return partial(_function(advantage), **weights, **_options(advantage))


def _with_options(
    function: Callable[..., Any], own: OwnLoss | OwnAdvantage, section: str, *, given: int
) -> Callable[..., Any]:
    """Bind the recipe's options to a function of the user's, whose first ``given`` arguments dapo gives.

    Raises:
        HookError: an option that the function does not take.
    """
    if not own.options:
        return function
    parameters = list(inspect.signature(function).parameters.values())
    taken = [p.name for p in parameters[given:] if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if all(p.kind is not p.VAR_KEYWORD for p in parameters):
        for name, value in own.options.items():
            if name not in taken:
                has = f"its options are {', '.join(taken)}" if taken else "it takes no options"
                raise HookError(
                    f"{section}.options.{name}: {value!r}: {own.kind} has no such argument ({has}). Correct the name, "
                    "or add the argument to the function"
                )
    return partial(function, **own.options)


def _reward_weights(recipe: Recipe) -> dict[str, float]:
    """Return the weight of each reward, and of the length penalty as one more where there is one."""
    weights = {reward.name: reward.weight for reward in recipe.rewards if reward.weight}
    punishment = recipe.algorithm.overlong_punishment
    if punishment.enabled and punishment.factor:
        weights[LENGTH_PENALTY] = punishment.factor
    return weights


def make_extra(recipe: Recipe) -> Callable[[Sequence[Row]], Sequence[Extra]] | None:
    """Return what makes the extra arrays of an optimiser step; None where the loss reads none that is made here."""
    extra, seed = make_objective(recipe).extra, recipe.run.seed
    if extra is None:
        return None
    return lambda rows: extra(rows, [derive_seed(seed, MARKS, row.group, row.sample) for row in rows])


def _function(kind: LossKind | AdvantageKind) -> Any:
    """Return the function of a built-in kind."""
    module, _, name = kind.function.partition(":")
    return getattr(import_module(module), name)


def _options(kind: Section) -> dict[str, Any]:
    """Return the options of a kind by name, as its function takes them: without ``kind`` and sections below."""
    values = {name: getattr(kind, name) for name in type(kind).model_fields if name != "kind"}
    return {name: value for name, value in values.items() if not isinstance(value, Section)}


def make_shaping(recipe: Recipe) -> Callable[[Float64, IntArray, BoolArray], tuple[Float64, Float64]]:
    """Scale, then add the length penalty (docs/algorithm.md)."""
    scaling, punishment = recipe.algorithm.reward_scaling, recipe.algorithm.overlong_punishment
    max_length, cache_length = penalty_interval(recipe)
    return partial(
        shape_rewards,
        source=_source_range(recipe) if scaling.enabled else None,
        target=(scaling.target_min, scaling.target_max),
        max_length=max_length if punishment.enabled else None,
        cache_length=cache_length,
        factor=punishment.factor,
        truncated_factor=recipe.algorithm.truncated_factor,
    )


def _source_range(recipe: Recipe) -> tuple[float, float]:
    scaling = recipe.algorithm.reward_scaling
    return scaling.source_min, scaling.source_max


def make_loss_weights(recipe: Recipe) -> Callable[[list[BoolArray], IntArray], FloatArray]:
    """Return the reduction as a function of loss masks and groups."""
    reduction = recipe.algorithm.loss.reduction
    size = reduction.sequences if isinstance(reduction, MicroBatchMean) else None
    length = reduction.length if isinstance(reduction, Constant) else None

    def weights(masks: list[BoolArray], groups: IntArray) -> FloatArray:
        micro_batches = None
        if size is not None:
            micro_batches = [list(range(i, min(i + size, len(masks)))) for i in range(0, len(masks), size)]
        return loss_weights(
            masks,
            groups,
            reduction.kind,
            constant_length=length or recipe.rollout.max_response_tokens,
            micro_batches=micro_batches,
            micro_batch_weighted=not isinstance(reduction, MicroBatchMean) or reduction.weighted,
        )

    return weights


@dataclass(frozen=True, slots=True)
class ImportanceCorrection:
    """``importance_correction`` with the recipe's options; returns w [tokens] of one response."""

    kind: CorrectionKind
    options: Mapping[str, Any]

    @property
    def by_token(self) -> bool:
        """Whether w of a token depends on that token alone, so that a response may be cut into parts."""
        return self.kind not in ("truncate_sequence", "mask_sequence")

    def __call__(self, learner: FloatArray, sampler: FloatArray, mask: BoolArray) -> FloatArray | None:
        return importance_correction(learner, sampler, kind=self.kind, loss_mask=mask, **self.options)


def make_correction(
    recipe: Recipe,
) -> ImportanceCorrection | OffPolicyMask | None:
    """Return the importance correction against the sampler; None where nothing is corrected.

    Only the off-policy mask acts where the ratio runs against the sampler itself.
    """
    kind, chosen = correction_kind(recipe), recipe.algorithm.correction
    if isinstance(chosen, MaskOffPolicy) and recipe.run.stage != "sft":
        return OffPolicyMask(chosen.threshold)
    if (
        kind == "mask_off_policy"
        or recipe.run.stage == "sft"
        or ratio_against(recipe) == "sampler"
        or kind in ("none", "report")
    ):
        return None
    return ImportanceCorrection(kind, _options(chosen))


def make_objective(recipe: Recipe) -> Objective:
    """Return the loss and its terms with their facts. A user's plain function is taken to need nothing."""
    if recipe.run.stage == "sft":
        return Objective(imitation_loss)
    given = recipe.algorithm.teacher
    return with_terms(
        _loss(recipe),
        kl_coefficient=kl_in_loss(recipe),
        kl_estimator=recipe.algorithm.kl_estimator,
        entropy=bool(recipe.algorithm.entropy_coefficient) or recipe.algorithm.entropy_control.target is not None,
        teacher=TeacherTerm(given.coefficient, given.term, given.estimator) if teachers(recipe) else None,
    )


def needs_reference(recipe: Recipe) -> bool:
    """Whether something reads log-probabilities of a reference: a KL term, a KL in the reward, or a loss of the
    user's."""
    if recipe.run.stage == "sft":
        return False
    return bool(kl_in_reward(recipe)) or "reference" in make_objective(recipe).needs


def built_in_loss(loss: LossKind, clip: Clip) -> Objective:
    """Return the objective of a kind that is not a function of the user's."""
    make: Callable[..., Objective] = _function(loss)
    return make(**{name: getattr(clip, name) for name in loss.clips}, **_options(loss))


def _loss(recipe: Recipe) -> Objective:
    loss = recipe.algorithm.loss
    if not isinstance(loss, OwnLoss):
        return built_in_loss(loss, recipe.algorithm.clip)
    setting = "algorithm.loss.kind"
    found: Any = load_hook(loss.kind, setting)
    objective = found if isinstance(found, Objective) else Objective(found)
    own = _with_options(objective.loss, loss, "algorithm.loss", given=1)
    return hook_checks.checked_objective(replace(objective, loss=own), setting, loss.kind)


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
