"""When a batch does not fill: what to say, and when a verifier must be suspected.

The loop does not know where its run lives: ``<RUN>`` in a message is filled in by whoever does.
"""

from __future__ import annotations

import dataclasses
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal

from dapo.config.schema import DynamicSampling
from dapo.contracts.enums import Verdict
from dapo.contracts.evidence import CollectProgress, Shares
from dapo.errors import NothingScored, RewardError, SamplingStopped
from dapo.loop.account import Account
from dapo.loop.refill import in_time
from dapo.observe.text import clean, percent, shorten
from dapo.observe.why import FRACTION, HEALTHY, UNREAD, why

log = logging.getLogger(__name__)

# Unscored responses, and not a scored one, after which a step gives up: few, for each may have cost a time limit.
HOPELESS = 32
EVIDENCE = "<RUN>/stopped/*.parquet"
ENGINE = "engine: "
"""What begins the reason of a response that the engine, and not the verifier, could not finish."""

_NAMES = {
    Verdict.KEPT: "kept",
    Verdict.ALL_CORRECT: "all correct",
    Verdict.ALL_WRONG: "all wrong",
    Verdict.UNIFORM: "uniform in the metric",
    Verdict.OUT_OF_BAND: "out of the band",
    Verdict.TOO_FEW_SCORED: "with fewer than two responses that vote",
}
_ALWAYS_SAID = (Verdict.KEPT, Verdict.ALL_CORRECT, Verdict.ALL_WRONG)


def shares_of(
    account: Account,
    prompts_per_step: int,
    group_size: int,
    correct_at: float,
    truncated_vote: bool,
    reads_answers: bool,
    ended: Literal["data", "retired"] | None = None,
) -> Shares:
    """What was judged in this step, for ``dapo.observe.why``.

    Args:
        reads_answers: the verifier of the accuracy names the answers that it reads.
        ended: what ended the prompts.
    """
    return Shares(
        kept=account.share(Verdict.KEPT),
        all_correct=account.share(Verdict.ALL_CORRECT),
        all_wrong=account.share(Verdict.ALL_WRONG),
        uniform=account.share(Verdict.UNIFORM),
        out_of_band=account.share(Verdict.OUT_OF_BAND),
        too_few_scored=account.share(Verdict.TOO_FEW_SCORED),
        judged=account.judged_groups,
        truncated=account.truncated_share(),
        accuracy=account.accuracy(),
        correct_at=correct_at,
        answered=account.answered / account.scored if reads_answers and account.scored else None,
        truncated_vote=truncated_vote,
        unscored=account.unscored,
        prompts_per_step=prompts_per_step,
        group_size=group_size,
        dispatched=int(account.count["groups/dispatched"]),
        generated_tokens=account.generated_tokens,
        data_ended=ended == "data",
        all_retired=ended == "retired",
    )


def filling(step: int, kept: int, shares: Shares, waiting: int = 0) -> CollectProgress:
    """How far the batch of ``step`` is; ``waiting``: responses that ended and have no score yet."""
    return CollectProgress(step, kept, shares.prompts_per_step, shares.judged, shares, shares.generated_tokens, waiting)


def stopped(account: Account, settings: DynamicSampling, kept: int, shares: Shares) -> SamplingStopped:
    """The error of the outcome ``stop``: what was seen, the likely cause, what to change."""
    prompts = shares.prompts_per_step
    met, cap = _met(settings, shares)
    shares = dataclasses.replace(shares, cap=cap)
    verdicts = [v for v in Verdict if v in _ALWAYS_SAID or account.share(v)]
    lines = [
        f"dynamic sampling stopped: {met} with {kept} of {prompts} groups kept.",
        f"Judged in this step: {shares.judged} groups, "
        + ", ".join(f"{percent(account.share(v))} {_NAMES[v]}" for v in verdicts)
        + f"; {shares.generated_tokens} tokens were generated.",
        f"Likely cause: {why(shares, EVIDENCE)}",
        *_example(account),
        f"The state and the kept groups are saved. {_go_on(shares)}",
    ]
    return SamplingStopped("\n".join(lines))


def _met(settings: DynamicSampling, shares: Shares) -> tuple[str, str]:
    """What was met, and what the cap allows ("" for the end of the data)."""
    if shares.data_ended:
        return "the data ended", ""
    if shares.all_retired:
        return "every prompt is retired", ""
    if settings.max_groups is not None and shares.dispatched >= settings.max_groups * shares.prompts_per_step:
        cap = f"{settings.max_groups:g} x {shares.prompts_per_step}"
        return f"the cap of {cap} dispatched groups was met", f"max_groups = {cap}"
    return f"the cap of {settings.max_tokens} generated tokens was met", f"max_tokens = {settings.max_tokens}"


def _go_on(shares: Shares) -> str:
    """How a resume can go on; a resumed run keeps its problems, prompts and group size."""
    own = "algorithm.dynamic_sampling"
    resume = "`dapo train --resume <RUN> KEY=VALUE` goes on"
    partial = f"`{own}.on_cap=train_partial` trains on the groups that there are"
    if shares.data_ended:
        return f"{resume}: `data.epochs=...` (more passes), or {partial}."
    if shares.all_retired:
        return f"{resume}: `{own}.retire_at=null` trains on solved prompts again, and {partial}."
    if shares.kept >= HEALTHY:
        return f"{resume}: `{own}.max_groups=...` or `max_tokens` (a higher cap), or {partial}."
    if shares.all_wrong > 0.5 and shares.accuracy > FRACTION:
        return f"{resume}: `{own}.correct_at=...`, or {partial}."
    if shares.all_wrong > 0.5 and shares.answered is not None and shares.answered < UNREAD:
        return f"{resume}: `rewards.0.pattern=...` or another reward. Another instruction needs a new run."
    if shares.truncated > 0.5:
        return f"{resume}: `rollout.max_response_tokens=...` (longer responses), or {partial}."
    by_verdict = {
        "band": (shares.out_of_band, f"`{own}.band=...`"),
        "metric": (shares.uniform, f"`{own}.metric=...` or `{own}.tolerance=...`"),
        "reward": (shares.too_few_scored, "once the reward function is mended"),
    }
    share, change = max(by_verdict.values())
    if share > 0.5:
        return f"{resume}: {change}, or {partial}."
    return (
        f"{resume}, with other `rewards` or `{own}` settings: a higher `{own}.max_groups` searches "
        f"longer; {partial}. Other problems, another instruction or group size need a new run."
    )


def _example(account: Account) -> list[str]:
    """One response that shows the commonest reason for rejection: a wrong prompt or verifier is seen at once."""
    rejected = [group for group in account.groups if group.verdict is not Verdict.KEPT] or account.groups
    if not rejected:
        return []
    commonest = Counter(group.verdict for group in rejected).most_common(1)[0][0]
    group = [group for group in rejected if group.verdict is commonest][-1]
    index = next((i for i, score in enumerate(group.scores_G) if not score.scored), 0)
    completion, score = group.completions_G[index], group.scores_G[index]
    said = shorten(clean(completion.text, newlines=False), 160)
    asked = shorten(clean(group.prompt.problem, newlines=False), 80)
    result = f"accuracy {score.values['accuracy']:g}" if score.scored else f"unscored: {score.reason}"
    return [f"For example: {asked!r}, expected {group.prompt.answer[:40]!r}, got {said!r} ({result})."]


def fails_on_everything(account: Account) -> None:
    """Raise NothingScored when nothing at all could be scored, in this step and those right before it.

    A broken verifier or engine must not loop for ever.
    """
    failures = account.barren
    if account.scored or failures.total() < HOPELESS:
        return
    reasons = ", ".join(f"{reason!r} x {n}" for reason, n in failures.most_common(3))
    engine = sum(n for reason, n in failures.items() if reason.startswith(ENGINE)) > failures.total() / 2
    what = "engine finishes no response" if engine else "verifier fails on everything"
    mend = (
        "Look at the engine's settings under `rollout` and at the model"
        if engine
        else "Mend the reward function (<RUN>/rewards.txt has what it printed)"
    )
    raise NothingScored(
        f"the {what}: none of {failures.total()} responses could be scored.\n"
        f"Reasons: {reasons}.\n"
        f"{mend}; <RUN>/log.txt has the first failure of each kind. Then continue with `dapo train --resume <RUN>`."
    )


def nothing_scored(reasons: Mapping[str, str]) -> RewardError:
    """The error of an evaluation in which the accuracy of no response of a set is known.

    Args:
        reasons: by set, the commonest reason.
    """
    named = "; ".join(f"{clean(name, newlines=False)}: {clean(why, newlines=False)}" for name, why in reasons.items())
    engine = all(why.startswith(ENGINE) for why in reasons.values())
    mend = (
        "Look at the engine's settings under `rollout` and `validation`, and at the model"
        if engine
        else "Mend the reward called accuracy for these problems (rewards.txt has what it printed, samples.jsonl the "
        "responses and the reasons), or raise its timeout"
    )
    return RewardError(
        f"the held-out accuracy cannot be told: not one response could be scored ({named}). {mend}, or leave the set "
        "out of data.validation."
    )


def warn_of_old_groups(settings: DynamicSampling, prompts_per_step: int, step: int, births: Sequence[int]) -> None:
    """A resume with a lower ``max_age`` or fewer prompts a step may hold more than can train in time.

    Args:
        births: the step that dispatched each held group.
    """
    if settings.surplus == "carry" and not in_time(births, step - 1, prompts_per_step, settings.max_age):
        log.warning(
            "%d groups are held from before, more than can train within max_age = %d steps of %d groups: the oldest "
            "train first, some of them older than that. algorithm.dynamic_sampling.on_max_age=drop drops them.",
            len(births),
            settings.max_age,
            prompts_per_step,
        )
