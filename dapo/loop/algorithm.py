"""The researcher's choices, bound to their settings: five functions that the loop calls and never looks into."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dapo.algorithms.shaping import clamped
from dapo.types.batch import BoolArray, FloatArray, Group, IntArray, Metrics, Row
from dapo.types.enums import Disposition, Verdict

Float64 = NDArray[np.float64]
LENGTH_PENALTY = "overlong_punishment"
"""Under this name an advantage function finds the length penalty among the rewards."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """What is computed between a finished group and the loss; see docs/algorithm.md for each signature."""

    judge: Callable[[Float64, BoolArray], Verdict]  # metric of each response, voters -> verdict
    shape: Callable[[Float64, IntArray, BoolArray], tuple[Float64, Float64]]  # rewards, lengths, truncated
    advantages: Callable[..., list[Float64]]  # rewards and voters of all groups, and their parts where it takes them
    loss_weights: Callable[[list[BoolArray], IntArray], list[FloatArray]]  # loss masks, groups of one optimiser step
    metric: str = "accuracy"  # the score that ``judge`` reads
    truncated_vote: bool = False
    overlong_filtering: bool = True
    source_range: tuple[float, float] | None = None  # what reward scaling clamps to; None: nothing is clamped
    marks: Callable[[Sequence[Row]], list[BoolArray]] | None = None  # tokens of one optimiser step that the loss marks
    needs_reference: bool = False  # the loss or the reward reads log-probabilities of a reference
    kl_in_reward: float = 0.0  # coefficient of the KL that is subtracted from shaped rewards

    def voters(self, group: Group) -> BoolArray:
        """Scored members, without the truncated ones unless they vote (algorithm.md section 2)."""
        voters = group.scored()
        return voters if self.truncated_vote else voters & ~group.truncated()

    def verdict(self, group: Group) -> Verdict:
        """Judge a finished group on the raw metric, before any scaling or length penalty."""
        values = np.array(
            [s.values.get(self.metric, np.nan) if s.scored else np.nan for s in group.scores_G], dtype=np.float64
        )
        return self.judge(values, self.voters(group) & ~np.isnan(values))

    def shape_group(self, group: Group) -> None:
        """Scale rewards and add the length penalty; unscored members stay nan and carry no loss."""
        raw = np.array([s.reward for s in group.scores_G], dtype=np.float64)
        group.voters_G = self.voters(group)
        group.rewards_G, group.penalties_G = self.shape(raw, group.lengths(), group.truncated())

    def sum_metrics(self, groups_P: Sequence[Group]) -> Metrics:
        """The raw rewards of the scored responses of trained groups: their range, and the share that scaling clamps."""
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

    def assign_advantages(self, groups_P: Sequence[Group]) -> None:
        """Advantages of every response; groups without two voters get zeros and no loss.

        Filled groups get zeros too: they were rejected on correctness, and what still differs in them (a length
        penalty, a second reward) would teach short wrong answers.
        """
        able = [g for g in groups_P if int(_voters(g).sum()) >= 2 and g.disposition is not Disposition.FILLED]
        for group in groups_P:
            group.advantages_G = np.zeros(len(group.completions_G))
        given: list[list[Any]] = [[_rewards(g) for g in able], [_voters(g) for g in able]]
        if takes_parts(self.advantages):
            given.append([reward_parts(g) for g in able])
        for group, advantages in zip(able, self.advantages(*given), strict=True):
            group.advantages_G = advantages

    def votes(self, group: Group, index: int) -> bool:
        """Whether response ``index`` of a shaped group counts in its mean and std."""
        return bool(_voters(group)[index])

    def loss_masks(self, group: Group) -> list[BoolArray]:
        """Tokens of each response that carry loss: generated, of a voter, not overlong-filtered."""
        voters = _voters(group)
        enough = int(voters.sum()) >= 2
        masks = []
        for votes, completion in zip(voters.tolist(), group.completions_G, strict=True):
            carries = votes and enough and not (self.overlong_filtering and completion.truncated)
            if completion.generated is not None:
                masks.append(completion.generated & carries)
            else:
                masks.append((np.ones if carries else np.zeros)(len(completion), dtype=np.bool_))
        return masks


def takes_parts(function: Callable[..., Any]) -> bool:
    """Whether an advantage function has a third argument, for the rewards one by one."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(function).parameters.values()
    required = [p for p in parameters if p.kind in kinds and p.default is inspect.Parameter.empty]
    return len(required) > 2


def reward_parts(group: Group) -> dict[str, Float64]:
    """What the weighted sum of each response was made of: every reward's value by its name, before weight and scaling,
    and the length penalty as ``overlong_punishment``. nan where a response is unscored."""
    names = dict.fromkeys(name for score in group.scores_G if score.scored for name in score.values)
    parts = {
        name: np.array([s.values.get(name, np.nan) if s.scored else np.nan for s in group.scores_G], dtype=np.float64)
        for name in names
    }
    if group.penalties_G is not None:
        parts[LENGTH_PENALTY] = group.penalties_G
    return parts


def _voters(group: Group) -> BoolArray:
    assert group.voters_G is not None, "shape_group comes first"
    return group.voters_G


def _rewards(group: Group) -> Float64:
    assert group.rewards_G is not None, "shape_group comes first"
    return group.rewards_G
