"""When a batch does not fill: what to say, and when a verifier must be suspected.

The loop does not know where its run lives: ``<RUN>`` in a message is filled in by whoever does.
"""

from __future__ import annotations

from typing import Literal

from dapo.config.schema import DynamicSampling
from dapo.contracts.enums import Verdict
from dapo.errors import SamplingStopped
from dapo.loop.account import Account
from dapo.observe.text import clean, percent, shorten
from dapo.observe.why import Filling, Shares, why

# Unscored responses, and not a scored one, after which a step gives up: few, for each may have cost a time limit.
HOPELESS = 32
EVIDENCE = "<RUN>/rollouts/stopped_*.parquet"

_NAMES = {
    Verdict.KEPT: "kept",
    Verdict.ALL_CORRECT: "all correct",
    Verdict.ALL_WRONG: "all wrong",
    Verdict.UNIFORM: "uniform in the metric",
    Verdict.OUT_OF_BAND: "out of the band",
    Verdict.TOO_FEW_SCORED: "with too few voters",
}
_ALWAYS_SAID = (Verdict.KEPT, Verdict.ALL_CORRECT, Verdict.ALL_WRONG)


def shares_of(
    account: Account,
    prompts_per_step: int,
    group_size: int,
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


def filling(step: int, kept: int, shares: Shares) -> Filling:
    """How far the batch of ``step`` is."""
    return Filling(step, kept, shares.prompts_per_step, shares.judged, shares, shares.generated_tokens)


def stopped(account: Account, settings: DynamicSampling, kept: int, shares: Shares) -> SamplingStopped:
    """The error of the outcome ``stop``: what was seen, the likely cause, what to change."""
    prompts = shares.prompts_per_step
    verdicts = [v for v in Verdict if v in _ALWAYS_SAID or account.share(v)]
    lines = [
        f"dynamic sampling stopped: {_met(settings, shares)} with {kept} of {prompts} groups kept.",
        f"In this step {shares.judged} groups were judged: "
        + ", ".join(f"{percent(account.share(v))} {_NAMES[v]}" for v in verdicts)
        + f"; {shares.generated_tokens} tokens were generated.",
        f"Likely cause: {why(shares, EVIDENCE)}",
        *_example(account),
        "The state and the kept groups are saved. Continue with `dapo train --resume <RUN>` and, for example, "
        f"{_remedy(settings, shares)} `algorithm.dynamic_sampling.on_cap=train_partial` or "
        "`algorithm.dynamic_sampling.on_cap=fill`.",
    ]
    return SamplingStopped("\n".join(lines))


def _met(settings: DynamicSampling, shares: Shares) -> str:
    if shares.data_ended:
        return "the data ended"
    if shares.all_retired:
        return "every prompt is retired"
    if settings.max_groups is not None and shares.dispatched >= settings.max_groups * shares.prompts_per_step:
        return f"the cap of {settings.max_groups:g} x {shares.prompts_per_step} dispatched groups was met"
    return f"the cap of {settings.max_tokens} generated tokens was met"


def _remedy(settings: DynamicSampling, shares: Shares) -> str:
    if shares.data_ended:
        return "`data.epochs=...` (more passes),"
    if shares.all_retired:
        return "`algorithm.dynamic_sampling.retire_at=null` (train on solved prompts again),"
    if settings.max_groups is not None and shares.dispatched >= settings.max_groups * shares.prompts_per_step:
        return "`algorithm.dynamic_sampling.max_groups=...` (higher cap),"
    return "`algorithm.dynamic_sampling.max_tokens=...` (higher cap),"


def _example(account: Account) -> list[str]:
    """One response that was judged, so that a wrong prompt or verifier is seen at once."""
    for group in reversed(account.groups):
        for completion, score in zip(group.completions_G, group.scores_G, strict=True):
            said = shorten(clean(completion.text, newlines=False), 160)
            asked = shorten(clean(group.prompt.problem, newlines=False), 80)
            result = f"accuracy {score.values['accuracy']:g}" if score.scored else f"unscored: {score.reason}"
            return [f"For example: {asked!r}, expected {group.prompt.answer[:40]!r}, got {said!r} ({result})."]
    return []


def verifier_fails_on_everything(account: Account) -> None:
    """Raise SamplingStopped when nothing at all could be scored: a broken verifier must not loop for ever."""
    if account.scored or account.unscored_responses < HOPELESS:
        return
    reasons = ", ".join(f"{reason!r} x {n}" for reason, n in account.unscored.most_common(3))
    raise SamplingStopped(
        f"the verifier fails on everything: none of {account.unscored_responses} responses could be scored.\n"
        f"Reasons: {reasons}.\n"
        "Mend the reward function (<RUN>/log.txt has the first failure of each kind, <RUN>/rewards.txt what it "
        "printed), then continue with `dapo train --resume <RUN>`."
    )
