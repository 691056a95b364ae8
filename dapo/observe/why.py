"""Why a batch fills slowly or not at all, in plain words: from counts alone, without a look at the loop."""

from __future__ import annotations

import math
import time

from dapo.config.mixed import correct_decides
from dapo.config.schema import Recipe
from dapo.metrics.glossary import PHASES
from dapo.observe.held_out import HeldOut
from dapo.observe.shares import expected_shares
from dapo.observe.text import percent, seconds_said, shorten
from dapo.types.enums import Verdict
from dapo.types.evaluation import EvaluationProgress
from dapo.types.evidence import (
    HEALTHY,
    LARGER,
    UNREAD,
    Awaited,
    Cause,
    CollectProgress,
    Shares,
    Stillness,
    cause_of,
    mixed,
)
from dapo.words import counted

NEARLY_ALL = 0.8
"""Share of groups of one kind from which it is the cause, and not a tendency."""
ENOUGH = 20
"""Prompts from which their pass rates are used instead of an example."""
CUT_MUCH = 0.5
"""Share of responses cut off from which an evaluation is warned of."""
LATER = "what `dapo check RECIPE --try 8` shows (rollouts/ is written when the step ends)"
"""Where responses of a step that goes on can be looked at."""
_OWN = "algorithm.dynamic_sampling"
_FORM = (
    "ask for the form that it reads in data.instruction, show it in a worked example (data.few_shot), or choose "
    "another kind of reward (rewards; last_number reads the last number)"
)
"""What to do where a verifier finds no answers."""
BESIDE = (
    "such as {name: accuracy, kind: math, weight: 0}; or return a dict with an accuracy between 0 and 1 (`acc` in a "
    "function of verl)"
)
"""An accuracy for a reward that is none."""
_OUTSIDE = f"give that reward another name and add an accuracy, {BESIDE}"
_EASIER = "take easier problems, show a worked example (data.few_shot)"


def why(shares: Shares, rollouts: str = "rollouts/ of the run", cap: str = "") -> str:
    """One to three sentences: the likely cause of a batch that does not fill, and what to change.

    Args:
        shares: what was judged.
        rollouts: where the judged responses can be read, as the reader should see it.
        cap: what a step may spend, where that was met: "cap.groups = 4 x 32".
    """
    if shares.all_retired:
        return (
            "The last visit of every prompt reached algorithm.dynamic_sampling.selection.retire.at. That is an end; to "
            "go on, take harder problems, or set algorithm.dynamic_sampling.selection.retire.review above 0."
        )
    if shares.data_ended:
        more = f" {_cause(shares, rollouts)}" if shares.judged and shares.kept < HEALTHY else ""
        return f"data.epochs ran out. Raise data.epochs (or leave it out for an endless stream).{more}"
    if not shares.judged:
        return "No group was judged yet."
    if shares.kept < HEALTHY:
        return _cause(shares, rollouts)
    if cap:
        share = _percent(shares.kept)
        return f"The cap is too low: {share} of the groups are kept, so {_need(shares)}, and the recipe has {cap}."
    return f"Nothing to mend: {_percent(shares.kept)} of the groups are kept, {_need(shares)}."


def _cause(shares: Shares, rollouts: str) -> str:
    words = {
        Cause.FRACTIONS: _fractions,
        Cause.TRUNCATED: _truncated,
        Cause.UNREAD: _unread,
        Cause.TOO_HARD: _too_hard,
        Cause.SOLVED: _solved,
        Cause.FEW_BETWEEN: _between,
        Cause.TOO_FEW_SCORED: _too_few,
        Cause.NO_VOTE: _no_vote,
        Cause.OUT_OF_BAND: _out_of_band,
        Cause.UNIFORM: _uniform,
    }
    found = words.get(cause_of(shares))
    return found(shares, rollouts) if found else f"{_percent(shares.kept)} of the groups are kept, {_need(shares)}."


def filling_line(progress: CollectProgress, cause: bool = True) -> str:
    """Return one line on a batch that takes long or starves; it ends with the likely ``cause``."""
    told = f"{_how_far(progress)}, {progress.judged} groups judged{_at_this_rate(progress)}."
    return f"{told} {why(progress.shares, LATER)}" if cause else told


def heartbeat(progress: CollectProgress) -> str:
    """How far a batch is, in a few words."""
    return f"{_how_far(progress)}{_at_this_rate(progress)}"


def _how_far(progress: CollectProgress) -> str:
    kept = f"{percent(progress.shares.kept, 0)} of those judged" if progress.judged else "none judged yet"
    told = f"step {progress.step}: {progress.kept} of {progress.wanted} groups kept, {kept}"
    return f"{told}, {progress.waiting} responses wait for their score" if progress.waiting else told


def _at_this_rate(progress: CollectProgress) -> str:
    """Return what a batch that starves needs, and what the cap allows; "" for any other batch."""
    if not progress.starves:
        return ""
    groups = progress.groups_needed
    needs = f"needs about {groups:.0f} groups" if math.isfinite(groups) else "never gets full"
    if progress.cap_groups is not None and groups > progress.cap_groups:
        cap = f"{_OWN}.cap.groups ends the search at {progress.cap_groups:.0f}"
    elif progress.cap_tokens is not None:
        so_far = f"{progress.generated_tokens:,} are generated"
        cap = f"{_OWN}.cap.tokens ends the search at {progress.cap_tokens:,.0f} tokens ({so_far})"
    else:
        cap = f"no {_OWN}.cap ends the search"
    return f"; at this rate the batch {needs}, and {cap}"


def start_said(held_out: HeldOut, recipe: Recipe) -> str:
    """Return what the evaluation before training foretells of batches that hardly fill; "" where it foretells none."""
    if held_out.responses < ENOUGH:
        return ""
    expected, unscored = expected_shares(held_out, recipe), held_out.responses - held_out.known
    if unscored and cause_of(expected) is Cause.SOLVED and _solved_no_more(held_out, recipe):
        return (
            f"{unscored:,} of {held_out.responses:,} held-out responses could not be scored, and may be right or "
            "wrong: a verifier that fails on wrong answers makes every problem look solved. The column "
            f"`unscored` of evaluations/ has the reasons. If it is an accuracy that is not in [0, 1], {_OUTSIDE}."
        )
    if correct_decides(recipe) and held_out.known and expected.kept < HEALTHY:
        said = why(expected, LATER)
        return (
            f"{held_out.right:,} of {held_out.known:,} held-out responses are right before training. If the training "
            f"problems are like them, {said[:1].lower()}{said[1:]}"
        )
    if expected.truncated > CUT_MUCH:
        return (
            f"{_percent(expected.truncated)} of the held-out responses are cut off at their limit. Raise "
            "rollout.max_response_tokens, or ask for shorter answers in data.instruction."
        )
    return ""


def _solved_no_more(held_out: HeldOut, recipe: Recipe) -> bool:
    """Whether problems would not be solved if the responses without a score were wrong."""
    share = held_out.known / held_out.responses
    return (held_out.accuracy * share) ** recipe.rollout.group_size <= NEARLY_ALL


def evaluating_line(progress: EvaluationProgress, left: str = "") -> str:
    """How far an evaluation is, in a few words; ``left``: the time that it still takes."""
    told = f"evaluating: {progress.answered} of {progress.total} answered, {progress.scored} scored"
    return f"{told}, about {left} left" if left else told


def stillness_line(stillness: Stillness) -> str:
    """Return one line on a run in which nothing happens: for how long, in which phase, and what it waits for."""
    began = time.strftime("%H:%M:%S", time.localtime(stillness.since))
    told = f"nothing happened for {seconds_said(stillness.seconds)} (since {began})"
    told += f"; it is {PHASES[stillness.phase].doing}" if stillness.phase in PHASES else ""
    owed = "" if stillness.awaited is None else awaited_said(stillness.awaited)
    return f"{told}: {owed}" if owed else told


def awaited_said(awaited: Awaited) -> str:
    """Return what engine, environments and verifiers owe; "" if it is nothing."""
    owed = []
    if awaited.decoding:
        owed.append(f"the engine owes {counted(awaited.decoding, 'response')}")
    if awaited.replies:
        owed.append(f"environments owe {counted(awaited.replies, 'reply', 'replies')}")
    if awaited.scores:
        owed.append(f"verifiers owe {counted(awaited.scores, 'score')}")
    if awaited.scored and awaited.effect_at is None:
        owed.append(f"{counted(awaited.scored, 'score')} that arrived have not taken effect")
    elif awaited.scored:
        scores = f"{counted(awaited.scored, 'score')} that arrived take effect from engine step {awaited.effect_at}"
        owed.append(f"{scores} on; the engine is at {awaited.clock}")
    return ", ".join(owed)


def by_verdict(shares: Shares) -> list[tuple[str, float]]:
    """Return the verdicts in words, each with its share of the groups."""
    return [(verdict.replace("_", " "), getattr(shares, verdict)) for verdict in Verdict]


def _all_wrong(shares: Shares) -> str:
    return f"{_percent(shares.all_wrong)} of the groups are all wrong"


def _fractions(shares: Shares, rollouts: str) -> str:
    return (
        f"{_all_wrong(shares)}, yet the mean accuracy is {shares.accuracy:.2g}: scores are fractions, and a response "
        f"is correct from algorithm.dynamic_sampling.correct_at = {shares.correct_at:g} on. Lower it, or set "
        "algorithm.dynamic_sampling.mixed: spread, which keeps groups whose scores differ."
    )


def _truncated(shares: Shares, rollouts: str) -> str:
    said = (
        f"{_all_wrong(shares)}, and {_percent(shares.truncated)} of the responses are truncated: one that is cut off "
        "rarely has an answer. Raise rollout.max_response_tokens, or ask for shorter answers in data.instruction"
    )
    if _unread_to_the_end(shares):
        return f"{said}. {_found(shares)}, so it cannot read those that end by themselves either: {_FORM}."
    return (
        f"{said} or with a worked example (data.few_shot). If those that end by themselves are wrong too, the problems "
        "are too hard, or the verifier cannot read the answers."
    )


def _unread(shares: Shares, rollouts: str) -> str:
    return f"{_all_wrong(shares)}. {_found(shares)}: it cannot read them. Look at {rollouts}; then {_FORM}."


def _found(shares: Shares) -> str:
    return f"The verifier found an answer in {_percent(shares.answered or 0.0)} of the responses"


def _unread_to_the_end(shares: Shares) -> bool:
    """Whether the verifier finds few answers even among the responses that end by themselves."""
    return shares.answered is not None and shares.answered < UNREAD * (1.0 - shares.truncated)


def _too_hard(shares: Shares, rollouts: str) -> str:
    said = f"{_all_wrong(shares)}: "
    if shares.answered is not None:
        said += f"the verifier found an answer in {_percent(shares.answered)} of the responses, so "
    if shares.all_wrong <= NEARLY_ALL:
        said += "many problems are too hard for the model. Take easier problems"
    elif shares.answered is not None:
        said += f"the problems are too hard for the model. Look at {rollouts}; then {_EASIER}"
    else:
        said += (
            f"the problems are too hard for the model, or the verifier cannot read its answers. Look at {rollouts}, at "
            f"the prompt's instruction and at the reward's settings; then {_EASIER}"
        )
    return said + _larger_groups(shares)


def _larger_groups(shares: Shares) -> str:
    """Return the effect of a larger group: from the pass rates if known, else an example."""
    now, more, known = shares.group_size, LARGER * shares.group_size, shares.hopeless
    if now < 2:
        return ", or start a run with a larger rollout.group_size."
    start = f", or start a run with a larger rollout.group_size (now {now}): "
    if known is None or known.prompts < ENOUGH:
        once = _round(3 * now)
        return (
            f"{start}of problems solved 1 time in {once}, groups of {now} hold right and wrong responses in "
            f"{_percent(mixed(1 / once, now))} of the tries, groups of {more} in {_percent(mixed(1 / once, more))}."
        )
    prompts = f"the {known.prompts} prompts that were all wrong at their last visit and judged before"
    if not known.solved:
        return f". A larger rollout.group_size would help little: none of {prompts} was ever solved."
    return (
        f"{start}by the earlier pass rates of {prompts}, {_percent(known.mixed)} of their groups of {now} are mixed, "
        f"{_percent(known.mixed_larger)} of {more}."
    )


def _solved(shares: Shares, rollouts: str) -> str:
    said = f"{_percent(shares.all_correct)} of the groups are all correct: "
    outside = sum(n for reason, n in shares.unscored.items() if reason.partition(":")[0] == "accuracy")
    if outside:
        return (
            f"{said}that is of the responses that have a score. {counted(outside, 'response')} had none, since the "
            f"number called accuracy was not in [0, 1], as a score of -1 for wrong answers is. To train, {_OUTSIDE}."
        )
    if shares.all_correct > NEARLY_ALL:
        said += "the problems are solved. Take harder problems, or end the run here"
    else:
        said += "many problems are solved. Add harder problems"
    return said + "; while others are left, algorithm.dynamic_sampling.selection.retire.at=1 passes over solved ones."


def _few_voters(shares: Shares) -> str:
    return f"{_percent(shares.too_few_scored)} of the groups have fewer than two responses that vote"


def _no_vote(shares: Shares, rollouts: str) -> str:
    said = (
        f"{_few_voters(shares)}: {_percent(shares.truncated)} of the responses are truncated, and truncated ones do "
        "not vote. Raise rollout.max_response_tokens"
    )
    if _unread_to_the_end(shares):
        return f"{said}. {_found(shares)}, so it cannot read the others either: {_FORM}."
    return f"{said}, or let them vote with algorithm.truncated_vote=true."


def _too_few(shares: Shares, rollouts: str) -> str:
    said = f"{_few_voters(shares)}: "
    if not shares.unscored:
        return said + f"most responses could not be scored. The column `unscored` of {rollouts} says why."
    reason, count = max(shares.unscored.items(), key=lambda item: item[1])
    return (  # `!r` makes the reason, which is untrusted, harmless
        said + f"most responses could not be scored, {count} of them because of {shorten(reason, 80)!r}. The column "
        f"`unscored` of {rollouts} has the reasons in full; fix the reward function, or raise its timeout."
    )


def _out_of_band(shares: Shares, rollouts: str) -> str:
    return (
        f"The mean score of {_percent(shares.out_of_band)} of the groups lies outside algorithm.dynamic_sampling.band. "
        "Widen the band, or take problems nearer to it."
    )


def _uniform(shares: Shares, rollouts: str) -> str:
    return (
        f"The score that algorithm.dynamic_sampling.metric names is the same for all responses in "
        f"{_percent(shares.uniform)} of the groups. Look at its values in {rollouts} (column `rewards`), choose "
        "another metric, or lower algorithm.dynamic_sampling.tolerance."
    )


def _between(shares: Shares, rollouts: str) -> str:
    return (
        f"Few problems are between solved and hopeless: {_percent(shares.all_correct)} of the groups are all correct, "
        f"{_percent(shares.all_wrong)} all wrong, {_percent(shares.kept)} kept, so {_need(shares)}. Take problems of "
        f"medium difficulty{_larger_groups(shares)}"
    )


def _need(shares: Shares) -> str:
    if not shares.kept:
        return "no batch gets full"
    if not shares.prompts_per_step:
        return f"a batch takes about {1 / shares.kept:.1f} times as many"
    groups = shares.prompts_per_step / shares.kept
    return f"a batch of {shares.prompts_per_step} takes about {groups:.0f} groups"


def _percent(share: float) -> str:
    """Return a share in prose: whole percents, yet never a false 0% or 100%."""
    if 0.0 < share < 0.005:
        return "less than 1%"
    if 0.995 <= share < 1.0:
        return "more than 99%"
    return percent(share, 0)


def _round(value: int) -> int:
    """To one figure: 48 is 50."""
    scale: int = 10 ** (len(str(value)) - 1)
    return max(1, round(value / scale)) * scale
