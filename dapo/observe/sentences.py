"""The outcome of a run in words: how it goes on, how it ended and why, and what to do next.

The console, status.json, the list of runs, the page and Python all take their sentences from here. They are made of
facts alone: those of ``types/evidence.py`` and ``Outcome``. ``why`` has the causes of a batch that does not fill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from dapo.observe.commands import resume_said, typed
from dapo.observe.metrics import Row
from dapo.observe.text import brief, clean, first_sentence, number, percent, seconds_said, sentence, shorten
from dapo.observe.why import awaited_said, why
from dapo.processes.watch import lost_said
from dapo.types.evidence import (
    Cause,
    Clamping,
    ClusterLost,
    DataEnded,
    Ending,
    Evidence,
    Example,
    HeldOutLoss,
    Interrupted,
    LeftAtOnce,
    LeftInStep,
    NoGain,
    Notice,
    OutOfTime,
    PoorBatch,
    Shares,
    SilentEvidence,
    StopEvidence,
    StuckEvidence,
    UnscoredEvidence,
    cause_of,
)
from dapo.words import counted, in_a_row

State = Literal["running", "finished", "interrupted", "unfilled", "failed", "killed", "unknown"]
"""``interrupted``: Ctrl-C, saved. ``unfilled``: the batch could not be filled. ``failed``: an error ended it.
``killed``: it says that it runs, and no process holds its folder. ``unknown``: it has no status file."""

PARTIAL = "algorithm.dynamic_sampling.cap.then=train_partial"
PROBLEM, ANSWER, RESPONSE = 80, 40, 160
"""Characters of an example that are shown."""
LONGEST = 400  # characters of an error's message in a sentence
STILL = 60.0
"""Seconds without an update from which a sentence says so, if they are also ten times those of a step."""
LEFT = "left at once"
_OWN = "algorithm.dynamic_sampling"
_CHANGES = {
    Cause.NONE: f"`{_OWN}.cap.groups=...` or `cap.tokens` (a higher cap){{partial}}.",
    Cause.FRACTIONS: f"`{_OWN}.correct_at=...`{{partial}}.",
    Cause.UNREAD: "`rewards.0.pattern=...` or another reward. Another instruction needs a new run.",
    Cause.TRUNCATED: "`rollout.max_response_tokens=...` (longer responses){partial}.",
    Cause.NO_VOTE: "`rollout.max_response_tokens=...` (longer responses){partial}.",
    Cause.OUT_OF_BAND: f"`{_OWN}.band=...`{{partial}}.",
    Cause.UNIFORM: f"`{_OWN}.metric=...` or `{_OWN}.tolerance=...`{{partial}}.",
    Cause.TOO_FEW_SCORED: "once the reward function is fixed{partial}.",
}
"""What a resume changes, by the likely cause of a batch that does not fill; ``{partial}`` is another way."""
_TITLES: dict[State, str] = {
    "running": "running",
    "finished": "finished",
    "interrupted": "stopped by hand",
    "unfilled": "could not fill its batch",
    "failed": "ended by an error",
    "killed": "killed",
    "unknown": "did not reach its end",
}
_BROKEN_OFF = {
    "KeyboardInterrupt": LEFT,
    "GeneratorExit": "stopped and saved",
    "SamplingStopped": _TITLES["unfilled"],
    "NothingScored": "no response could be scored",
}


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run stands, or ended, as facts.

    >>> Outcome("killed", Path("runs/mine"), step=4, steps=60).saved is None
    True
    """

    state: State
    folder: Path  # where the run lies now
    step: int  # last one with a line in metrics.jsonl
    steps: int  # that it wants; 0 where that is not known
    begun: bool = True  # it has a line, of step 0 at least
    said: str = ""  # what ended it, as it said itself; it may quote a response, made harmless
    evidence: Evidence | None = None
    supervised: bool | None = None  # None: the folder tells
    saved: int | None = None  # step of the newest checkpoint
    doing: str = ""  # within a step that goes on, as it said itself
    pace: float | None = None  # seconds of a step, lately
    silent: float | None = None  # seconds since its last update


# -------------------------------------------------------------------------------- how it stands


def title_said(run: Outcome) -> str:
    """Return how a run stands, in a few words."""
    if run.state == "running" and not run.begun:
        return "starting"
    reason = reason_of(run) if run.state == "interrupted" else None
    return _TITLES[run.state] if reason is None else reason.title


def broken_off_said(error: type[BaseException]) -> str:
    """Return what an exception of this kind does to a run, in a few words."""
    return _BROKEN_OFF.get(error.__name__, _TITLES["failed"])


def outcome_said(run: Outcome) -> str:
    """Return how a run stands or ended, and what to do next."""
    whole = "The only step is done." if run.steps == 1 else f"All {counted(run.steps, 'step')} are done."
    return f"{ended_said(run) or whole} {next_said(run)}"


def ended_said(run: Outcome) -> str:
    """Return how a run ended, or that it goes on; "" for a run that is at its end."""
    state, steps = run.state, run.steps
    step, of = run.step, f" of {steps}" if steps else ""
    where = "after its last step" if 0 < steps <= step else f"in step {step + 1}{of}"
    done = f"{step} of {counted(steps, 'step')}" if of else counted(step, "step")
    if state == "unfilled":
        met, _, _ = unfilled_said(run)
        return f"The run stopped because step {step + 1}{of} could not fill its batch. {met}".strip()
    if state == "failed":
        error = brief(first_sentence(clean(run.said, newlines=False)), LONGEST).rstrip(".")
        return f"The run ended with an error {where}: {error or 'it does not say which'}."
    if state == "killed":
        return f"The run was killed {where}: its process was gone without a word."
    if state == "interrupted":
        cause = reason_of(run)
        return f"The run was stopped {'by hand' if cause is None else cause.by} after {done}."
    if state == "unknown":
        return f"The run has {done} and does not say what ended it."
    if state == "running":
        return (
            f"The run is going on: {done} {'is' if step == 1 else 'are'} done." if run.begun else "The run is starting."
        )
    if step < steps:
        return f"The run ended after {done}: {_early(run) or 'there was no further data'}."
    return ""


def next_said(run: Outcome) -> str:
    """Return what more is known of a run and what to do next, a command as it can be typed where there is one."""
    state = run.state
    go_on = f"`{_resume(run)}` goes on from {_checkpoint(run)}."
    if state == "finished":
        folder = typed(run.folder)
        return f"Next: `dapo evaluate {folder} --samples 16`, or `dapo export {folder} MODEL_FOLDER`."
    if state == "running":
        return _running(run)
    if state == "interrupted":
        stopped = reason_of(run)
        how = sentence(brief(run.said, LONGEST)) if stopped is None else stopped.said
        return f"{how} {go_on}".strip()
    if state == "unfilled":
        _, cause, _ = unfilled_said(run)
        because = first_sentence(cause) or "What was judged is in stopped/*.parquet."
        return f"{because} {_refill(run)}"
    if state == "failed":
        whole = clean(run.said, newlines=False).strip()
        more = brief(whole[len(first_sentence(whole)) :].strip(". "), LONGEST)
        return f"{sentence(more)} Once that is fixed, {go_on}".strip()
    if state == "killed":
        return (
            f"It ran out of memory, or the machine went down (`dmesg` names a process that ran out of memory). {go_on}"
        )
    return go_on


def _running(run: Outcome) -> str:
    pace, left, silent, said = run.pace, run.steps - run.step, run.silent, []
    if not run.begun:
        said.append("It is loading its model, or evaluates it before the first step.")
    elif pace is not None and left > 0:
        said.append(f"A step takes {number(pace)} s: about {seconds_said(pace * left)} left.")
    if run.doing:
        said.append(f"Now: {brief(clean(run.doing, newlines=False), LONGEST)}.")
    if silent is not None and silent >= STILL and silent >= 10 * (pace or 0.0):
        said.append(f"Its last update was {seconds_said(silent)} ago.")
    return " ".join([*said, "Ctrl-C in its terminal saves and stops it."])


def _early(run: Outcome) -> str:
    found = run.evidence
    return clean(early_said(found), newlines=False) if isinstance(found, DataEnded | NoGain) else run.said


class StopReason(NamedTuple):
    """Why a run stopped without a request."""

    title: str  # of how it stands
    by: str  # behind "was stopped"
    said: str  # a sentence


def reason_of(run: Outcome) -> StopReason | None:
    """Return what stopped it, saved; None of a run that was stopped by hand, or not at all."""
    found = run.evidence
    if isinstance(found, OutOfTime):
        return StopReason("out of time", "by its limit of time", f"{time_said(found)}.")
    if isinstance(found, ClusterLost):
        said = sentence(clean(lost_said(found), newlines=False))
        return StopReason("lost its cluster", "as its cluster was lost", said)
    return None


def unfilled_said(run: Outcome) -> tuple[str, str, str]:
    """Return what was met, the likely cause and how to go on, of a run that could not fill its batch.

    A part that is not known is "". Of a run without evidence, what it said as a whole stands for the first.
    """
    evidence = run.evidence
    if not isinstance(evidence, StopEvidence):
        return sentence(brief(run.said, LONGEST)), "", ""
    met = met_said(evidence)
    if evidence.met == "cap.groups" and evidence.shares.judged > (evidence.limit or 0.0) * evidence.wanted:
        met += f"; {evidence.shares.judged} were judged, since some had been sent out in earlier steps"
    files = clean(f"{run.folder}/stopped/*.parquet", newlines=False)
    return sentence(met), cause_said(evidence, f"its rollouts ({files})"), go_on_said(evidence, run.folder)


def _resume(run: Outcome, change: str = "") -> str:
    return resume_said(run.folder, change, supervised=run.supervised)


def _refill(run: Outcome) -> str:
    """Return how to go on after a batch that could not be filled: a command as it can be typed, where there is one."""
    if isinstance(run.evidence, StopEvidence) and run.evidence.kept:
        said = f"`{_resume(run, PARTIAL)}` trains on the groups that there are."
    else:
        said = f"`{_resume(run, 'KEY=VALUE')}` goes on with changed settings."
    return f"{said} Other problems or another rollout.group_size need a new run."


def _checkpoint(run: Outcome) -> str:
    """Return where a resume begins."""
    return (
        f"its checkpoint of step {run.saved}" if run.saved is not None else "its beginning: there is no checkpoint yet"
    )


# -------------------------------------------------------------------------------- why a step could not be made


def stop_said(evidence: object, run: Path) -> str:
    """Return the message of an error that carries evidence.

    Args:
        evidence: of a batch that could not fill, of a stuck run, of unscored responses or of silent held-out sets;
            anything else is shown as it is.
        run: the folder of the run.
    """
    if isinstance(evidence, StopEvidence):
        return _unfilled(evidence, run)
    if isinstance(evidence, UnscoredEvidence):
        return _unscored(evidence, run)
    if isinstance(evidence, StuckEvidence):
        return _stuck(evidence, run)
    return silent_said(evidence) if isinstance(evidence, SilentEvidence) else repr(evidence)


def met_said(evidence: StopEvidence) -> str:
    """Return what stopped the batch, and how far the batch was."""
    met = {
        "data": "the data ended",
        "retired": "every prompt is retired",
        "cap.groups": f"the cap of {evidence.limit or 0:g} x {evidence.wanted} dispatched groups was met",
        "cap.tokens": f"the cap of {evidence.limit or 0:.0f} generated tokens was met",
    }[evidence.met]
    return f"{met} with {evidence.kept} of {evidence.wanted} groups kept"


def cause_said(evidence: StopEvidence, rollouts: str) -> str:
    """Return the likely cause and what to change; ``rollouts``: where the judged responses can be read."""
    cap = {
        "cap.groups": f"cap.groups = {evidence.limit or 0:g} x {evidence.wanted}",
        "cap.tokens": f"cap.tokens = {evidence.limit or 0:.0f}",
    }.get(evidence.met, "")
    return why(evidence.shares, rollouts, cap)


def go_on_said(evidence: StopEvidence, run: Path) -> str:
    """How a resume can go on; a resumed run keeps its problems, prompts and group size."""
    resume = f"`{resume_said(run, 'KEY=VALUE', supervised=False)}` goes on"
    partial = f"`{PARTIAL}` trains on the groups that there are" if evidence.kept else ""
    or_partial = f", or {partial}" if partial else ""
    if evidence.met == "data":
        return f"{resume}: `data.epochs=...` (more passes){or_partial}."
    if evidence.met == "retired":
        also = f", and {partial}" if partial else ""
        return f"{resume}: `{_OWN}.selection.retire=null` trains on solved prompts again{also}."
    change = _CHANGES.get(cause_of(evidence.shares), "")  # "": there is no single setting
    if change:
        return f"{resume}: {change.format(partial=or_partial)}"
    also = f"; {partial}" if partial else ""
    return (
        f"{resume}, with other `rewards` or `{_OWN}` settings: a higher `{_OWN}.cap.groups` searches "
        f"longer{also}. Other problems, another instruction or group size need a new run."
    )


def silent_said(evidence: SilentEvidence) -> str:
    """Return the message of an evaluation that knows the accuracy of no response of a set."""
    named = "; ".join(clean(f"{name}: {reason}", newlines=False) for name, reason in evidence.reasons.items())
    mend = (
        "Look at the engine's settings under `rollout` and `validation`, and at the model"
        if evidence.engine
        else "Fix the reward called accuracy for these problems (rewards.txt has what it printed, samples.jsonl the "
        "responses and the reasons), or raise its timeout"
    )
    return (
        f"the held-out accuracy is unknown: not one response could be scored ({named}). {mend}, or leave the set "
        "out of data.validation."
    )


def _unfilled(evidence: StopEvidence, run: Path) -> str:
    shares = evidence.shares
    verdicts = [f"{percent(share)} {name}" for name, share, always in _verdicts(shares) if always or share]
    return "\n".join(
        [
            f"dynamic sampling stopped: {met_said(evidence)}.",
            f"Judged in this step: {shares.judged} groups, {', '.join(verdicts)}; {shares.generated_tokens} tokens "
            "were generated.",
            f"Likely cause: {cause_said(evidence, f'{run}/stopped/*.parquet')}",
            *([_example(evidence.example)] if evidence.example else []),
            f"The state and the kept groups are saved. {go_on_said(evidence, run)}",
        ]
    )


def _verdicts(shares: Shares) -> list[tuple[str, float, bool]]:
    """Name, share, and whether it is said where it is 0."""
    return [
        ("kept", shares.kept, True),
        ("all correct", shares.all_correct, True),
        ("all wrong", shares.all_wrong, True),
        ("uniform in the metric", shares.uniform, False),
        ("out of the band", shares.out_of_band, False),
        ("with fewer than two responses that vote", shares.too_few_scored, False),
    ]


def _example(example: Example) -> str:
    said = shorten(clean(example.response, newlines=False), RESPONSE)
    asked = shorten(clean(example.problem, newlines=False), PROBLEM)
    result = f"unscored: {example.reason}" if example.accuracy is None else f"accuracy {example.accuracy:g}"
    return f"For example: {asked!r}, expected {example.answer[:ANSWER]!r}, got {said!r} ({result})."


def _unscored(evidence: UnscoredEvidence, run: Path) -> str:
    reasons = ", ".join(f"{reason!r} x {n}" for reason, n in evidence.reasons.items())
    what = "engine finishes no response" if evidence.engine else "verifier fails on everything"
    mend = (
        "Look at the engine's settings under `rollout` and at the model"
        if evidence.engine
        else f"Fix the reward function ({run}/rewards.txt has what it printed)"
    )
    return (
        f"the {what}: none of {evidence.responses} responses could be scored.\n"
        f"Reasons: {reasons}.\n"
        f"{mend}; {run}/log.txt has the first failure of each kind. Then continue with "
        f"`{resume_said(run, supervised=False)}`."
    )


def _stuck(evidence: StuckEvidence, run: Path) -> str:
    owed = awaited_said(evidence.awaited) or "no score, reply or response is owed"
    return (
        f"step {evidence.step} cannot go on. {evidence.kept} of {evidence.wanted} groups are kept, "
        f"{counted(evidence.groups, 'group')} more cannot be judged, and nothing can change that any more: {owed}. "
        "That is a defect of dapo, or of an engine or scorer of your own. Everything is saved, and "
        f"`{resume_said(run, supervised=False)}` asks for the scores again. Please report it with {run}/log.txt."
    )


# -------------------------------------------------------------------------------- on the way, and at the end


def notice_said(step: int, notice: Notice) -> str:
    """Return the notice of step ``step`` as a sentence; the run goes on."""
    return f"step {step}: {_notice(notice)}"


def _notice(notice: Notice) -> str:
    if isinstance(notice, PoorBatch):
        row = f", {notice.in_a_row} steps in a row" if notice.in_a_row > 1 else ""
        because = f" {why(notice.shares)}" if notice.shares else ""
        return f"the batch has {notice.useful} groups to learn from{row}.{because}"
    if isinstance(notice, HeldOutLoss):
        return f"held-out loss {notice.loss:.4f} nats a token"
    return _clamping(notice) if isinstance(notice, Clamping) else silent_said(notice)


def _clamping(notice: Clamping) -> str:
    return (
        f"{percent(notice.share)} of the rewards lie outside {notice.low:g} .. {notice.high:g} and are clamped to it, "
        f"so what differs beyond teaches nothing. They run from {notice.least:g} to {notice.greatest:g}: "
        "algorithm.reward_scaling.source_min and source_max must hold them (reward/clamped in metrics.jsonl has the "
        "share of each step)"
    )


def ending_said(ending: Ending) -> str:
    """Why no further step is begun, where the run goes by: its console."""
    if isinstance(ending, OutOfTime):
        return f"{time_said(ending)}: saving and ending here"
    if isinstance(ending, Interrupted):
        again = "Press it again" if ending.cause == "Ctrl-C" else "Send it again"
        return (
            f"{ending.cause}: stopping and saving; a batch that is being learnt is finished first. {again} to leave at "
            "once, without a checkpoint."
        )
    if isinstance(ending, LeftInStep):
        return left_said(ending)
    if isinstance(ending, ClusterLost):
        return f"{lost_said(ending)}: finishing this step with what was started there, then saving"
    if isinstance(ending, LeftAtOnce):
        there = f"step {ending.saved} in {ending.folder}"
        last = "not there yet: the run has to start again" if ending.saved is None else there
        return f"{LEFT}; the last checkpoint is {last}"
    return early_said(ending)


def left_said(left: LeftInStep) -> str:
    """Say in which step a stop left the sampling, and where a resume goes on."""
    have = f"{counted(left.groups, 'kept group')} of {left.wanted} and {counted(left.responses, 'unfinished response')}"
    if left.kept:
        return f"step {left.step} is left in its middle: a resume goes on with {have}"
    return f"step {left.step} is left in its middle, without {have}: a resume samples it again, to the same digits"


def early_said(ending: DataEnded | NoGain) -> str:
    """Why a run is at its end before ``trainer.steps``."""
    if isinstance(ending, DataEnded):
        after = f"after {counted(ending.steps, 'training step')}"
        if ending.retired:
            return f"every prompt is retired {after}"
        last = f"; none of the last {counted(ending.rejected, 'group')} could be trained on" if ending.rejected else ""
        return f"the data has ended {after}{last}"
    return (
        f"{ending.metric} was not better {in_a_row(ending.times)} (best: {ending.best:.4g}, at step "
        f"{ending.best_step}; trainer.early_stop.patience = {ending.patience})"
    )


def time_said(ending: OutOfTime) -> str:
    """Why there was no time for another step."""
    given, left = f"trainer.max_hours = {ending.hours:g}", ending.hours * 3600 - ending.passed
    if ending.in_step:
        return f"{given}: the time is over in the middle of a step"
    if ending.longest is None:
        return (
            f"{given} left no time for a single step: what comes before the first one (loading, the evaluation "
            f"before training) took {_seconds(ending.passed)}. Give more: a resume needs that time again"
        )
    if left < 0:
        return f"{given} is over by {_seconds(-left)}, as a step took up to {_seconds(ending.longest)}. Give more"
    return f"{given}: {_seconds(left)} are left, and a step took up to {_seconds(ending.longest)}"


def _seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s"


def nothing_learned(rows: Sequence[Row]) -> str | None:
    """Return why a run ends with the weights of its start; None if at least one optimiser step was applied.

    Args:
        rows: the run's lines.
    """
    steps, skipped, empty = (
        int(sum(row.get(f"train/{name}") or 0 for row in rows))
        for name in ("optimizer_steps", "skipped_steps", "empty_steps")
    )
    if not skipped or skipped + empty < steps:
        return None
    return (
        f"nothing was learned: {skipped:,} of {steps:,} optimiser steps were skipped because their gradient was not "
        "finite, and no other one had a loss. The weights are those of the start. Look at the loss's settings "
        "(algorithm.kl_coefficient, algorithm.loss, functions of yours) and learner.learning_rate, then start a new run"
    )


def best_said(best: Mapping[str, Any] | None, rows: Sequence[Row]) -> str | None:
    """Which checkpoint is the best one, and whether training made the model better at all. None: none is marked.

    Args:
        best: the mark: step, metric and value.
        rows: the run's lines.
    """
    if best is None:
        return None
    said = f"best checkpoint: step {best['step']}, {best['metric']} {best['value']:.4g}"
    start = next(
        (row[best["metric"]] for row in rows if row["step"] == 0 and row.get(best["metric"]) is not None), None
    )
    return said if start is None else f"{said} (before training, which counts as no checkpoint, it was {start:.4g})"
