"""When a batch does not fill: what to say, and when a verifier must be suspected.

The loop does not know where its run lives: ``<RUN>`` in a message is filled in by whoever does.
"""

from __future__ import annotations

from dapo.config.schema import DynamicSampling
from dapo.contracts.enums import Verdict
from dapo.errors import SamplingStopped
from dapo.loop.account import Account
from dapo.observe.text import clean, shorten

# Unscored responses, and not a scored one, after which a step gives up: few, for each may have cost a time limit.
HOPELESS = 32


def stop_message(
    account: Account, settings: DynamicSampling, prompts_per_step: int, kept: int, data_ended: bool
) -> SamplingStopped:
    """The error of the outcome ``stop``: what was seen, the likely cause, what to change."""
    judged = max(1, account.judged_groups)
    right = account.verdicts[Verdict.ALL_CORRECT] / judged
    wrong = account.verdicts[Verdict.ALL_WRONG] / judged
    few = account.verdicts[Verdict.TOO_FEW_SCORED] / judged
    met = (
        "the data ended"
        if data_ended
        else f"the cap of {settings.max_groups:g} x {prompts_per_step} dispatched groups was met"
        if settings.max_groups is not None and account.dispatched >= settings.max_groups * prompts_per_step
        else f"the cap of {settings.max_tokens} generated tokens was met"
    )
    lines = [
        f"dynamic sampling stopped: {met} with {kept} of {prompts_per_step} groups kept.",
        f"In this step {account.judged_groups} groups were judged: {account.acceptance:.1%} kept, "
        f"{right:.1%} all correct, {wrong:.1%} all wrong, {few:.1%} with too few voters; "
        f"{account.generated_tokens} tokens were generated.",
        f"Likely cause: {_cause(right, wrong, few, account.truncated_share(), data_ended)}",
        *_example(account),
        "The state and the kept groups are saved. Continue with `dapo train --resume <RUN>` and, for example, "
        f"{_remedy(data_ended)} `algorithm.dynamic_sampling.on_cap=train_partial` or "
        "`algorithm.dynamic_sampling.on_cap=fill`.",
    ]
    return SamplingStopped("\n".join(lines))


def _cause(right: float, wrong: float, few: float, truncated: float, data_ended: bool) -> str:
    if data_ended:
        return "data.epochs ran out. Raise data.epochs (or leave it out for an endless stream)."
    if right > 0.8:
        return "the problems are solved: nearly every group is all correct. Take harder problems."
    if wrong > 0.8:
        return (
            "the problems are too hard, or the verifier cannot read the answers: nearly every group is all wrong. "
            "Look at the responses in <RUN>/rollouts/stopped_*.parquet, at the prompt's instruction, and at the "
            "reward's settings."
        )
    if few > 0.5 and truncated > 0.5:
        return (
            f"{truncated:.0%} of the responses are truncated, and truncated ones do not vote. Raise "
            "rollout.max_response_tokens, or let them vote with algorithm.truncated_vote=true."
        )
    if few > 0.5:
        return (
            "most groups have fewer than two scored responses; <RUN>/rollouts/stopped_*.parquet says why (`unscored`)."
        )
    return "few problems are between solved and hopeless. Raise rollout.group_size or take other problems."


def _remedy(data_ended: bool) -> str:
    return (
        "`data.epochs=...` (more passes),"
        if data_ended
        else "`algorithm.dynamic_sampling.max_groups=...` (higher cap),"
    )


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
