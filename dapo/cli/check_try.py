"""A few groups, generated, scored and learned from as a step does it, and what a step will cost by that."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from dapo.config import Recipe
from dapo.types.batch import Group, StepBatch

if TYPE_CHECKING:
    from dapo.run.reinforcement import RewardParts
    from dapo.run.session import Session
    from dapo.types.protocols import Learner

_SHOWN = 16  # groups with a line of their own


def try_groups(recipe: Recipe, count: int) -> list[str]:
    """Load the model, generate and score ``count`` groups of the run's first prompts, learn from them at rate 0.

    Nothing is written but a built-in model's cache. Returns lines for the console.

    Raises:
        DapoError: whatever would end a run at its start.
    """
    from dapo.observe.console import Console
    from dapo.run.reinforcement import reward_session

    with Console("quiet") as console:
        session = reward_session(recipe, console)
        try:
            learner = session.learner()
            session.parts.engine.load(learner.publish(0))
            began = time.perf_counter()
            groups = _generate(session, count)
            generated = time.perf_counter() - began
            session.parts.engine.sleep()
            began = time.perf_counter()
            _learn(session, learner, groups)
            learned = time.perf_counter() - began
        finally:
            session.close()
    return [*_group_lines(groups), *_summary(recipe, groups, generated, learned)]


def _generate(session: Session[RewardParts], count: int) -> list[Group]:
    """Generate groups of the prompts that training would take first."""
    from dapo.loop.evaluation import Evaluator
    from dapo.run.sampling import make_sampling

    recipe = session.recipe
    stream = session.parts.stream()
    prompts = stream.take(min(count, stream.size))
    size = recipe.rollout.group_size
    evaluator = Evaluator(
        rollouts=session.parts.rollouts,
        prompts={"tried": prompts},
        sampling=make_sampling(recipe, session.facts),
        samples=size,
        greedy=False,
        seed=recipe.run.seed,
    )
    found = evaluator.evaluate().responses
    groups = []
    for index, prompt in enumerate(prompts):
        own = sorted((r for r in found if r.problem == index), key=lambda r: r.sample)
        groups.append(Group(index, prompt, [r.completion for r in own], [r.score for r in own]))
    return groups


def _learn(session: Session[RewardParts], learner: Learner, groups: Sequence[Group]) -> None:
    """Run a training step at rate 0: its time is a step's, and the weights stay."""
    from dapo.run.algorithm import make_algorithm

    algorithm, batch = make_algorithm(session.recipe), StepBatch(0, list(groups), list(groups))
    logprobs = {of: learner.logprobs(rows, of).result() for of, rows in algorithm.asks(batch).items()}
    learner.learn(algorithm.plan(batch, logprobs, version=0, rate=lambda number: 0.0)).result()


def _group_lines(groups: Sequence[Group]) -> list[str]:
    lines = []
    for group in groups[:_SHOWN]:
        right = int(np.nansum(group.accuracies() >= 1.0))
        unscored = int((~group.scored()).sum())
        lengths = group.lengths()
        lines.append(
            f"{right:>3} of {len(lengths)} right, {lengths.mean():.0f} tokens ({lengths.min()} to {lengths.max()}), "
            f"{group.truncated().mean():.0%} truncated{f', {unscored} unscored' if unscored else ''}: "
            f"{group.prompt.problem[:60]!r}"
        )
    if len(groups) > _SHOWN:
        lines.append(f"... and {len(groups) - _SHOWN} more")
    return lines


def _summary(recipe: Recipe, groups: Sequence[Group], generated: float, learned: float) -> list[str]:
    """All groups together, and a step by proportion."""
    accuracies = np.concatenate([group.accuracies() for group in groups])
    lengths = np.concatenate([group.lengths() for group in groups])
    truncated = np.concatenate([group.truncated() for group in groups])
    mixed = sum(0 < np.nanmean(group.accuracies()) < 1 for group in groups if group.scored().any())
    reasons = [score.reason for group in groups for score in group.scores_G if score.reason is not None]
    lines = [
        f"together: pass rate {np.nanmean(accuracies):.1%}, {mixed} of {len(groups)} groups with right and wrong "
        f"responses, {lengths.mean():.0f} tokens a response, {truncated.mean():.0%} truncated"
        if not np.isnan(accuracies).all()
        else "together: no response could be scored"
    ]
    if reasons:
        lines.append(f"unscored: {len(reasons)} of {len(accuracies)}, the first: {reasons[0]}")
    wanted = recipe.rollout.prompts_per_step
    refills = recipe.algorithm.dynamic_sampling.mode == "filter"
    lines.append(
        f"time: {generated:.1f} s to generate and score {len(accuracies)} responses ({lengths.sum() / generated:,.0f} "
        f"tokens/s), {learned:.1f} s to learn from {len(groups)} groups"
    )
    if refills and not mixed:
        lines.append("a step would not fill its batch: no group of these teaches anything; try more, or other problems")
        return lines
    rounds = wanted / len(groups) * (len(groups) / mixed if refills else 1)
    step = generated * rounds + learned * wanted / len(groups)
    lines.append(
        f"a step: about {step:.1f} s ({generated * rounds:.1f} to generate and score "
        f"{rounds * len(groups):.0f} groups, {learned * wanted / len(groups):.1f} to learn from {wanted}); "
        f"{recipe.trainer.steps:,} steps: about {_span(step * recipe.trainer.steps)}, evaluations not counted. "
        "By proportion: more responses at once fill an engine better"
    )
    return lines


def _span(seconds: float) -> str:
    minutes = seconds / 60
    return f"{seconds:.0f} s" if minutes < 2 else f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.0f} h"
