"""Sentences on a step or the end of a run, from the facts of ``types/evidence.py`` alone."""

from __future__ import annotations

from dapo.observe.stopped import silent_said
from dapo.observe.text import percent
from dapo.observe.why import why
from dapo.processes.watch import lost_said
from dapo.types.evidence import (
    Clamping,
    ClusterLost,
    DataEnded,
    Ending,
    HeldOutLoss,
    Interrupted,
    LeftAtOnce,
    NoGain,
    Notice,
    OutOfTime,
    PoorBatch,
)
from dapo.words import counted, in_a_row


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
        return f"{ending.cause}: finishing this step, then saving. {again} to leave at once."
    if isinstance(ending, ClusterLost):
        return f"{lost_said(ending)}: finishing this step with what was started there, then saving"
    if isinstance(ending, LeftAtOnce):
        there = f"step {ending.saved} in {ending.folder}"
        last = "not there yet: the run has to start again" if ending.saved is None else there
        return f"left at once; the last checkpoint is {last}"
    return early_said(ending)


def early_said(ending: DataEnded | NoGain) -> str:
    """Why a run is at its end before ``trainer.steps``."""
    if isinstance(ending, DataEnded):
        what = "every prompt is retired" if ending.retired else "the data has ended"
        return f"{what} after {counted(ending.steps, 'training step')}"
    return (
        f"{ending.metric} was not better {in_a_row(ending.times)} (best: {ending.best:.4g}, at step "
        f"{ending.best_step}; trainer.early_stop.patience = {ending.patience})"
    )


def time_said(ending: OutOfTime) -> str:
    """Why there was no time for another step."""
    given, left = f"trainer.max_hours = {ending.hours:g}", ending.hours * 3600 - ending.passed
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
