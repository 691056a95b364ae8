"""How many groups to dispatch, and how long they may be held back."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from dapo.config.schema import DynamicSampling

# The acceptance estimate forgets: each step the counts behind it are multiplied by this.
ACCEPTANCE_MEMORY = 0.7
# Never plan for less than this acceptance: a run that accepts nothing must meet its cap, not fill the machine.
LOWEST_ACCEPTANCE = 0.05


class Refill:
    """Refill by deficit over a running acceptance estimate."""

    def __init__(self, settings: DynamicSampling, prompts_per_step: int) -> None:
        self.settings, self.prompts_per_step = settings, prompts_per_step
        self._accepted, self._judged = 0.0, 0.0
        self.begins = True  # nothing was asked in this step

    def begin(self) -> None:
        """A step begins: what was seen before counts less."""
        self.begins = True
        self._accepted *= ACCEPTANCE_MEMORY
        self._judged *= ACCEPTANCE_MEMORY

    def judged(self, accepted: bool) -> None:
        self._judged += 1.0
        self._accepted += accepted

    @property
    def acceptance(self) -> float:
        """Running estimate of the share of groups that are kept; 1 before anything was judged."""
        return max(LOWEST_ACCEPTANCE, (self._accepted + 1.0) / (self._judged + 1.0))

    def wanted(self, kept: int, under_way: int, free: int, dispatched: int, carried: int, lag: int = 0) -> int:
        """Groups to dispatch now.

        With a fixed ``oversample`` there are rounds: at the first call of a step, and then when nothing is under way.

        Args:
            kept: groups kept and not yet trained.
            under_way: groups dispatched and not yet judged.
            free: groups that the engine could seat at once.
            dispatched: groups dispatched in this step.
            carried: groups that were held when the step began.
            lag: versions by which the engine's weights are older than those that this step trains: 0 once they are
                published, 1 while the step before is still being learnt from. Nothing is dispatched that would be too
                old to train in this very step.
        """
        settings, prompts = self.settings, self.prompts_per_step
        if lag > settings.max_age:
            return 0
        begins, self.begins = self.begins, False
        if settings.oversample is not None and under_way and not begins:
            return 0  # whole rounds, as the published scripts have them: the next when nothing is under way
        if settings.mode == "filter":
            wanted = self._by_deficit(kept, under_way, free, lag)
        elif settings.mode == "replace" and dispatched + carried >= prompts:
            missing = least_kept(settings, prompts) - kept
            wanted = min(math.ceil(missing / self.acceptance), prompts) - under_way
        else:
            return max(0, prompts - dispatched - carried)
        if settings.max_groups is not None:
            wanted = min(wanted, math.ceil(settings.max_groups * prompts) - dispatched)
        return max(0, wanted)

    def _by_deficit(self, kept: int, under_way: int, free: int, lag: int) -> int:
        """What is missing for the batch, and for ``lookahead`` of the next, over the acceptance estimate."""
        settings, prompts = self.settings, self.prompts_per_step
        carries = settings.unfinished == "carry" and settings.surplus == "carry"
        missing = prompts * (1.0 + (settings.lookahead if carries else 0.0)) - kept
        factor = settings.oversample or 1.0 / self.acceptance
        wanted = math.ceil(missing * factor - 1e-9) - under_way
        if settings.oversample is None:
            # Beyond the engine's slots a group would only wait, and by then the estimate is better.
            wanted = min(wanted, max(free, 0 if under_way else 1))
        if settings.surplus == "carry" and settings.on_max_age == "wait":
            wanted = min(wanted, prompts * (settings.max_age - lag + 1) - kept - under_way)
        return wanted

    def state(self) -> list[float]:
        return [self._accepted, self._judged]

    def load(self, state: list[float]) -> None:
        self._accepted, self._judged = state


def least_kept(settings: DynamicSampling, prompts_per_step: int) -> int:
    """Mode ``replace``: kept groups from which on a batch is filled up with copies."""
    return math.floor(settings.min_replace_ratio * prompts_per_step) + 1


def is_full(
    settings: DynamicSampling,
    prompts_per_step: int,
    step: int,
    kept: Sequence[int],
    unfinished: Sequence[int],
    tried: int,
) -> bool:
    """Whether the batch of ``step`` can be taken.

    Args:
        kept: ``born`` of each kept group, in any order.
        unfinished: the same of groups not yet judged.
        tried: groups dispatched in this step, and those held when it began.
    """
    if settings.mode != "filter":
        enough = settings.mode != "replace" or len(kept) >= least_kept(settings, prompts_per_step)
        return enough and tried >= prompts_per_step and not unfinished
    if len(kept) < prompts_per_step:
        return False
    if not unfinished or settings.unfinished == "drain":
        return not unfinished
    if settings.unfinished == "discard" or settings.on_max_age == "drop":
        return True
    surplus = sorted(kept)[prompts_per_step:] if settings.surplus == "carry" else []
    return in_time([*surplus, *unfinished], step, prompts_per_step, settings.max_age)


def in_time(births: Iterable[int], step: int, prompts_per_step: int, max_age: int) -> bool:
    """Whether groups that stay behind after the batch of ``step`` can all train before they are older than ``max_age``.

    The oldest train first, P a step: for every k, at most P x k of them may be due within the next k steps.
    ``Refill`` holds at most P (max_age + 1) groups at once, P less for each version that the engine lags behind;
    then waiting for those that still decode always makes this true in the end, so that no trained group is ever older
    than ``max_age`` and nothing is dropped.

    Args:
        births: ``born`` of each group that stays behind, decoding ones included.
    """
    due = Counter(max(0, born + max_age - step) for born in births)
    total = 0
    for k in range(max_age + 1):
        total += due[k]
        if total > prompts_per_step * k:
            return False
    return True
