"""Rules about the policy itself: entropy, clipping, ratios, gradients, and whether sampler and learner agree."""

from __future__ import annotations

import statistics

from dapo.observe.commands import export_said
from dapo.observe.live_view import CLIPPED, COLLAPSED
from dapo.observe.text import number, percent
from dapo.report.rules.course import FEWER_UPDATES, Facts, Finding, rule
from dapo.words import counted

SOLVED = 0.95
"""Training accuracy from which a low entropy is only certainty. (The quickstart goes from 42 to 90 % at a third of its
first entropy, well above ``COLLAPSED``.)"""
EXPLODED, EXPLODED_ALONE, LOST = 2.0, 4.0, 0.05
"""Times the first entropy, with a loss of that much training accuracy; and without one."""
CLIPPED_MUCH, DUAL = 0.15, 0.02
"""Shares of tokens, beside ``CLIPPED``. A healthy run stays below 2 %: the few tokens that clipping is made for."""
GAP, GAP_LARGE, GAP_GROWTH, GAP_FLOOR = 0.1, 0.3, 3.0, 0.01
"""Nats per token. Two float32 engines differ by less than 0.001, bfloat16 ones by 0.005 to 0.05."""
CORRECTED = 0.1
SYNC_WARN = 0.8
"""Share of what the sync check accepted, above which a run stops. A healthy bfloat16 engine reaches half of it."""
SPIKE, SPIKES_OFTEN, SPIKES_FEWEST = 10.0, 0.05, 3
KL, KL_LARGE = 0.03, 0.1
"""Nats per token, from the policy that sampled. A healthy run stays near 0.001."""
RATIO, RATIO_STEPS = 100.0, 3


_EXPLORE = (
    "The paper raises algorithm.clip.high; on 135 million parameters that is not shown to keep entropy up "
    "(docs/evidence.md). Read some answers: one that is always the same may be what a reward pays for."
)


@rule(
    f"entropy at the end below {percent(COLLAPSED, 0)} of its beginning (a note where training accuracy is "
    f"{percent(SOLVED, 0)} and more)",
    "A policy that always gives the same answer finds nothing better, and groups of equal answers teach nothing.",
    "Go back to a checkpoint before the fall, where one is kept (checkpoint.keep), and lower "
    f"learner.learning_rate; see that rollout.temperature is 1. {_EXPLORE}",
)
def entropy_collapse(facts: Facts) -> Finding | None:
    """Low against its own beginning, since what is normal depends on the model and the task."""
    change = facts.change("train/entropy")
    if facts.run.supervised:  # whoever imitates comes to be sure of what is imitated
        return None
    if change is None or change[0] <= 0 or change[1] >= COLLAPSED * change[0]:
        return None
    early, late = change
    accuracy = facts.late("reward/accuracy") or 0.0
    solved = accuracy >= SOLVED
    said = f"The entropy fell from {number(early)} to {number(late)} nats a token ({percent(late / early, 0)} of it). "
    said += (
        f"Training accuracy is {percent(accuracy)}, so the model is certain because it is right."
        if solved
        else f"Training accuracy is {percent(accuracy)}: the model has stopped trying other answers before it is right."
    )
    title = "The entropy is near zero: the problems are solved" if solved else "The entropy collapsed"
    first, last = facts.span("train/entropy", lambda value: value < COLLAPSED * early)
    return Finding(
        "note" if solved else "bad", title, said, (first, last), ["train/entropy", "reward/accuracy"],
        "Nothing, or take harder problems." if solved else _explore(facts, first),
    )  # fmt: skip


def _explore(facts: Facts, fallen: int) -> str:
    """Return the way back from a collapse that ``fallen`` shows first: a checkpoint that exists, or a new start."""
    kept = [step for step in facts.checkpoints if 0 < step < fallen]
    if kept:
        said = f"Go back to the checkpoint of step {kept[-1]} (`{export_said(facts.run.folder.path, kept[-1])}`)"
    else:
        said = "No checkpoint from before the fall is kept (checkpoint.keep): start again"
    warm = "" if facts.setting("rollout.temperature") == 1 else "; see that rollout.temperature is 1"
    return f"{said} with a lower learner.learning_rate{warm}. {_EXPLORE}"


@rule(
    f"entropy at the end {EXPLODED:g} times its beginning with {100 * LOST:g} points of training accuracy lost, or "
    f"{EXPLODED_ALONE:g} times without",
    "Answers become random: the updates destroy more than they teach.",
    f"Lower learner.learning_rate, use {FEWER_UPDATES}, and look for a noisy reward.",
)
def entropy_explosion(facts: Facts) -> Finding | None:
    """Growth alone may be exploration; with falling accuracy it is decay."""
    change = facts.change("train/entropy")
    if change is None or change[0] <= 0:
        return None
    times, lost = change[1] / change[0], -facts.accuracy_change
    if times < EXPLODED or (times < EXPLODED_ALONE and lost < LOST):
        return None
    said = f"The entropy grew from {number(change[0])} to {number(change[1])} nats a token ({times:.1f} times)"
    said += f", and training accuracy fell by {100 * lost:.1f} points." if lost >= LOST else "."
    return Finding(
        "bad" if lost >= LOST else "warn",
        "The entropy grows: answers become random",
        said,
        facts.span("train/entropy", lambda value: value >= EXPLODED * change[0]),
        ["train/entropy", "reward/accuracy"],
    )


@rule(
    f"approximate KL of {KL:g} nats a token over 3 steps (bad from {KL_LARGE:g}); a note where {RATIO_STEPS} steps "
    f"have a token with ratio {RATIO:g}",
    "The update assumes that the policy stays near the one that sampled.",
    f"Lower learner.learning_rate, use {FEWER_UPDATES}, or lower algorithm.dynamic_sampling.max_age.",
)
def policy_jumps(facts: Facts) -> Finding | None:
    """How far a batch of updates moves the policy from the old one (the sampler's, or the learner's before them)."""
    keys = ["train/approx_kl", "train/ratio_max", "train/ratio_min"]
    far = facts.highest("train/approx_kl", KL)
    if far is not None:
        return Finding(
            "bad" if far.mean >= KL_LARGE else "warn",
            "Each step moves the policy far",
            f"Over three steps the policy was up to {number(far.mean)} nats a token from the old one, that of "
            "the ratio.",
            far.span,
            keys,
        )
    extreme = facts.where("train/ratio_max", lambda value: value >= RATIO)
    if len(extreme) < RATIO_STEPS:
        return None
    return Finding(
        "note",
        "Single tokens have extreme ratios",
        f"In {len(extreme)} steps some token was {RATIO:.0f} times as likely as when it was sampled and more, up to "
        f"{number(max(facts.values('train/ratio_max')))}.",
        (extreme[0], extreme[-1]),
        keys,
        "Where such a token is in a wrong answer nothing bounds its gradient: set algorithm.clip.dual (10 is usual).",
    )


@rule(
    f"{percent(CLIPPED, 0)} of the tokens clipped low or high, or {percent(DUAL, 0)} dual, over 3 steps "
    f"(bad from {percent(CLIPPED_MUCH, 0)})",
    "Clipped tokens have no gradient. A few are meant to be clipped; many mean that the steps are too large.",
    f"Lower learner.learning_rate, or use {FEWER_UPDATES}. Old tokens are clipped too: lower "
    "algorithm.dynamic_sampling.max_age.",
)
def clip_share(facts: Facts) -> Finding | None:
    """Find many clipped tokens. A sequence ratio (GSPO) is clipped in whole responses, so its shares are large by
    design. A loss without a clip, such as CISPO, takes no token's gradient."""
    if not facts.setting("algorithm.loss.clips_tokens", True):
        return None
    parts, worst = [], None
    bounds = {
        "train/clip_low": ("low", CLIPPED),
        "train/clip_high": ("high", CLIPPED),
        "train/clip_dual": ("dual", DUAL),
    }
    for key, (name, bound) in bounds.items():
        stretch = facts.highest(key, bound)
        if stretch is not None:
            parts.append(f"{percent(stretch.mean)} {name}")
            if worst is None or stretch.mean > worst.mean:
                worst = stretch
    if worst is None:
        return None
    return Finding(
        "bad" if worst.mean >= CLIPPED_MUCH else "warn",
        "Many tokens are clipped",
        f"At the worst the clip cut the gradient of {', '.join(parts)} of the tokens: each batch moves the policy "
        "further than the bounds allow, and the rest of the batch is wasted.",
        worst.span,
        list(bounds),
    )


@rule(
    f"mean gap of {GAP:g} nats over 3 steps (bad from {GAP_LARGE:g}), or {GAP_GROWTH:g} times its beginning and "
    f"{GAP_FLOOR:g} nats; or {percent(CORRECTED, 0)} of the tokens with a capped correction",
    "The engine samples from another policy than the learner trains: gradients are biased, and runs drift until "
    "they break.",
    "Use the same type on both sides (model.dtype, rollout.vllm.dtype, model.fp32_head), equal temperature, top_p "
    "and top_k, and leave algorithm.correction.kind at auto. docs/engines.md lists the causes.",
)
def sampler_gap(facts: Facts) -> Finding | None:
    """Look at tokens of the current weights where they are known: older ones differ because the policy moved.

    With ``top_p`` or ``top_k`` the difference is the mass that sampling kept, so it says nothing about the engine.
    """
    if facts.setting("rollout.top_p", 1.0) < 1.0 or facts.setting("rollout.top_k", 0):
        return None
    key = "train/gap_mean_current" if facts.values("train/gap_mean_current") else "train/gap_mean"
    keys = [key, "train/gap_kl", "train/gap_max", "train/correction_share"]
    large, corrected = facts.highest(key, GAP), facts.highest("train/correction_share", CORRECTED)
    change = facts.change(key)
    if large is not None:
        return Finding(
            "bad" if large.mean >= GAP_LARGE else "warn",
            "Sampler and learner disagree",
            f"For the same token their log-probabilities differ by {number(large.mean)} nats on average at the worst.",
            large.span,
            keys,
        )
    if change is not None and change[1] >= GAP_FLOOR and change[1] >= GAP_GROWTH * change[0]:
        return Finding(
            "warn",
            "The gap between sampler and learner grows",
            f"Their log-probabilities of the same token differed by {number(change[0])} nats on average at the "
            f"beginning and by {number(change[1])} at the end.",
            facts.whole,
            keys,
        )
    if corrected is not None:
        return Finding(
            "warn",
            "Many tokens have their correction capped",
            f"The importance correction of {percent(corrected.mean)} of the tokens was capped or masked at the worst.",
            corrected.span,
            keys,
        )
    return None


@rule(
    f"{percent(SYNC_WARN, 0)} of train/sync_accepted, what the check let pass (bad from all of it)",
    "The engine does not run the weights it was given: everything that it samples is off-policy.",
    "Find the tensor that does not arrive (docs/engines.md). Raise trainer.sync_check_tolerance only where the "
    "engine computes in a coarser type.",
)
def sync_gap(facts: Facts) -> Finding | None:
    """Compare the engine's weights with the learner's after each publish, by the error that the check accepted."""
    known = dict(zip(*facts.series("train/sync_accepted"), strict=True))
    otherwise = facts.setting("trainer.sync_check_tolerance", 0.05)  # of a run that did not record it
    found = [(step, gap, known.get(step, otherwise)) for step, gap in zip(*facts.series("train/sync_gap"), strict=True)]
    over = [(gap / accepted, step, gap, accepted) for step, gap, accepted in found if gap >= SYNC_WARN * accepted > 0]
    if not over:
        return None
    worst, _, gap, accepted = max(over)
    return Finding(
        "bad" if worst >= 1.0 else "warn",
        "After a publish the engine is not what the learner is",
        f"Right after weights were handed over, log-probabilities differed by {number(gap)} nats at the worst; above "
        f"{number(accepted)} the run would have stopped.",
        (min(step for _, step, _, _ in over), max(step for _, step, _, _ in over)),
        ["train/sync_gap", "train/sync_accepted"],
    )


@rule(
    f"a gradient norm of {SPIKE:g} times its median (a warning from {percent(SPIKES_OFTEN, 0)} of the steps and "
    f"{SPIKES_FEWEST} on)",
    "A spike is one batch that would undo many. learner.max_grad_norm bounds its length, not its direction.",
    "Look at the groups of those steps in the rollouts. If they repeat: lower learner.learning_rate or "
    "learner.max_grad_norm, or raise learner.warmup.",
)
def gradient_spikes(facts: Facts) -> Finding | None:
    """Against the run's own median: the scale of a gradient depends on the model."""
    usual = [value for value in facts.values("train/grad_norm") if value > 0]
    if len(usual) < SPIKES_FEWEST:
        return None
    median = statistics.median(usual)
    spikes = facts.where("train/grad_norm_max", lambda value: value >= SPIKE * median)
    if not spikes:
        return None
    often = len(spikes) >= max(SPIKES_FEWEST, SPIKES_OFTEN * facts.steps)
    worst = max(facts.values("train/grad_norm_max"))
    return Finding(
        "warn" if often else "note",
        "The gradient spikes",
        f"In {counted(len(spikes), 'step')} of {facts.steps} it was {SPIKE:.0f} times its median ({number(median)}) "
        f"and more, up to {number(worst)}.",
        (spikes[0], spikes[-1]),
        ["train/grad_norm", "train/grad_norm_max"],
    )


@rule(
    f"any skipped or empty optimiser step (bad from {SPIKES_FEWEST} skipped, or with a loss that is not a number)",
    "A number that was not finite is the first sign of divergence; an empty step is paid for and moves nothing.",
    "For numbers that are not finite: lower learner.learning_rate, use model.dtype float32 or model.fp32_head. For "
    "empty steps: more responses must vote and carry loss (rollout.max_response_tokens, algorithm.overlong_filtering).",
)
def skipped_steps(facts: Facts) -> Finding | None:
    """Any skipped step is a number that was not finite; the run stops after ``learner.max_skipped_steps`` in a row."""
    skipped, empty = facts.total("train/skipped_steps"), facts.total("train/empty_steps")
    lost = [row["step"] for row in facts.rows if "train/loss" in row and row["train/loss"] is None]
    if not skipped and not empty and not lost:
        return None
    where = [*facts.where("train/skipped_steps", bool), *facts.where("train/empty_steps", bool), *lost]
    parts = []
    if skipped or lost:
        parts.append(f"{max(int(skipped), len(lost))} had a gradient or loss that was not finite")
    if empty:
        parts.append(f"{int(empty)} had no token with loss")
    bad = bool(lost) or skipped >= SPIKES_FEWEST
    return Finding(
        "bad" if bad else "warn",
        "Optimiser steps moved nothing",
        f"Of {facts.total('train/optimizer_steps'):,.0f} optimiser steps " + " and ".join(parts) + ".",
        (min(where), max(where)),
        ["train/skipped_steps", "train/empty_steps", "train/grad_norm_max"],
    )
