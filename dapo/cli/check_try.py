"""A few groups, generated, scored and learned from as a step does it: what the model writes, and what a step costs."""

from __future__ import annotations

import json
import math
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from dapo.cli.check_machine import Fit, Looked, evaluations
from dapo.cli.check_memory import size_text
from dapo.cli.check_rewards import GOLD
from dapo.config import Recipe
from dapo.config.mixed import mixed_by_spread
from dapo.observe.text import span
from dapo.types.batch import Group, Key, StepBatch
from dapo.words import counted

if TYPE_CHECKING:
    from dapo.run.reinforcement import RewardParts
    from dapo.run.session import Session
    from dapo.types.protocols import Learner

_SHOWN = 16  # groups with a line of their own
_CUT_OFF = 0.5  # of the responses: above, the run is not called good
_FEW = 0.1  # of the responses right: below, a run of ``_HOURS`` and more is not called good
_HOURS = 2.0
_NAMES_ANSWERS = ("math", "exact", "last_number")  # kinds of reward that say which answer they read
_WRITTEN = 160  # characters of a response that are shown


@dataclass(frozen=True, slots=True)
class Measured:
    """Groups that were tried, and their cost."""

    groups: Sequence[Group]
    generated: float  # seconds to generate and score them
    learned: float  # seconds to learn from them
    peak: int  # bytes of memory
    elsewhere: Mapping[str, float] = field(default_factory=dict)  # pass rate by other kinds of reward

    def share(self, what: str) -> float:
        """Return the share of responses that are ``right``, ``cut off`` or ``read``."""
        return float(np.concatenate([_flags(group, what) for group in self.groups]).mean())


def _flags(group: Group, what: str) -> np.ndarray:
    if what == "right":
        return group.accuracies() >= 1.0
    if what == "cut off":
        return group.truncated()
    return np.array([score.answer not in (None, "") for score in group.scores_G])


def try_groups(recipe: Recipe, looked: Looked, count: int) -> tuple[list[str], Fit]:
    """Load the model, generate and score ``count`` groups of the run's first prompts, learn from them at rate 0.

    Nothing is written but a built-in model's cache. Return lines, and what they say of the run.

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
            peak = _peak(session)
        finally:
            session.close()
    found = Measured(groups, generated, learned, peak, _by_other_kinds(recipe, groups))
    return judged(recipe, looked, found)


def judged(recipe: Recipe, looked: Looked, found: Measured) -> tuple[list[str], Fit]:
    """Return lines, and what the groups say of a run: doubts, why it is not good, and why it is refused."""
    lines, fit = [*_group_lines(found.groups), *_summary(recipe, found)], Fit()
    right, cut, read = (found.share(what) for what in ("right", "cut off", "read"))
    moves = " ".join(_moves(recipe, looked, found))
    kind = next((reward.kind for reward in recipe.rewards if reward.name == "accuracy"), "")
    named = kind in _NAMES_ANSWERS and recipe.scorer is None
    if named and read == 0:
        fit.refusals.append(
            f"accuracy ({kind}) read an answer in none of {sum(len(group.scores_G) for group in found.groups)} "
            f"responses, {cut:.0%} of which were cut off. The model wrote: {_texts(found.groups)}. {moves}"
        )
        return lines, fit
    rounds = _rounds(recipe, found.groups)
    hours = math.inf if rounds is None else _add_time(fit, recipe, looked, found, rounds) / 3600
    if cut > _CUT_OFF:
        fit.grave.append(
            f"{cut:.0%} of the responses were cut off at {recipe.rollout.max_response_tokens} tokens. {moves}"
        )
    fractions = mixed_by_spread(recipe)  # groups are kept for scores that differ, right or not
    if not fractions and (right == 0 or (right < _FEW and hours > _HOURS)):
        long = f", and the run takes about {span(hours * 3600)}" if hours < math.inf else ""
        fit.grave.append(f"{right:.0%} of the responses were right{long}. {moves}")
    elif rounds is None:
        fit.grave.append(
            "no group has right and wrong responses, so a step would not fill its batch: try more groups (--try 16), "
            f"or other problems. {moves}"
        )
    elif moves and right < _FEW and not fractions:
        fit.doubts.append(f"{right:.0%} of the responses were right. {moves}")
    if named and 0 < read < 0.5:
        fit.doubts.append(f"accuracy ({kind}) read an answer in {read:.0%} of the responses alone. {moves}")
    return lines, fit


def _add_time(fit: Fit, recipe: Recipe, looked: Looked, found: Measured, rounds: float) -> float:
    """Add what a step and the run take by proportion, and return the seconds of the run.

    Args:
        fit: takes the line.
        recipe: of the run.
        looked: what is known of its model and data.
        found: what the groups came to.
        rounds: as ``_rounds`` returns.
    """
    wanted, tried, validation = recipe.rollout.prompts_per_step, len(found.groups), recipe.validation
    generate, learn = found.generated * rounds, found.learned * wanted / tried
    answers = looked.held_out * (validation.samples + validation.greedy)
    response = found.generated / sum(len(group.completions_G) for group in found.groups)
    whole = recipe.trainer.steps * (generate + learn) + evaluations(recipe) * answers * response
    fit.lines.append(
        f"measured: a step about {span(generate + learn)} ({span(generate)} to generate and score {rounds * tried:.0f} "
        f"groups, {span(learn)} to learn from {wanted}), {counted(recipe.trainer.steps, 'step')} and "
        f"{counted(evaluations(recipe), 'evaluation')} in about {span(whole)}, by proportion"
    )
    fit.numbers |= {"step_seconds": generate + learn, "hours": whole / 3600}
    return whole


def _moves(recipe: Recipe, looked: Looked, found: Measured) -> Iterator[str]:
    """Yield changes that would help, each with its setting."""
    right, cut = found.share("right"), found.share("cut off")
    for kind, rate in found.elsewhere.items():
        if rate > max(2 * right, right + 0.05):
            number = next(n for n, reward in enumerate(recipe.rewards) if reward.name == "accuracy")
            yield f"With rewards.{number}.kind={kind}, {rate:.0%} of them would be right."
    if not recipe.data.few_shot and recipe.environment.kind is None and (shot := _worked_example(found.groups, looked)):
        yield f"A worked example shows the model what to write: {shot}."
    if cut > _CUT_OFF:
        limit, reads = recipe.rollout.max_response_tokens, looked.facts.positions
        longest = max(len(group.prompt.token_ids) for group in found.groups)
        if reads is None or longest + 2 * limit <= reads:
            yield f"rollout.max_response_tokens={2 * limit} lets responses end that need more."
    elif right == 0:
        yield "Take easier problems or a larger model, or train on worked solutions first (`dapo sft`)."


def _worked_example(groups: Sequence[Group], looked: Looked) -> str | None:
    """Return the setting of ``data.few_shot`` with the first problem, written as the reward reads it; None: unknown."""
    prompt = next(
        (group.prompt for group in groups if group.prompt.answer and group.prompt.source in looked.forms), None
    )
    if prompt is None:
        return None
    shot = {"problem": prompt.problem, "response": looked.forms[prompt.source].replace(GOLD, prompt.answer)}
    return shlex.quote(f"data.few_shot={json.dumps([shot], ensure_ascii=False)}")


def _by_other_kinds(recipe: Recipe, groups: Sequence[Group]) -> dict[str, float]:
    """Return the share of right responses by the kinds of reward that read an answer in another way."""
    from dapo.run.reinforcement import make_scorer

    own = next((reward for reward in recipe.rewards if reward.name == "accuracy"), None)
    if own is None or own.kind not in _NAMES_ANSWERS or recipe.scorer is not None:
        return {}
    rates = {}
    for kind in ("math", "last_number"):
        if kind == own.kind:
            continue
        other = own.model_copy(update={"kind": kind, "pattern": None})
        scorer = make_scorer(recipe.model_copy(update={"rewards": [other]}))
        try:
            for number, group in enumerate(groups):
                for sample, completion in enumerate(group.completions_G):
                    scorer.submit(Key("check", number, sample), group.prompt, completion)
            left, right = sum(len(group.completions_G) for group in groups), 0
            total = left
            while left and (answers := scorer.poll(None)):
                left -= len(answers)
                right += sum(score.accuracy is not None and score.accuracy >= 1.0 for _, score in answers)
        finally:
            scorer.close()
        rates[kind] = right / max(1, total)
    return rates


def _texts(groups: Sequence[Group]) -> str:
    """Return the beginnings of two responses."""
    texts = [" ".join(completion.text.split()) for group in groups for completion in group.completions_G[:1]]
    return "; ".join(repr(text if len(text) <= _WRITTEN else f"{text[:_WRITTEN]}...") for text in texts[:2])


def _peak(session: Session[RewardParts]) -> int:
    """Return the most bytes that the run's processes held, or the GPU."""
    import torch

    from dapo.observe.spans import peak_rss_mib
    from dapo.run.session import processes_of

    if session.loaded is not None and session.loaded.device.type == "cuda":
        return torch.cuda.max_memory_allocated()
    listed = processes_of(session)
    others = [] if listed is None else [each for each in listed() if each.name != "driver"]
    return int(peak_rss_mib() * 2**20) + sum(int((each.memory_mib or 0) * 2**20) for each in others)


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
    return list(evaluator.evaluate().sets["tried"])


def _learn(session: Session[RewardParts], learner: Learner, groups: Sequence[Group]) -> None:
    """Run a training step at rate 0: its time is a step's, and the weights stay."""
    from dapo.run.algorithm import make_algorithm

    algorithm, batch = make_algorithm(session.recipe), StepBatch(0, list(groups), list(groups))
    teachers = session.parts.teachers
    logprobs = {
        of: teachers[of].logprobs(rows) if of in teachers else learner.logprobs(rows, of).result()
        for of, rows in algorithm.asks(batch).items()
    }
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


def _mixed(groups: Sequence[Group]) -> int:
    """Return how many groups have right and wrong responses."""
    return sum(bool(0 < np.nanmean(group.accuracies()) < 1) for group in groups if group.scored().any())


def _summary(recipe: Recipe, found: Measured) -> Iterator[str]:
    """Yield all groups together."""
    groups = found.groups
    accuracies = np.concatenate([group.accuracies() for group in groups])
    lengths = np.concatenate([group.lengths() for group in groups])
    reasons = [score.reason for group in groups for score in group.scores_G if score.reason is not None]
    if np.isnan(accuracies).all():
        yield "together: no response could be scored"
    else:
        kinds = {reward.kind for reward in recipe.rewards if reward.name == "accuracy"}
        read = f", an answer read in {found.share('read'):.0%}" if kinds <= set(_NAMES_ANSWERS) else ""
        yield (
            f"together: pass rate {np.nanmean(accuracies):.1%}, {_mixed(groups)} of {len(groups)} groups with right "
            f"and wrong responses, {lengths.mean():.0f} tokens a response, {found.share('cut off'):.0%} truncated{read}"
        )
    if reasons:
        yield f"unscored: {len(reasons)} of {len(accuracies)}, the first: {reasons[0]}"
    yield f"the first response: {_texts(groups[:1])}"
    yield (
        f"time: {span(found.generated)} to generate and score {len(accuracies)} responses "
        f"({lengths.sum() / found.generated:,.0f} tokens/s), {span(found.learned)} to learn from {len(groups)} groups"
    )
    yield f"memory: {size_text(found.peak)} at the peak of this trial, whose batch is smaller than a step's"
    if _rounds(recipe, groups) is None:
        yield "a step would not fill its batch: no group of these teaches anything"


def _rounds(recipe: Recipe, groups: Sequence[Group]) -> float | None:
    """Return how many times these groups a step generates; None: it would not fill its batch."""
    refills, mixed = recipe.algorithm.dynamic_sampling.mode == "filter", _mixed(groups)
    if refills and not mixed:
        return None
    return recipe.rollout.prompts_per_step / len(groups) * (len(groups) / mixed if refills else 1)
