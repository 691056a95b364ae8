"""The user's functions, run before training on made-up groups: right, wrong, truncated and unscored responses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from dapo.config import Recipe
from dapo.config.deployment import Deployment
from dapo.errors import HookError
from dapo.types.batch import Group, Prompt, Response, Score
from dapo.types.enums import FinishReason, Verdict

if TYPE_CHECKING:
    from dapo.algorithms.algorithm import Algorithm
    from dapo.algorithms.losses import LossInputs

_KINDS = {"mixed": (1.0, 0.0, 1.0, 0.0), "all right": (1.0, 1.0, 1.0, 1.0), "all wrong": (0.0, 0.0, 0.0, 0.0)}
"""Accuracy of the first four responses; a truncated and an unscored one follow in every group."""
_TOKENS = (3, 5, 2, 4, 6, 3)


@dataclass(slots=True)
class HookTrial:
    """Results of the user's functions on the groups, in lines for the console."""

    lines: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)  # to be looked at; training may start


def import_hooks(recipe: Recipe) -> Algorithm:
    """Import every ``package.module:function`` that the recipe names, and return the algorithm made of them.

    Raises:
        RecipeError: a module or function that does not exist, with the key that names it.
        RewardError: a reward function that cannot be loaded.
        HookError: an option that a function does not take.
    """
    from dapo.run.algorithm import make_algorithm
    from dapo.run.engines import own_engine
    from dapo.run.given import NOTHING_GIVEN
    from dapo.run.here import trackers_of
    from dapo.run.reinforcement import make_scorer

    if Deployment(recipe).engine == "own":
        own_engine(recipe.rollout.engine)
    trackers_of(recipe)
    NOTHING_GIVEN.with_named(recipe)
    if recipe.scorer is None:
        make_scorer(recipe).close()  # loads reward functions in a worker, as training does
    return make_algorithm(recipe)


def try_hooks(recipe: Recipe, algorithm: Algorithm, recorded: Iterable[str]) -> HookTrial:
    """Run the functions of the algorithm on made-up groups.

    Args:
        recipe: what names them.
        algorithm: made of them.
        recorded: names of all values that rewards give; an advantage may read each.

    Raises:
        HookError: a function that raises, or returns something else than it must.
    """
    a = recipe.algorithm
    trial = HookTrial()
    if not (a.dynamic_sampling.keep or a.shaping or ":" in a.advantage.kind or ":" in a.loss.kind):
        return trial
    groups = {kind: _group(recipe, recorded, number, kind) for number, kind in enumerate(_KINDS)}
    verdicts = {kind: algorithm.verdict(group) for kind, group in groups.items()}
    for group in groups.values():
        algorithm.shape_group(group)
    if a.dynamic_sampling.keep:
        _tell_of_keep(a.dynamic_sampling.keep, verdicts, trial)
    mixed = groups["mixed"]
    if a.shaping:
        before = mixed.scores_G[0].reward - mixed.scores_G[1].reward  # below 0 where weights are
        _tell_of_numbers(f"shaping {a.shaping}", mixed.rewards_G, before, trial)
    try:
        algorithm.assign_advantages(list(groups.values()))
    except HookError as error:
        if not (isinstance(error.__cause__, KeyError) and _gives_unknown_values(recipe)):
            raise
        trial.doubts.append(f"{error}. Values that a scorer or an environment gives are not known before it is asked")
    else:
        if ":" in a.advantage.kind:
            _tell_of_numbers(f"advantage {a.advantage.kind}", mixed.advantages_G, 1.0, trial)
    if ":" in a.loss.kind:
        _tell_of_loss(recipe, algorithm, list(groups.values()), trial)
    return trial


def _gives_unknown_values(recipe: Recipe) -> bool:
    """Return whether responses get values that no trial of rewards has shown."""
    return recipe.scorer is not None or any(reward.kind == "environment" for reward in recipe.rewards)


def _group(recipe: Recipe, recorded: Iterable[str], number: int, kind: str) -> Group:
    """Make a group of six responses; the fifth is truncated and wrong, the sixth has no score."""
    weights = {reward.name: reward.weight for reward in recipe.rewards}
    names = dict.fromkeys([recipe.algorithm.dynamic_sampling.metric, *recorded], 0.0) | weights
    accuracies = (*_KINDS[kind], _KINDS[kind][1], None)
    prompt = Prompt(
        f"made-up-{number}", "made up", np.arange(3), "made up", "1", next(iter(_sources(recipe)), "made-up")
    )
    return Group(
        number,
        prompt,
        [
            Response(
                np.arange(tokens),
                np.linspace(-0.1, -2.0, tokens, dtype=np.float32),
                np.zeros(tokens, np.int32),
                FinishReason.LENGTH if index == 4 else FinishReason.STOP,
            )
            for index, tokens in enumerate(_TOKENS)
        ],
        [
            Score(reason="made up as unscored")
            if accuracy is None
            else Score(dict.fromkeys(names, accuracy), reward=accuracy * sum(names.values()))
            for accuracy in accuracies
        ],
    )


def _sources(recipe: Recipe) -> Iterator[str]:
    return (source for reward in recipe.rewards for source in reward.sources or [])


def _tell_of_keep(name: str, verdicts: dict[str, Verdict], trial: HookTrial) -> None:
    said = ", ".join(f"{kind} is {verdict}" for kind, verdict in verdicts.items())
    trial.lines.append(f"keep rule {name}: a group that is {said}")
    if verdicts["mixed"] is not Verdict.KEPT:
        trial.doubts.append(f"the keep rule {name} drops a group with two right and two wrong answers")
    if kept := [kind for kind, verdict in verdicts.items() if verdict is Verdict.KEPT and kind != "mixed"]:
        trial.doubts.append(
            f"the keep rule {name} keeps groups that are {' or '.join(kept)}, whose answers do not differ"
        )


def _tell_of_numbers(named: str, numbers: Sequence[float] | np.ndarray | None, sign: float, trial: HookTrial) -> None:
    """Tell what a function gives the mixed group, and doubt it if right answers get no more than wrong ones.

    Args:
        named: the function, in words.
        numbers: what it gives.
        sign: negative: right answers should get less; 0: nothing is doubted.
        trial: takes the line and the doubt.
    """
    trial.lines.append(f"{named}: {_by_response(numbers)}")
    values = np.asarray(numbers)
    right, wrong = values[[0, 2]].mean(), values[[1, 3]].mean()
    if (right - wrong) * sign <= 0 < abs(sign):
        trial.doubts.append(f"the {named} gives right answers of a mixed group {right:.3g} and wrong ones {wrong:.3g}")


def _by_response(numbers: Sequence[float] | np.ndarray | None) -> str:
    assert numbers is not None
    kinds = ("right", "wrong", "right", "wrong", "truncated", "unscored")
    return ", ".join(f"{kind} {number:.3g}" for kind, number in zip(kinds, numbers, strict=True))


def _tell_of_loss(recipe: Recipe, algorithm: Algorithm, groups: list[Group], trial: HookTrial) -> None:
    """Compute loss and gradient of every token, at ratios around 1."""
    import torch

    from dapo.run.algorithm import make_objective

    objective, name = make_objective(recipe), recipe.algorithm.loss.kind
    rows = algorithm.rows(groups)
    if lacking := [extra for extra in objective.reads if any(extra not in row.extra for row in rows)]:
        trial.lines.append(f"loss {name}: not tried, since it reads what the engine gives: {', '.join(lacking)}")
        return
    inputs = _loss_inputs(algorithm, groups, needs_reference="reference" in objective.needs)
    inputs = replace(inputs, extra=objective.extra_tensors(rows))
    loss, flags = objective.loss(inputs)
    objective.loss(inputs)  # flags that change their names from call to call are refused
    at_loss = torch.where(inputs.loss_mask, loss, 0.0)
    gradient = torch.autograd.grad(at_loss.sum(), inputs.logprobs, allow_unused=True)[0]
    if gradient is None:  # of an objective that trains through its other needs
        gradient = torch.zeros_like(inputs.logprobs)
    up, down = (inputs.loss_mask & (inputs.advantages * sign > 0) for sign in (1.0, -1.0))
    raised, lowered = float(gradient[up].mean()), float(gradient[down].mean())
    trial.lines.append(
        f"loss {name}: mean gradient by log p {raised:.3g} where the advantage is positive, {lowered:.3g} where it is "
        f"negative; {'flags ' + ', '.join(flags) if flags else 'no flags'}"
    )
    if raised > lowered:
        trial.doubts.append(
            f"the loss {name} falls when right answers become less likely: its gradient by log p is {raised:.3g} where "
            f"the advantage is positive and {lowered:.3g} where it is negative; is its sign turned round?"
        )
    if not gradient[inputs.loss_mask & (inputs.advantages != 0)].any() and not objective.needs:
        trial.doubts.append(f"the loss {name} has a gradient of 0 at every token: nothing would be learned")
    neither = inputs.loss_mask & (inputs.advantages == 0)
    if objective.zero_advantage_is_free and bool((gradient[neither] != 0).any()):
        trial.doubts.append(
            f"the loss {name} says zero_advantage_is_free, but tokens of advantage 0 have a gradient: they would not "
            "train; leave it out"
        )


def _loss_inputs(algorithm: Algorithm, groups: list[Group], *, needs_reference: bool) -> LossInputs:
    """Lay the groups' tokens end to end; old log-probabilities differ a little, as after an optimizer step."""
    import torch

    from dapo.algorithms.losses import LossInputs

    masks = [mask for group in groups for mask in algorithm.loss_masks(group)]
    lengths = [len(mask) for mask in masks]
    advantages = np.concatenate([group.advantages_G for group in groups if group.advantages_G is not None])
    old = torch.from_numpy(np.concatenate([c.logprobs for group in groups for c in group.completions_G]))
    logprobs = (old + 0.05 * torch.cos(torch.arange(len(old)))).requires_grad_()
    return LossInputs(
        logprobs=logprobs,
        old_logprobs=old,
        advantages=torch.from_numpy(np.repeat(advantages, lengths)).float(),
        loss_mask=torch.from_numpy(np.concatenate(masks)),
        rows=torch.from_numpy(np.repeat(np.arange(len(masks)), lengths)),
        num_rows=len(masks),
        entropy=-logprobs * 0.5,
        reference_logprobs=old - 0.1 if needs_reference else None,
    )
