"""Rules about dynamic sampling: whether batches fill, what they are filled with, and how old that is."""

from __future__ import annotations

from dapo.config.check_teacher import taught_alone
from dapo.observe.sentences import unfilled_said
from dapo.observe.shares import shares_of
from dapo.observe.text import number, percent
from dapo.observe.why import CUT_MUCH, filling_line, start_said, why
from dapo.report.rules.course import Facts, Finding, rule
from dapo.report.status import filling_of, outcome_of
from dapo.types.evidence import HEALTHY, SURE, Shares
from dapo.words import counted

SCARCE = 0.1
"""Share of groups kept below which a step costs ten batches and more."""
EASY, EASY_MUCH, HARD = 0.5, 0.6, 0.5
"""Shares of judged groups, where enough others are kept: a bound above 1 - ``HEALTHY`` would never be met."""
REFILLS = 2.0
"""Refills for each group of a batch."""
OLD, OLD_LEAST = 0.75, 2.0
"""Share of max_age, and versions."""
EXPIRED = 0.05
_KEPT = ["sampling/acceptance_rate", "groups/all_correct_share", "groups/all_wrong_share"]
APART = 0.3


_HARDER = (
    "Take harder problems, pass over solved ones with algorithm.dynamic_sampling.selection.retire.at=1, or end the run "
    "here."
)
_EASIER = "Take easier problems or a larger rollout.group_size"
_READ = "Read some answers: a verifier that cannot read them looks the same."
_HARDER_ALONE = "Take harder problems, or end the run here."
_NEARER = (
    "See the groups that were dropped in the rollouts. Take problems nearer to what the model can do, or groups of "
    "more responses (rollout.group_size)."
)
_BOUND = "algorithm.dynamic_sampling.cap.groups bounds what a step may cost."
_FILL = f"{_NEARER} Until then algorithm.dynamic_sampling.cap.then=train_partial trains on what there is, and {_BOUND}"


@rule(
    "the run ended because a batch could not be filled (algorithm.dynamic_sampling.cap.then: stop)",
    "Dynamic sampling trains on groups with both right and wrong responses, and it found too few.",
    _FILL,
)
def batch_unfilled(facts: Facts) -> Finding | None:
    """Explain a run that ended over an unfilled batch, in the words of the collector, which saw every group."""
    run = outcome_of(facts.run)
    if run.state != "unfilled":
        return None
    met, cause, further = unfilled_said(run)
    step = run.step + 1
    return Finding(
        "bad",
        f"Step {step} could not fill its batch",
        cause or met,  # what was met is the run's end, and told there
        (step, step),
        _KEPT,
        further,
    )


@rule(
    "a step that goes on or was left, whose share of kept groups so far needs more groups or tokens than its cap, "
    f"from {SURE} judged groups on",
    "The step ends at its cap without a full batch, and nothing is trained until then.",
    "Stop the run and change what the sentence names: waiting will not fill the batch.",
)
def batch_starves(facts: Facts) -> Finding | None:
    """Look at the step that goes on, or that the run left in its middle: no line of metrics has it."""
    filling, run = filling_of(facts.run), outcome_of(facts.run)
    if filling is None or run.state == "unfilled" or not filling.starves:
        return None
    step = filling.step
    return Finding("bad", f"Step {step} will not fill its batch", filling_line(filling), (step, step), _KEPT)


@rule(
    f"the evaluation before training, while no step is done: at its rate of right responses fewer than "
    f"{percent(HEALTHY, 0)} of the groups would be mixed, or more than {percent(CUT_MUCH, 0)} are cut off",
    "Training learns from groups with right and wrong responses; a model that never or always succeeds has none.",
    "Stop the run and change what the sentence names; `dapo check RECIPE --try 8` shows what a change does.",
)
def hopeless_start(facts: Facts) -> Finding | None:
    """Look at the evaluation before training, until the first step has more to say."""
    recipe, held_out = facts.run.recipe, facts.held_out(0)
    if facts.steps or recipe is None or held_out is None or batch_starves.find(facts) is not None:
        return None
    said = start_said(held_out, recipe)
    keys = ["validation/accuracy", "validation/truncated_share"]
    return Finding("warn", "The first batches will hardly fill", said, (0, 0), keys) if said else None


@rule(
    f"less than {percent(HEALTHY, 0)} of the judged groups kept in the last steps (bad below {percent(SCARCE, 0)}), or "
    "a step that met its cap",
    "Rejected groups are generated in vain: a step costs as many batches as one over this share.",
    _FILL,
)
def batch_hard_to_fill(facts: Facts) -> Finding | None:
    """By the last steps, in the words of the console: what is kept now matters, not what was."""
    mode = facts.setting("algorithm.dynamic_sampling.mode", "filter")
    kept = facts.late("sampling/acceptance_rate")
    caps, run = facts.where("sampling/cap_reached", bool), outcome_of(facts.run)
    if kept is None or mode in ("off", "mask") or run.state == "unfilled":
        return None
    if run.state == "finished" and run.step < run.steps:  # the data ended, and with it the last batch
        caps = [step for step in caps if step != facts.last_step]
    if kept >= HEALTHY and not caps:
        return None
    shares = late_shares(facts)
    said = f"In the last steps {percent(kept, 0)} of the judged groups are kept. " if kept < HEALTHY else ""
    if caps:
        met = counted(len(caps), "step")
        said += f"{met} met the cap or the end of the data and trained on a smaller or filled batch. "
    poor = facts.span("sampling/acceptance_rate", lambda value: value < HEALTHY) if kept < HEALTHY else ()
    steps = [*poor, *caps]
    return Finding(
        "bad" if kept < SCARCE else "warn",
        "The batch is hard to fill" if kept < HEALTHY else "Some steps met their cap",
        said + (f"Likely cause: {why(shares)}" if kept < HEALTHY else ""),
        (min(steps), max(steps)),
        [*_KEPT, "sampling/cap_reached"],
        _FILL if facts.setting("algorithm.dynamic_sampling.cap.then", "stop") == "stop" else f"{_NEARER} {_BOUND}",
    )


@rule(
    f"the same in the modes off and mask (bad below {percent(SCARCE, 0)})",
    "Groups that are all right or all wrong have no gradient from accuracy: the batch is smaller than it looks, and "
    "what is left (a penalty, a second reward) leads.",
    "Set algorithm.dynamic_sampling.mode=filter, and take problems nearer to what the model can do.",
)
def few_groups_teach(facts: Facts) -> Finding | None:
    """Without refills such a batch is simply smaller, without a message."""
    mode = facts.setting("algorithm.dynamic_sampling.mode", "filter")
    kept = facts.late("sampling/acceptance_rate")
    if mode not in ("off", "mask") or kept is None or kept >= HEALTHY:
        return None
    if facts.run.recipe is not None and taught_alone(facts.run.recipe):
        return None  # equal scores teach as well; what is cut off has a rule of its own
    shares = late_shares(facts)
    return Finding(
        "bad" if kept < SCARCE else "warn",
        "Few groups teach",
        f"In the last steps {percent(kept, 0)} of the groups hold both right and wrong responses "
        f"({percent(shares.all_correct, 0)} are all correct, {percent(shares.all_wrong, 0)} all wrong); the others "
        "have no gradient from accuracy.",
        facts.span("sampling/acceptance_rate", lambda value: value < HEALTHY),
        ["groups/kept_share", "groups/all_correct_share", "groups/all_wrong_share"],
    )


@rule(
    f"{percent(EASY, 0)} of the judged groups all correct in the last steps (a warning from "
    f"{percent(EASY_MUCH, 0)}), while batches fill",
    "The data is nearly used up: each further step generates more and learns less.",
    _HARDER,
)
def data_too_easy(facts: Facts) -> Finding | None:
    """Only where the batch still fills: else ``batch_hard_to_fill`` says it."""
    share, kept = facts.late("groups/all_correct_share"), facts.late("sampling/acceptance_rate")
    if share is None or share < EASY or kept is None or kept < HEALTHY:
        return None
    return Finding(
        "warn" if share >= EASY_MUCH else "note",
        "Most problems are solved",
        f"In the last steps {percent(share, 0)} of the judged groups are all correct: they are generated, and teach "
        "nothing.",
        facts.span("groups/all_correct_share", lambda value: value >= EASY),
        ["groups/all_correct_share", "sampling/trained_share"],
        "" if facts.setting("algorithm.dynamic_sampling.selection.retire.at") is None else _HARDER_ALONE,
    )


@rule(
    f"{percent(HARD, 0)} of the judged groups all wrong in the last steps, while batches fill",
    "Hopeless problems are generated again and again.",
    f"{_EASIER}; algorithm.dynamic_sampling.selection.greso.target=0.25 passes over prompts that never vary. {_READ}",
)
def data_too_hard(facts: Facts) -> Finding | None:
    """As above, at the other end."""
    share, kept = facts.late("groups/all_wrong_share"), facts.late("sampling/acceptance_rate")
    if share is None or share < HARD or kept is None or kept < HEALTHY:
        return None
    return Finding(
        "note",
        "Most problems are never solved",
        f"In the last steps {percent(share, 0)} of the judged groups are all wrong: they are generated, and teach "
        "nothing.",
        facts.span("groups/all_wrong_share", lambda value: value >= HARD),
        ["groups/all_wrong_share", "sampling/trained_share"],
        f"{_EASIER}. {_READ}" if facts.setting("algorithm.dynamic_sampling.selection.greso") else "",
    )


@rule(
    f"{REFILLS:g} refills and more for each group of a batch, over 3 steps",
    "Many small refills keep few slots busy.",
    "Leave algorithm.dynamic_sampling.oversample at null, raise lookahead, or give the engine more rollout.slots.",
)
def many_refills(facts: Facts) -> Finding | None:
    """Each group that is missing is asked for by itself: the estimate of the acceptance rate lags behind."""
    prompts = facts.setting("rollout.prompts_per_step")
    stretch = facts.highest("sampling/refills", REFILLS * prompts) if prompts else None
    if stretch is None:
        return None
    return Finding(
        "note",
        "Prompts are sent in many small refills",
        f"Up to {number(stretch.mean)} refills a step for a batch of {prompts} groups.",
        stretch.span,
        ["sampling/refills", "sampling/acceptance_estimate", "sampling/slot_use"],
    )


@rule(
    f"mean age of {percent(OLD, 0)} of max_age and {OLD_LEAST:g} versions over 3 steps, or {percent(EXPIRED, 0)} "
    "of the tokens expired",
    "Old tokens were sampled by a policy that is gone: their ratios are far from 1, and more of them are clipped.",
    "Lower algorithm.dynamic_sampling.lookahead or rollout.slots (less work under way), or max_age.",
)
def old_groups(facts: Facts) -> Finding | None:
    """Ages near the limit, and groups dropped at it."""
    limit = facts.setting("algorithm.dynamic_sampling.max_age", 4)
    stretch = facts.highest("groups/age_mean", max(OLD_LEAST, OLD * limit))
    generated = facts.total("sampling/generated_tokens")
    expired = facts.total("cost/expired_tokens") / generated if generated else 0.0
    if expired >= EXPIRED:
        return Finding(
            "warn",
            "Tokens expire",
            f"{percent(expired)} of the generated tokens were dropped at the age limit of {limit} versions.",
            facts.span("cost/expired_tokens", bool),
            ["cost/expired_tokens", "groups/expired", "groups/age_mean"],
            "Set algorithm.dynamic_sampling.on_max_age to wait, raise max_age, or lower lookahead or rollout.slots.",
        )
    if stretch is None:
        return None
    return Finding(
        "warn",
        "What trains is old",
        f"The trained groups were begun with weights {stretch.mean:.1f} versions older than those that they trained, "
        f"on average at the worst; max_age is {limit}.",
        stretch.span,
        ["groups/age_mean", "groups/age_max", "groups/waiting", "groups/unfinished"],
    )


@rule(
    f"accuracy of all and of kept groups {100 * APART:.0f} points apart in the last steps",
    "Only mixed groups are kept, so their accuracy is pulled towards 50%, whatever the model learns.",
    "Judge the policy by reward/accuracy and by held-out accuracy.",
)
def kept_misleads(facts: Facts) -> Finding | None:
    """Warn that the accuracy of kept groups is pulled towards one half, and shows little of what is learned."""
    raw, kept = facts.late("reward/accuracy"), facts.late("reward/accuracy_kept")
    if raw is None or kept is None or abs(raw - kept) < APART:
        return None
    return Finding(
        "note",
        "Accuracy of kept groups says little here",
        f"In the last steps the policy answers {percent(raw, 0)} of its training prompts right, and {percent(kept, 0)} "
        "in the groups that are kept: the keep rule leaves out what is solved or hopeless.",
        facts.late_steps("reward/accuracy"),
        ["reward/accuracy", "reward/accuracy_kept"],
    )


def late_shares(facts: Facts) -> Shares:
    """Return the shares of the last steps as ``observe.why`` takes them."""
    first = facts.late_steps("sampling/acceptance_rate")[0]
    return shares_of([row for row in facts.rows if row["step"] >= first], facts.run.recipe)


FIRST = (batch_unfilled, batch_starves, hopeless_start)
"""What stands before the rules of all other files."""
