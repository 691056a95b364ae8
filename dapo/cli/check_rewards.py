"""The rewards, tried before a run: right, empty and wrong answers of each source, scored as training scores them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from dapo.config import Recipe
from dapo.config.mixed import correct_decides, mixed_by_spread, mixed_said
from dapo.config.reward_range import SumRange, fitting
from dapo.config.schema import Reward
from dapo.data.unknown import unknown_in_answers
from dapo.errors import RewardError
from dapo.observe.why import BESIDE
from dapo.rewards.code import find_program
from dapo.rewards.compared_text import read_golds
from dapo.types.batch import Key, Prompt, Response, Score
from dapo.types.enums import FinishReason

if TYPE_CHECKING:
    from dapo.data import PreparedData
    from dapo.rewards.compose import CompositeScorer

PROBLEMS = 8  # of each source
GOLD = "GOLD"
SOLUTION = "solution"
"""Column of a right program, for ``kind: code``."""
PROGRAM = f"```python\n{GOLD}\n```"
EARLY_EXIT = "raise SystemExit(0)"
"""A program that ends well and does nothing: it must be wrong."""
FORMS = (
    GOLD,
    f"\\boxed{{{GOLD}}}",
    f"Answer: {GOLD}",
    f"#### {GOLD}",
    f"<answer>{GOLD}</answer>",
    f"<think>\nSo it is.\n</think>\n<answer>{GOLD}</answer>",
    f"The answer is {GOLD}.",
    f"={GOLD}",
)
"""How a right answer is written, where the reward does not say it. The first that is right, and that the tokenizer can
write, is used."""
SERVICE_SECONDS = 10.0
"""That a service has for an answer here. A run waits longer."""
_SHOWN = 80  # characters of an answer


@dataclass(slots=True)
class Trial:
    """Results of the rewards, in lines for the console."""

    lines: list[str] = field(default_factory=list)
    brief: list[str] = field(default_factory=list)  # a line a source
    doubts: list[str] = field(default_factory=list)  # to be looked at; training may start
    refusals: list[str] = field(default_factory=list)  # training would be for nothing
    recorded: set[str] = field(default_factory=set)  # names of all values that rewards gave
    forms: dict[str, str] = field(default_factory=dict)  # how a right answer is written, by source
    sums: list[float] = field(default_factory=list)  # weighted, of all answers that are scored
    fraction: float | None = None  # an accuracy of a function's between 0 and 1, the first that was seen

    def refuse(self) -> None:
        """Raise RewardError if there is a refusal."""
        if self.refusals:
            raise RewardError("; ".join(self.refusals))


def try_rewards(recipe: Recipe, data: PreparedData, tokenizer: Any) -> Trial:
    """Score gold answers (which must be right), an empty and a wrong answer of up to ``PROBLEMS`` problems a source.

    Raises:
        RewardError: a reward function cannot be loaded.
    """
    from dapo.run.reinforcement import make_scorer

    if recipe.scorer is not None:
        return Trial(lines=[f"not tried: {recipe.scorer} scores the responses"])
    if not recipe.rewards:
        return Trial(lines=["none: a teacher alone trains (algorithm.teacher)"])
    by_source: dict[str, list[Prompt]] = {}
    for prompt in (p for prompts in [data.train, *data.validation.values()] for p in prompts):
        by_source.setdefault(prompt.source, []).append(prompt)
    trial = Trial()
    scorer = make_scorer(_impatient(recipe))
    if scorer.sandbox is not None:
        trial.lines.append(scorer.sandbox)
        trial.brief.append(scorer.sandbox)
    if recipe.algorithm.dynamic_sampling.mode != "off" and mixed_by_spread(recipe):
        trial.brief.append(mixed_said(recipe))
    plays = recipe.environment.kind is not None
    try:
        for source, prompts in by_source.items():
            reward = next(r for r in recipe.rewards if r.name == "accuracy" and (not r.sources or source in r.sources))
            if reward.kind == "environment":
                trial.lines.append(f"{source}: its environment says what is right; no answer is tried here")
                trial.brief.append(trial.lines[-1])
                continue
            tags = recipe.data.thinking
            begun = (recipe.data.response_prefix or "") + f"{tags.open}\nSo it is.\n{tags.close}\n" * tags.enabled
            shown = _spread(prompts)
            beside = recipe.rollout.group_size - 1 if scorer.by_group else 0
            _Source(source, shown, prompts, reward, scorer, tokenizer, trial, begun, tags.enabled, plays, beside).run()
    finally:
        scorer.close()
    if recipe.algorithm.dynamic_sampling.mode != "off":
        trial.lines.append(mixed_said(recipe))
        if trial.fraction is not None and correct_decides(recipe):
            trial.doubts.append(
                f"accuracy is a fraction, such as {trial.fraction:.4g}: a group in which no response reaches "
                f"{recipe.algorithm.dynamic_sampling.correct_at:g} (algorithm.dynamic_sampling.correct_at) counts as "
                "all wrong, and is not trained on. To keep groups whose scores differ, set "
                "algorithm.dynamic_sampling.mixed: spread"
            )
    trial.doubts += _clamped(recipe, trial.sums)
    return trial


def _clamped(recipe: Recipe, sums: Sequence[float]) -> Iterator[str]:
    """Doubt an interval of reward scaling that weighted sums leave."""
    scaling = recipe.algorithm.reward_scaling
    if not sums or not scaling.enabled or recipe.algorithm.shaping is not None:
        return
    found = SumRange("", min(*sums, scaling.source_min), max(*sums, scaling.source_max))
    if found.leaves(scaling.source_min, scaling.source_max):
        yield (
            f"the weighted sum of the rewards runs from {min(sums):.4g} to {max(sums):.4g} on these answers, and "
            f"algorithm.reward_scaling clamps it to {scaling.source_min:g} .. {scaling.source_max:g}: what is clamped "
            f"away teaches nothing. Set {fitting(recipe, found)}, or algorithm.reward_scaling.enabled=false"
        )


def _impatient(recipe: Recipe) -> Recipe:
    """Return the recipe with services that are asked once, for a short time: one that is away is said at once."""
    once = {"outage_limit": 0.0, "retries": 0}
    rewards = [
        reward.model_copy(update={**once, "timeout": min(reward.seconds, SERVICE_SECONDS)})
        if reward.kind == "service"
        else reward
        for reward in recipe.rewards
    ]
    return recipe.model_copy(update={"rewards": rewards})


def _spread(prompts: Sequence[Prompt]) -> list[Prompt]:
    """Return a few of the prompts, from the first to the last."""
    places = np.linspace(0, len(prompts) - 1, min(PROBLEMS, len(prompts)))
    return [prompts[round(place)] for place in places]


def wrong_answer(reward: Reward, prompt: Prompt, others: Sequence[Prompt]) -> str:
    """Return another number where the answer is a whole one, else another problem's answer, else a word.

    For ``kind: code`` return a program that ends early.
    """
    if reward.kind == "code":
        return EARLY_EXIT
    gold = gold_of(reward, prompt)
    digits = gold.removeprefix("-")
    if digits.isascii() and digits.isdigit() and len(digits) < 1000:
        return str(int(gold) + 1)
    golds = (gold_of(reward, p) for p in others if p.answer != prompt.answer)
    return next((other for other in golds if other), "wrong")


def gold_of(reward: Reward, prompt: Prompt) -> str:
    """Return what is right; "" where there is nothing.

    That is the gold answer, the first of several, or the program in the record's solution for ``kind: code``.
    """
    if reward.kind == "code":
        return find_program(str(prompt.extra.get(SOLUTION) or ""))
    return next(iter(read_golds(prompt.answer)), "")


def forms_of(reward: Reward, prompt: Prompt) -> tuple[str, ...]:
    """How a right answer may be written; one form alone where the reward says which."""
    if reward.kind == "code":
        return (PROGRAM,)
    if reward.kind in ("service", "last_number"):
        return (GOLD,)
    if reward.kind == "math":
        return (FORMS[1],)
    if reward.kind == "exact" and reward.pattern is None:
        return (GOLD,)
    if reward.kind == "task":
        return (FORMS[-1],) if prompt.extra.get("task") == "signed_sum" else (FORMS[4], GOLD)
    return FORMS


@dataclass(slots=True)
class _Source:
    """One source and the reward that is its accuracy."""

    name: str
    prompts: list[Prompt]  # a few of them, which are scored
    everyone: Sequence[Prompt]
    reward: Reward
    scorer: CompositeScorer
    tokenizer: Any
    trial: Trial
    begun: str = ""  # what every response begins with
    thinks: bool = False  # ... thinking, so that the answer stands behind it
    plays: bool = False  # a response is an episode, here of one turn
    beside: int = 0  # empty responses beside each answer, for rewards that see its group

    def run(self) -> None:
        golden = [prompt for prompt in self.prompts if self._gold(prompt)]
        group = f"; each answer in a group with {self.beside} empty responses" if self.beside else ""
        golds = f"{len(golden)} of them with a gold answer{group}"
        self.trial.lines.append(f"{self.name}: {len(self.prompts)} problems, {golds}")
        if self.reward.kind == "code" and not golden:
            self.trial.doubts.append(f"{self.name}: no record has a column `{SOLUTION}`, so no right program was tried")
        probe = self._score([(self.prompts[0], self._gold(self.prompts[0])), (self.prompts[0], "")])
        if not any(score.scored for score in probe):  # do not wait for the time limit again and again
            self._say_unscored(str(probe[0].reason))
            return
        form, right = self._right_form(golden)
        self.trial.forms[self.name] = form
        self._show(f"right ({_quoted(form)})" if golden else "right (no gold answer)", right)
        wrong = self._score([(p, form.replace(GOLD, wrong_answer(self.reward, p, self.prompts))) for p in self.prompts])
        empty = self._score([(p, "") for p in self.prompts])
        self._show("wrong", wrong)
        self._show("empty", empty)
        summed = (("right", right), ("wrong", wrong), ("empty", empty))
        parts = [f"{what} {', '.join(_told(scores))}" for what, scores in summed if scores]
        self.trial.brief.append(f"{self.name}: {'; '.join(parts)} (gold answers as {_quoted(form)}{group})")
        self._judge(golden, form, right)
        self._look_for_fractions([*right, *wrong, *empty])
        self._can_be_written(form)
        if self.reward.kind == "service" and right and _mean(right) <= max(_mean(wrong), _mean(empty)):
            self.trial.doubts.append(
                f"{self.name}: the service scores gold answers {_mean(right):.4g}, wrong ones {_mean(wrong):.4g} and "
                f"empty ones {_mean(empty):.4g}: it cannot tell them apart"
            )
        for what, scores in (("wrong", wrong), ("empty", empty)):
            fooled = sum(_accuracy(score) >= 1.0 for score in scores)
            if fooled:
                self.trial.doubts.append(
                    f"{self.name}: {what} answers are right in the eyes of accuracy ({self.reward.kind}): {fooled} of "
                    f"{len(scores)}"
                )
        failed = [s.reason for scores in (right, wrong, empty) for s in scores if s.reason is not None]
        tried = len(right) + len(wrong) + len(empty)
        if right and not any(score.scored for score in right):
            self.trial.refusals.append(f"{self.name}: no gold answer is scored: {right[0].reason}")
        elif right and not any(score.scored for score in wrong):
            move = f", {BESIDE}" if str(wrong[0].reason).startswith("accuracy: ") else ""
            self.trial.refusals.append(
                f"{self.name}: no wrong answer is scored ({len(failed)} of {tried} answers are unscored), so every "
                f"group would be all right or without a vote: {wrong[0].reason}{move}"
            )
        elif failed:
            self.trial.doubts.append(f"{self.name}: {len(failed)} of {tried} answers are unscored: {failed[0]}")

    def _say_unscored(self, reason: str) -> None:
        """Refuse a reward that scores nothing; a service that is only slow may do so in a run, and is doubted."""
        if "answer within" in reason and "service: away" in reason:
            self.trial.doubts.append(
                f"{self.name}: a service gave no answer within {SERVICE_SECONDS:g} s, so no answer was tried "
                f"({reason}). A run asks again for up to rewards.outage_limit: see that it is up, and how long it takes"
            )
        else:
            self.trial.refusals.append(f"{self.name}: neither a gold nor an empty answer is scored: {reason}")

    def _gold(self, prompt: Prompt) -> str:
        return gold_of(self.reward, prompt)

    def _can_be_written(self, form: str) -> None:
        """Doubt right responses that hold tokens which the tokenizer does not know."""
        if doubt := self._unknown(form):
            self.trial.doubts.append(doubt)

    def _unknown(self, form: str) -> str | None:
        golden = [gold for prompt in self.everyone if (gold := self._gold(prompt))]
        texts = [form.replace(GOLD, answer) for answer in golden]
        return unknown_in_answers(self.name, _quoted(form), texts, self.tokenizer)

    def _right_form(self, golden: list[Prompt]) -> tuple[str, list[Score]]:
        """Return a form in which the first gold answer is right (else the first), and the scores of all in it.

        Of several forms it is the first that the model can write.
        """
        forms = forms_of(self.reward, self.prompts[0])
        if not golden:
            return forms[0], []
        first = self._score([(golden[0], form.replace(GOLD, self._gold(golden[0]))) for form in forms])
        highest = max(map(_accuracy, first))
        equal = [index for index, score in enumerate(first) if _accuracy(score) == highest]
        best = next((index for index in equal if not self._unknown(forms[index])), equal[0])
        form = forms[best]
        return form, [first[best], *self._score([(p, form.replace(GOLD, self._gold(p))) for p in golden[1:]])]

    def _judge(self, golden: list[Prompt], form: str, right: list[Score]) -> None:
        missed = [p for p, score in zip(golden, right, strict=True) if score.scored and _accuracy(score) < 1.0]
        if not missed or self.reward.kind == "service":  # a judge's scores are fractions
            return
        shown = self._gold(missed[0])[:_SHOWN]
        if len(missed) == len(golden) and len(forms_of(self.reward, golden[0])) < len(FORMS):
            self.trial.refusals.append(
                f"{self.name}: accuracy ({self.reward.kind}) calls all {len(golden)} gold answers wrong that were "
                f"tried as {_quoted(form)}, the first {shown!r}; is `answer` the right field, and this the right kind?"
            )
        elif len(missed) == len(golden):
            self.trial.doubts.append(
                f"{self.name}: accuracy ({self.reward.kind}) calls no gold answer right in any form that was tried "
                f"({', '.join(map(_quoted, FORMS))}); see that it accepts what the model is asked to write"
            )
        else:
            self.trial.doubts.append(
                f"{self.name}: accuracy ({self.reward.kind}) calls {len(missed)} of {len(golden)} gold answers wrong "
                f"as {_quoted(form)}, the first {shown!r} of the problem {missed[0].problem[:_SHOWN]!r}"
            )

    def _look_for_fractions(self, scores: Sequence[Score]) -> None:
        if self.reward.kind == "function" and self.trial.fraction is None:
            self.trial.fraction = next((value for value in map(_accuracy, scores) if 0.0 < value < 1.0), None)

    def _score(self, pairs: Sequence[tuple[Prompt, str]]) -> list[Score]:
        found: dict[Key, Score] = {}
        texts_of = [[text, *[""] * self.beside] for _, text in pairs]
        for index, ((prompt, _), texts) in enumerate(zip(pairs, texts_of, strict=True)):
            keys = [Key("check", index, sample) for sample in range(len(texts))]
            self.scorer.submit_group(keys, prompt, [self._completion(text) for text in texts])
        wanted = sum(map(len, texts_of))
        while len(found) < wanted:
            answers = self.scorer.poll(None)
            if not answers:
                raise RewardError(f"{self.name}: the scorer lost {wanted - len(found)} answers")
            found.update(answers)
        self.trial.sums += [score.reward for score in found.values() if score.scored]
        self.trial.recorded |= {name for score in found.values() for name in score.values}
        return [found[Key("check", index, 0)] for index in range(len(pairs))]

    def _completion(self, text: str) -> Response:
        """As if the model had written ``text``, surely, and ended."""
        ids = np.asarray(self.tokenizer(text, add_special_tokens=False)["input_ids"] if text else [], dtype=np.int64)
        count = len(ids)
        whole, answer = self.begun + text, text if self.thinks or self.plays else None
        versions, logprobs = np.zeros(count, np.int32), np.zeros(count, np.float32)
        ended = "done" if self.plays else None
        return Response(ids, logprobs, versions, FinishReason.STOP, whole, answer=answer, ended=ended)

    def _show(self, what: str, scores: Sequence[Score]) -> None:
        if scores:
            self.trial.lines.append(f"  {what:<30} {'; '.join(_told(scores))}")


def _quoted(form: str) -> str:
    return "'" + form.replace("\n", "\\n") + "'"


def _accuracy(score: Score) -> float:
    return score.values["accuracy"] if score.scored else -1.0


def _mean(scores: Sequence[Score]) -> float:
    """Return the mean accuracy of those that are scored; -1 where none is."""
    return float(np.mean([_accuracy(score) for score in scores if score.scored] or [-1.0]))


def _told(scores: Sequence[Score]) -> Iterator[str]:
    """Each value's mean, with its range where there is one."""
    scored = [score for score in scores if score.scored]
    for name in dict.fromkeys(name for score in scored for name in score.values):
        values = [score.values[name] for score in scored if name in score.values]
        spread = f" ({min(values):.4g} to {max(values):.4g})" if min(values) != max(values) else ""
        yield f"{name} {np.mean(values):.4g}{spread}"
    if len(scored) < len(scores):
        yield f"{len(scores) - len(scored)} of {len(scores)} unscored"
