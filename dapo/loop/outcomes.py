"""When a batch does not fill: the evidence, and when a verifier must be suspected. The words are found elsewhere."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from dapo.config.schema import DynamicSampling
from dapo.errors import NothingScored, SamplingStopped
from dapo.loop.account import Account
from dapo.loop.refill import in_time
from dapo.types.enums import Verdict
from dapo.types.evidence import (
    ENGINE,
    CollectProgress,
    Example,
    Met,
    Shares,
    SilentEvidence,
    StopEvidence,
    UnscoredEvidence,
    cause_of,
)

log = logging.getLogger(__name__)

# Unscored responses, and not a scored one, after which a step gives up: few, for each may have cost a time limit.
HOPELESS = 32
COMMONEST = 3
"""Reasons of unscored responses that are evidence, by their number."""


def filling(step: int, kept: int, shares: Shares, waiting: int = 0) -> CollectProgress:
    """How far the batch of ``step`` is; ``waiting``: responses that ended and have no score yet."""
    return CollectProgress(step, kept, shares.prompts_per_step, shares.judged, shares, shares.generated_tokens, waiting)


def stopped(account: Account, settings: DynamicSampling, kept: int, shares: Shares) -> SamplingStopped:
    """The error of the outcome ``stop``, with what was seen."""
    met, limit = _met(settings, shares)
    wanted = shares.prompts_per_step
    return SamplingStopped(StopEvidence(met, limit, kept, wanted, shares, cause_of(shares), _example(account)))


def _met(settings: DynamicSampling, shares: Shares) -> tuple[Met, float | None]:
    """What was met, and what a cap allows."""
    if shares.data_ended:
        return "data", None
    if shares.all_retired:
        return "retired", None
    if settings.max_groups is not None and shares.dispatched >= settings.max_groups * shares.prompts_per_step:
        return "max_groups", settings.max_groups
    return "max_tokens", settings.max_tokens


def _example(account: Account) -> Example | None:
    """One response that shows the commonest reason for rejection: a wrong prompt or verifier is seen at once."""
    rejected = [group for group in account.groups if group.verdict is not Verdict.KEPT] or account.groups
    if not rejected:
        return None
    commonest = Counter(group.verdict for group in rejected).most_common(1)[0][0]
    group = [group for group in rejected if group.verdict is commonest][-1]
    index = next((i for i, score in enumerate(group.scores_G) if not score.scored), 0)
    score = group.scores_G[index]
    accuracy = score.values["accuracy"] if score.scored else None
    text = group.completions_G[index].text
    return Example(group.prompt.problem, group.prompt.answer, text, accuracy, score.reason)


def fails_on_everything(account: Account) -> None:
    """Raise NothingScored when nothing at all could be scored, in this step and those right before it.

    A broken verifier or engine must not loop for ever.
    """
    failures = account.barren
    if account.scored or failures.total() < HOPELESS:
        return
    engine = sum(n for reason, n in failures.items() if reason.startswith(ENGINE)) > failures.total() / 2
    raise NothingScored(UnscoredEvidence(failures.total(), dict(failures.most_common(COMMONEST)), engine))


def silent(reasons: Mapping[str, str]) -> SilentEvidence:
    """An evaluation in which the accuracy of no response of a set is known; ``reasons``: by set, the commonest."""
    return SilentEvidence(dict(reasons), all(reason.startswith(ENGINE) for reason in reasons.values()))


def warn_of_old_groups(settings: DynamicSampling, prompts_per_step: int, step: int, births: Sequence[int]) -> None:
    """A resume with a lower ``max_age`` or fewer prompts a step may hold more than can train in time.

    Args:
        births: ``Group.born`` of each held group.
    """
    if settings.surplus == "carry" and not in_time(births, step - 1, prompts_per_step, settings.max_age):
        log.warning(
            "%d groups are held from before, more than can train within max_age = %d versions of %d groups: the oldest "
            "train first, some of them older than that. algorithm.dynamic_sampling.on_max_age=drop drops them.",
            len(births),
            settings.max_age,
            prompts_per_step,
        )
