"""The researcher's choices, bound to their settings: from finished groups to a step of the learner.

The collector asks the algorithm for each group's verdict. The trainer asks it which log-probabilities it needs, hands
it the batch with these, and passes the resulting ``LearnStep`` to the learner. No caller looks into that step.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapo.algorithms.entropy import EntropyControl
from dapo.algorithms.shaping import clamped, kl_in_reward
from dapo.types.batch import (
    BoolArray,
    FloatArray,
    Group,
    IntArray,
    LearnStep,
    Metrics,
    Of,
    RatioAgainst,
    Row,
    StepBatch,
    TokenRow,
    by_response,
)
from dapo.types.enums import Disposition, FinishReason, Verdict
from dapo.types.extra import Extra
from dapo.types.row_parts import cut_row, joined_logprobs, token_rows
from dapo.types.seeds import EPOCHS, derive_seed

Float64 = NDArray[np.float64]
LENGTH_PENALTY = "overlong_punishment"
"""Under this name an advantage function finds the length penalty among the rewards."""

References = Mapping[tuple[int, int], FloatArray]
"""Log-probabilities [response tokens] under some weights, by (group, index of the response)."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Divide a batch into optimizer steps, in one pass over its groups or several."""

    minibatch_prompts: int | None = None  # groups of one optimizer step; None: all of the batch
    epochs: int = 1  # passes over the batch
    seed: int = 0  # of the run; later passes draw their minibatches from it

    def minibatches(self, groups_P: Sequence[Group], step: int, epoch: int) -> list[list[Group]]:
        """Return the groups of each optimizer step of one pass: the first follows the batch, later ones are drawn.

        Groups of a minibatch keep the order of the batch, so passes of one minibatch are the same.
        """
        size = self.minibatch_prompts or max(1, len(groups_P))
        places = list(range(len(groups_P)))
        if epoch:
            places.sort(key=lambda place: derive_seed(self.seed, EPOCHS, step, epoch, place))
        return [
            [groups_P[place] for place in sorted(places[first : first + size])] for first in range(0, len(places), size)
        ]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """Plan each training step; see docs/hooks.md for the signature of each function.

    Only ``entropy`` changes during a run. ``state`` and ``load`` carry it over a checkpoint.
    """

    judge: Callable[[Float64, BoolArray], Verdict]  # metric of each response, voters -> verdict
    shape: Callable[[Float64, IntArray, BoolArray], tuple[Float64, Float64]]  # rewards, lengths, truncated
    advantages: Callable[..., list[Float64]]  # rewards and voters of all groups, and their parts where it takes them
    loss_weights: Callable[[list[BoolArray], IntArray], FloatArray]  # loss masks, groups -> weight of each row
    normalise: Callable[[list[Float64], list[IntArray]], list[Float64]] | None = None  # advantages, tokens with loss
    advantage_range: tuple[float, float] = (-math.inf, math.inf)  # what advantages are clipped to
    metric: str = "accuracy"  # the score that ``judge`` reads
    truncated_vote: bool = False
    overlong_filtering: bool = True
    source_range: tuple[float, float] | None = None  # what reward scaling clamps to; None: nothing is clamped
    extra: Callable[[Sequence[Row]], Sequence[Extra]] | None = None  # arrays that the loss reads of one optimiser step
    needs_reference: bool = False  # the loss or the reward reads log-probabilities of a reference
    kl_in_reward: float = 0.0  # coefficient of the KL that is subtracted from shaped rewards
    ratio_against: RatioAgainst = "sampler"
    refresh_every: int | None = None  # training steps after which the reference becomes the policy; None: never
    teachers: Mapping[str, Of] = field(default_factory=dict)  # who judges the responses of a data source
    taught_alone: bool = False  # rewards train nothing: every response is learnt from, whatever it is worth
    passes: Passes = Passes()
    entropy_coefficient: float = 0.0  # of the entropy term, where it is fixed
    entropy: EntropyControl | None = None  # what adapts the coefficient; None: it is fixed

    # ------------------------------------------------------------------ a group

    def voters(self, group: Group) -> BoolArray:
        """Scored members, without the truncated ones unless they vote. Of a teacher alone all that an engine ended."""
        voters = group.scored()
        if self.taught_alone:
            voters = np.array([made.finish is not FinishReason.FAILED for made in group.completions_G])
        return voters if self.truncated_vote else voters & ~group.truncated()

    def verdict(self, group: Group) -> Verdict:
        """Judge a finished group on the raw metric, before any scaling or length penalty.

        A teacher alone keeps every group with a voter: it has something to say of equal scores, too.
        """
        voters = self.voters(group)
        if self.taught_alone and voters.any():
            return Verdict.KEPT
        values = np.array(
            [s.values.get(self.metric, np.nan) if s.scored else np.nan for s in group.scores_G], dtype=np.float64
        )
        return self.judge(values, voters & ~np.isnan(values))

    def shape_group(self, group: Group) -> None:
        """Scale rewards and add the length penalty; unscored members stay nan and carry no loss."""
        raw = np.array([s.reward for s in group.scores_G], dtype=np.float64)
        group.voters_G = self.voters(group)
        group.rewards_G, group.penalties_G = self.shape(raw, group.lengths(), group.truncated())

    def assign_advantages(self, groups_P: Sequence[Group]) -> None:
        """Set the advantages of every response; groups without two voters get zeros and no loss.

        Filled groups get zeros too: they were rejected on correctness, and what still differs in them (a length
        penalty, a second reward) would teach short wrong answers.
        """
        able = [g for g in groups_P if int(_voters(g).sum()) >= 2 and g.disposition is not Disposition.FILLED]
        for group in groups_P:
            group.advantages_G = np.zeros(len(group.completions_G))
        if self.taught_alone:
            return
        given: list[list[Any]] = [[_rewards(g) for g in able], [_voters(g) for g in able]]
        if takes_parts(self.advantages):
            given.append([reward_parts(g) for g in able])
        advantages_PG = self.advantages(*given)
        if self.normalise is not None:
            tokens_PG = [np.array([mask.sum() for mask in self.loss_masks(g)], dtype=np.int64) for g in able]
            advantages_PG = self.normalise(advantages_PG, tokens_PG)
        for group, advantages in zip(able, advantages_PG, strict=True):
            group.advantages_G = np.clip(advantages, *self.advantage_range)

    def loss_masks(self, group: Group) -> list[BoolArray]:
        """Tokens of each response that carry loss: generated, of a voter, not overlong-filtered."""
        voters = self.voters(group)
        enough = int(voters.sum()) >= (1 if self.taught_alone else 2)  # a baseline needs two
        masks = []
        for votes, completion in zip(voters.tolist(), group.completions_G, strict=True):
            carries = votes and enough and not (self.overlong_filtering and completion.truncated)
            masks.append(completion.sampled & carries)
        return masks

    # ------------------------------------------------------------------ a training step

    def asks(self, batch: StepBatch) -> dict[Of, list[TokenRow]]:
        """Return the responses whose log-probabilities ``plan`` needs, by the weights that shall give them.

        A KL in the reward compares the reference with the numbers that the ratio runs against. Interpolated ones need
        no forward pass of their own, so the sampler's are taken for them.
        """
        if not (self.needs_reference or self.teachers):
            return {}
        asked: dict[Of, list[TokenRow]] = {}
        for group, index in self._voting(batch.groups_P):
            for of in self._asked_of(group):
                asked.setdefault(of, []).extend(token_rows(group, index))
        return asked

    def _asked_of(self, group: Group) -> Iterator[Of]:
        """Yield by which weights the tokens of the group's responses are judged."""
        if self.needs_reference:
            yield "reference"
            if self.kl_in_reward and self.ratio_against == "learner":
                yield "policy"
        if group.prompt.source in self.teachers:
            yield self.teachers[group.prompt.source]

    def plan(
        self,
        batch: StepBatch,
        logprobs: Mapping[Of, Sequence[FloatArray]],
        *,
        version: int,
        rate: Callable[[int], float],
        traced: Collection[int] = (),
    ) -> LearnStep:
        """Shape rewards, set advantages, and return what the learner does with the batch.

        The groups get their rewards, penalties and advantages, and ``batch.metrics`` what they show. The algorithm's
        own state stays as it is.

        Args:
            batch: as collected.
            logprobs: answers to ``asks``.
            version: of the weights that are about to be trained.
            rate: learning rate of the optimizer step with this number, from 0.
            traced: ids of the groups whose tokens the learner keeps on record, in the last pass.
        """
        for group in batch.finished:
            self.shape_group(group)
        found = {
            of: joined_logprobs([one for one in self._voting(batch.groups_P) if of in self._asked_of(one[0])], arrays)
            for of, arrays in logprobs.items()
        }
        references = found.get("reference", {})
        taught = {key: made for of in set(self.teachers.values()) & found.keys() for key, made in found[of].items()}
        batch.metrics |= self.sum_metrics(batch.groups_P)
        if self.kl_in_reward:
            batch.metrics |= self._subtract_kl(batch.groups_P, references, found.get("policy", {}))
        self.assign_advantages(batch.groups_P)
        if self.advantage_range != (-math.inf, math.inf):
            voting_R = [np.asarray(g.advantages_G)[_voters(g)] for g in batch.groups_P]
            batch.metrics["reward/advantage_clipped"] = _mean(np.isin(_joined(voting_R), self.advantage_range))
        rows_M = [
            self.rows(groups, traced if epoch == self.passes.epochs - 1 else (), references, taught)
            for epoch in range(self.passes.epochs)
            for groups in self.passes.minibatches(batch.groups_P, version + 1, epoch)
        ]
        step = LearnStep(
            rows_M,
            [rate(number) for number in range(len(rows_M))],
            version,
            self.ratio_against,
            entropy_coefficient=self.entropy_coefficient if self.entropy is None else self.entropy.now,
            refresh_reference=self.refresh_every is not None and (version + 1) % self.refresh_every == 0,
            epochs=self.passes.epochs,
        )
        first = [row for rows in step.first_pass for row in rows]
        tokens_R = [sum(int(first[n].loss_mask.sum()) for n in parts) for parts in by_response(first)]
        batch.metrics |= trained_metrics(batch.groups_P, tokens_R, batch.metrics.get("sampling/generated_tokens", 0))
        return step

    def learned(self, step: LearnStep, metrics: Metrics) -> Metrics:
        """Adapt to what the learner measured in ``step``; return metrics of what the algorithm had set in it."""
        if self.entropy is not None:
            self.entropy.update(metrics.get("train/entropy", math.nan))
        elif not self.entropy_coefficient:
            return {}
        return {"train/entropy_coefficient": step.entropy_coefficient}

    def state(self) -> dict[str, Any]:
        """Return what changes during a run, for a checkpoint."""
        return {"entropy": [] if self.entropy is None else self.entropy.state()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state`` returned."""
        if self.entropy is not None:
            self.entropy.load(state["entropy"])

    def rows(
        self,
        groups: Sequence[Group],
        traced: Collection[int] = (),
        references: References | None = None,
        taught: References | None = None,
    ) -> list[Row]:
        """Return the rows of one optimizer step over ``groups``, which have advantages; see ``plan``.

        Weights and extra arrays are those of whole responses. A response whose turns have prompts of their own is cut
        into parts at the end, so its parts sum to what it would be in one row.
        """
        members = [(group, index) for group in groups for index in range(len(group.completions_G))]
        masks = [mask for group in groups for mask in self.loss_masks(group)]
        weights_R = self.loss_weights(masks, np.array([group.id for group, _ in members], dtype=np.int64)).tolist()
        prompts = {group.id: group.prompt.token_ids.astype(np.int32) for group in groups}
        references, taught = references or {}, taught or {}
        rows = []
        for (group, index), mask, weight in zip(members, masks, weights_R, strict=True):
            assert group.advantages_G is not None, "assign_advantages comes first"
            completion = group.completions_G[index]
            rows.append(
                Row(
                    group=group.id,
                    sample=index,
                    prompt_ids=prompts[group.id],
                    token_ids=completion.token_ids.astype(np.int32, copy=False),
                    loss_mask=mask,
                    sampler_logprobs=completion.logprobs,
                    versions=completion.versions,
                    loss_weight=weight,
                    advantage=float(group.advantages_G[index]),
                    reference_logprobs=references.get((group.id, index)),
                    teacher_logprobs=taught.get((group.id, index)),
                    traced=group.id in traced,
                    extra=completion.extra,
                )
            )
        if self.extra is not None:
            own_R = self.extra(rows)
            rows = [replace(row, extra={**row.extra, **own}) for row, own in zip(rows, own_R, strict=True)]
        turns_R = [group.completions_G[index].turns for group, index in members]
        return [part for row, turns in zip(rows, turns_R, strict=True) for part in cut_row(row, turns)]

    def _voting(self, groups_P: Sequence[Group]) -> list[tuple[Group, int]]:
        """Return the responses that vote; no other response carries loss."""
        return [(group, int(index)) for group in groups_P for index in np.flatnonzero(self.voters(group))]

    def _subtract_kl(self, groups_P: Sequence[Group], references: References, own: References) -> Metrics:
        """Subtract ``kl_in_reward`` x the KL of each voter's response from its shaped reward.

        ``own``: the policy's log-probabilities; the sampler's serve for responses that it lacks.
        """
        taken: list[float] = []
        for group in groups_P:
            change = np.zeros(len(group.completions_G))
            for index in np.flatnonzero(_voters(group)):
                key, completion = (group.id, int(index)), group.completions_G[index]
                change[index] = kl_in_reward(
                    own.get(key, completion.logprobs),
                    references[key],
                    completion.sampled,
                    coefficient=self.kl_in_reward,
                )
            group.rewards_G = _rewards(group) + change
            taken += change[_voters(group)].tolist()
        return {"reward/kl_penalty": float(np.mean(taken)) if taken else 0.0}

    def sum_metrics(self, groups_P: Sequence[Group]) -> Metrics:
        """Measure the raw rewards of the scored responses: their range, and the share that scaling clamps."""
        sums = np.array([s.reward for g in groups_P for s in g.scores_G if s.scored], dtype=np.float64)
        if not len(sums):
            return {"reward/clamped": math.nan, "reward/raw_min": math.nan, "reward/raw_max": math.nan}
        cut = np.zeros(len(sums), dtype=np.bool_)
        if self.source_range is not None:
            cut = clamped(sums, source_min=self.source_range[0], source_max=self.source_range[1])
        return {
            "reward/clamped": float(cut.mean()),
            "reward/raw_min": float(sums.min()),
            "reward/raw_max": float(sums.max()),
        }


def takes_parts(function: Callable[..., Any]) -> bool:
    """Whether an advantage function has a third argument, for the rewards one by one."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    required = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    return len(required) > 2


def reward_parts(group: Group) -> dict[str, Float64]:
    """Return the parts of each response's weighted sum: every reward's value by its name, before weight and scaling,
    and the length penalty as ``overlong_punishment``. Unscored responses have nan."""
    names = dict.fromkeys(name for score in group.scores_G if score.scored for name in score.values)
    parts = {
        name: np.array([s.values.get(name, np.nan) if s.scored else np.nan for s in group.scores_G], dtype=np.float64)
        for name in names
    }
    if group.penalties_G is not None:
        parts[LENGTH_PENALTY] = group.penalties_G
    return parts


def trained_metrics(groups_P: Sequence[Group], loss_tokens_R: Sequence[int], generated_tokens: float) -> Metrics:
    """Measure the trained groups after shaping: rewards, advantages, lengths, penalties.

    Args:
        groups_P: with advantages.
        loss_tokens_R: tokens with loss of each of their responses.
        generated_tokens: of the step.
    """
    loss_tokens = sum(loss_tokens_R)
    rewards = _joined([g.rewards_G for g in groups_P])
    voters = _joined([g.voters_G for g in groups_P]).astype(bool)
    advantages = _joined([g.advantages_G for g in groups_P])
    penalties = _joined([g.penalties_G for g in groups_P])
    shaped = rewards[~np.isnan(rewards)]
    return {
        "reward/shaped_mean": _mean(shaped),
        "reward/shaped_std": float(shaped.std()) if len(shaped) else math.nan,
        "reward/advantage_abs_mean": _mean(np.abs(advantages[voters])),
        "response/length_trained_mean": _mean(_joined([g.lengths() for g in groups_P])),
        "response/truncated_share_trained": _mean(_joined([g.truncated() for g in groups_P])),
        "response/penalty_mean": _mean(penalties),
        "response/penalized": _mean(penalties < 0),
        "response/voters": _mean(voters),
        "response/with_loss": _mean(np.asarray(loss_tokens_R) > 0),
        "sampling/trained_tokens": loss_tokens,
        "sampling/trained_share": loss_tokens / generated_tokens if generated_tokens else math.nan,
    }


def _voters(group: Group) -> BoolArray:
    assert group.voters_G is not None, "shape_group comes first"
    return group.voters_G


def _rewards(group: Group) -> Float64:
    assert group.rewards_G is not None, "shape_group comes first"
    return group.rewards_G


def _joined(arrays: Sequence[np.ndarray | None]) -> np.ndarray:
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if present else np.zeros(0)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan
