"""Rules about the answers: their length, what cuts and punishes them, and whether verifiers could score them."""

from __future__ import annotations

import math
from collections import Counter

from dapo.observe.live_view import CUT_OFF
from dapo.observe.text import clean, number, percent, shorten
from dapo.report.rules.course import Facts, Finding, rule
from dapo.words import counted

LONGER, SHORTER, BETTER = 1.5, 0.6, 0.02
"""Times the first mean length; gain in training accuracy that makes it welcome."""
WRONG_ONLY = 1.5
"""Growth of the wrong answers' length over the correct ones'."""
CUT_MUCH, CUT_GROWTH, CUT_FLOOR = 0.5, 2.0, 0.05
"""Beside ``CUT_OFF``: shares of the responses, and times the first share."""
PUNISHED, FULL = 0.5, -0.5
"""Share of responses; mean penalty (the whole one is -1 times its factor)."""
UNSCORED_NOTE, UNSCORED, UNSCORED_MUCH = 0.001, 0.01, 0.1
CLAMPED, CLAMPED_MUCH = 0.01, 0.1
"""Shares of the trained responses. A reward clamped now and then is an outlier; many are a reward that is lost."""
_UNSCORED = "validation/unscored"
_REASON = f"{_UNSCORED}_"


_RAMBLING = (
    "Read the longest answers in the rollouts. If they ramble: raise algorithm.overlong_punishment.factor or "
    "cache_length, and see that algorithm.loss.reduction is token_mean."
)
_TERSE = (
    "Read some answers: a length penalty or a second reward may pay for brevity. Lower "
    "algorithm.overlong_punishment.factor or cache_length, or the weight of that reward."
)
_LONGER = (
    "Raise rollout.max_response_tokens, or ask for shorter answers in data.instruction. If they ramble without an end: "
    "raise algorithm.overlong_punishment.factor"
)


@rule(
    f"{percent(UNSCORED_NOTE)} of the responses unscored (a warning from {percent(UNSCORED, 0)}, bad from "
    f"{percent(UNSCORED_MUCH, 0)})",
    "An unscored response neither votes nor trains; what a verifier cannot read is often one kind of answer.",
    "The column `unscored` of rollouts/ has the reasons in full. Fix the reward function, or raise its timeout "
    "(rewards.0.timeout) or run.reward_workers.",
)
def verifier_failures(facts: Facts) -> Finding | None:
    """Over the whole run: what was not scored is lost, whenever it was."""
    unscored, responses = facts.total("reward/unscored"), facts.total("sampling/responses")
    share = unscored / responses if responses else 0.0
    if share < UNSCORED_NOTE:
        return None
    reasons = Counter({key: int(facts.total(key)) for key in facts.named("reward/unscored/")})
    named = ", ".join(
        f"{shorten(clean(key.removeprefix('reward/unscored/'), newlines=False), 60)} {count:,} times"
        for key, count in reasons.most_common(3)
        if count
    )
    return Finding(
        "bad" if share >= UNSCORED_MUCH else "warn" if share >= UNSCORED else "note",
        "Responses could not be scored",
        f"{unscored:,.0f} of {responses:,.0f} responses ({percent(share)}) have no score"
        + (f": {named}." if named else "."),
        facts.span("reward/unscored", bool),
        ["reward/unscored", *reasons],
    )


@rule(
    f"{percent(CLAMPED, 0)} of the trained responses with a clamped reward over 3 steps (bad from "
    f"{percent(CLAMPED_MUCH, 0)})",
    "What is clamped away teaches nothing: a bonus on right answers has no effect, while its mean rises.",
    "Widen algorithm.reward_scaling.source_min and source_max to the range of the weighted sum, or lower the "
    "weights (rewards.N.weight).",
)
def rewards_clamped(facts: Facts) -> Finding | None:
    """Find a second reward that is clamped away on top of a full first one, and whose mean rises all the same."""
    stretch = facts.highest("reward/clamped", CLAMPED)
    if stretch is None:
        return None
    scaling = "algorithm.reward_scaling"
    low, high = facts.setting(f"{scaling}.source_min", 0.0), facts.setting(f"{scaling}.source_max", 1.0)
    least, most = min(facts.values("reward/raw_min"), default=low), max(facts.values("reward/raw_max"), default=high)
    bounds = [("source_min", least, least < low), ("source_max", most, most > high)]
    wider = " and ".join(f"{scaling}.{name}={value:g}" for name, value, outside in bounds if outside)
    return Finding(
        "bad" if stretch.mean >= CLAMPED_MUCH else "warn",
        "Rewards are clamped",
        f"At the worst {percent(stretch.mean)} of the trained responses had a reward outside {low:g} to {high:g}, "
        f"which reward scaling clamps; the rewards ran from {least:g} to {most:g}.",
        stretch.span,
        ["reward/clamped", "reward/raw_min", "reward/raw_max", "reward/raw"],
        f"Set {wider}, or smaller weights (rewards.N.weight)." if wider else "",
    )


@rule(
    f"any held-out response without an accuracy (a warning from {percent(UNSCORED, 0)}, bad from "
    f"{percent(UNSCORED_MUCH, 0)})",
    "It is left out of the held-out accuracy. Where a verifier fails on one kind of answer, such as wrong ones, "
    "the rest says something else than the whole.",
    "`unscored` in samples.jsonl has the reasons. Fix the reward called accuracy, or raise its timeout; see that "
    "what it reads from `prompt.extra` is there in the validation data too.",
)
def held_out_unscored(facts: Facts) -> Finding | None:
    """Over all evaluations: a held-out accuracy of the responses that could be scored is not that of all."""
    rows = [row for row in facts.run.rows if row.get("validation/responses")]
    hit = [row for row in rows if row.get("validation/unscored")]
    if not hit:
        return None
    unscored, responses = (
        math.fsum(row.get(key) or 0.0 for row in rows) for key in ("validation/unscored", "validation/responses")
    )
    reasons: Counter[str] = Counter()
    for row in hit:
        reasons.update({key: int(value) for key, value in row.items() if key.startswith(_REASON) and value})
    named = ", ".join(
        f"{shorten(clean(key.removeprefix(_REASON), newlines=False), 60)} {count:,} times"
        for key, count in reasons.most_common(3)
    )
    least, told = hit[-1].get("validation/accuracy_unscored_wrong"), hit[-1].get("validation/accuracy")
    bound = (
        f" Were they all wrong, the accuracy at step {hit[-1]['step']} would be {percent(least)}, not {percent(told)}."
        if least is not None and told is not None
        else ""
    )
    share = unscored / responses
    return Finding(
        "bad" if share >= UNSCORED_MUCH or told is None else "warn" if share >= UNSCORED else "note",
        "Held-out responses could not be scored",
        f"{unscored:,.0f} of {responses:,.0f} held-out responses ({percent(share)}) have no accuracy"
        + (f": {named}." if named else ".")
        + bound,
        (int(hit[0]["step"]), int(hit[-1]["step"])),
        ["validation/unscored", "validation/accuracy", *reasons],
    )


@rule(
    f"any response that the engine could not finish (bad from {percent(UNSCORED_MUCH, 0)})",
    "Its tokens are paid for and lost, and its group is smaller.",
    "RUN/log.txt and the server's own log name the cause; docs/engines.md lists the usual ones.",
)
def engine_failures(facts: Facts) -> Finding | None:
    """Responses that the engine lost."""
    failed, responses = facts.total("sampling/failed"), facts.total("sampling/responses")
    if failed <= 0:
        return None
    share = failed / max(responses, failed)
    return Finding(
        "bad" if share >= UNSCORED_MUCH else "warn",
        "The engine could not finish responses",
        f"{failed:,.0f} responses failed in the engine ({percent(share)} of those that ended).",
        facts.span("sampling/failed", bool),
        ["sampling/failed", "reward/unscored"],
    )


@rule(
    "any episode that went otherwise when it was played again (a note where environment.kind is agent)",
    "Such a run is another one after each stop, and long episodes are lost more often than short ones.",
    "Let the environment or agent depend on the prompt, its seed and the turns alone: no clock, no random "
    "numbers of its own. A class may have state() and restore() (docs/environments.md).",
)
def not_repeatable(facts: Facts) -> Finding | None:
    """Over the whole run: episodes that went otherwise when they were played again. A note where an agent may."""
    key = "environment/not_repeatable"
    anew = facts.total(key)
    if anew > 0:
        return Finding(
            "warn",
            "The environment does not repeat itself",
            f"{counted(anew, 'episode')} went otherwise when played again after a resume or a lost process, and began "
            "again: the tokens that they had are lost.",
            facts.span(key, bool),
            [key],
        )
    if facts.setting("environment.kind") != "agent" or not facts.rows:
        return None
    return Finding(
        "note",
        "The run repeats itself only if its agent does",
        "An agent asks as it likes. So far none asked otherwise when it was played again.",
        facts.whole,
        [key],
    )


@rule(
    f"mean length {LONGER:g} times its beginning or {SHORTER:g} and less (a note where training accuracy gained "
    f"{100 * BETTER:g} points), or wrong answers growing {WRONG_ONLY:g} times as fast as correct ones",
    "Length that grows without accuracy is rambling, and length that falls without it is a shortcut; both cost the "
    "run its meaning before accuracy shows it.",
    _RAMBLING,
)
def length_drift(facts: Facts) -> Finding | None:
    """Longer answers are welcome where accuracy rises with them; the wrong ones alone never are."""
    change = facts.change("response/length_mean")
    correct, wrong = facts.change("response/length_correct_mean"), facts.change("response/length_wrong_mean")
    if change is None or min(change) <= 0:
        return None
    times, gain = change[1] / change[0], facts.accuracy_change
    keys = ["response/length_mean", "response/length_correct_mean", "response/length_wrong_mean", "reward/accuracy"]
    apart = ""
    if correct and wrong and min(*correct, *wrong) > 0:
        apart = (
            f" (correct ones {number(correct[0])} to {number(correct[1])}, "
            f"wrong ones {number(wrong[0])} to {number(wrong[1])})"
        )
        if times < LONGER and wrong[1] / wrong[0] >= WRONG_ONLY * correct[1] / correct[0] and wrong[1] > wrong[0]:
            return Finding(
                "warn",
                "Wrong answers grow longer",
                f"From the beginning to the end wrong answers went from {number(wrong[0])} to {number(wrong[1])} "
                f"tokens, correct ones from {number(correct[0])} to {number(correct[1])}.",
                facts.whole,
                keys,
                _RAMBLING,
            )
    if SHORTER < times < LONGER:
        return None
    longer = times >= LONGER
    said = f"The mean length went from {number(change[0])} to {number(change[1])} tokens{apart}"
    accuracy = facts.change("reward/accuracy") or (None, None)
    said += f", and training accuracy from {percent(accuracy[0])} to {percent(accuracy[1])}."
    return Finding(
        "note" if gain >= BETTER else "warn",
        "Answers grow longer" if longer else "Answers grow shorter",
        said,
        facts.whole,
        keys,
        ("Welcome, as long as accuracy rises with it. Leave it room: rollout.max_response_tokens." if longer else
         "Welcome, as long as accuracy rises with it.") if gain >= BETTER else _RAMBLING if longer else _TERSE,
    )  # fmt: skip


@rule(
    f"{percent(CUT_OFF, 0)} of the responses cut off in the last steps (bad from {percent(CUT_MUCH, 0)}), or "
    f"{percent(CUT_FLOOR, 0)} and {CUT_GROWTH:g} times the beginning",
    "A response that is cut off rarely has an answer; with overlong filtering it does not train either.",
    f"{_LONGER}, and let them vote with algorithm.truncated_vote=true.",
)
def truncated(facts: Facts) -> Finding | None:
    """High, or growing from little."""
    late, change = facts.late("response/truncated_share"), facts.change("response/truncated_share")
    if late is None:
        return None
    grows = change is not None and late >= CUT_FLOOR and late >= CUT_GROWTH * change[0]
    if late < CUT_OFF and not grows:
        return None
    bound = CUT_OFF if late >= CUT_OFF else CUT_FLOOR
    was = f" ({percent(change[0])} at the beginning)" if change else ""
    limit = facts.setting("rollout.max_response_tokens")
    return Finding(
        "bad" if late >= CUT_MUCH else "warn",
        "Many answers are cut off",
        f"In the last steps {percent(late)} of the responses reach the limit{f' of {limit:,} tokens' if limit else ''}"
        f"{was}.",
        facts.span("response/truncated_share", lambda value: value >= bound),
        ["response/truncated_share", "response/length_p90", "response/with_loss", "validation/truncated_share"],
        f"{_LONGER}." if facts.setting("algorithm.truncated_vote") else "",
    )


@rule(
    f"{percent(PUNISHED, 0)} of the trained responses penalised in the last steps, or a mean penalty of {FULL:g} "
    "times its factor",
    "A penalty that nearly all have tells nothing apart, and can outweigh being right.",
    "Raise rollout.max_response_tokens, or lower algorithm.overlong_punishment.cache_length or factor.",
)
def penalties(facts: Facts) -> Finding | None:
    """Find a penalty that most responses get in full, so that it no longer separates them."""
    share, mean = facts.late("response/penalized"), facts.late("response/penalty_mean")
    factor = facts.setting("algorithm.overlong_punishment.factor", 1.0)
    many = share is not None and share >= PUNISHED
    full = mean is not None and factor > 0 and mean <= FULL * factor
    if not many and not full:
        return None
    return Finding(
        "warn",
        "The length penalty is everywhere",
        f"In the last steps {percent(share)} of the trained responses are penalised, by {number(mean)} on average.",
        facts.late_steps("response/penalized"),
        ["response/penalized", "response/penalty_mean", "response/length_p90"],
    )
