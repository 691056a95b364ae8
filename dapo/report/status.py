"""How a run stands, or how it ended: from status.json, its lock and its metrics."""

from __future__ import annotations

import math
import os
import re
import shlex
import time

from dapo.observe.run_folder import step_files
from dapo.observe.sentences import Outcome, State, outcome_said, title_said
from dapo.observe.status import RunStatus, read_evidence, read_filling
from dapo.observe.text import clean
from dapo.report.page_data import Status
from dapo.report.reader import RunContents
from dapo.types.evidence import CollectProgress

ELSEWHERE = 600.0
"""Seconds after the last update for which a run on another machine, whose lock cannot be seen here, counts as
running; or ten times a step's seconds, where that is longer."""
CLOCKS_APART = 60.0
"""Seconds by which the other machine's clock may be ahead."""
LOG_LINES = 20
_WELL = ("running", "finished")


def status_of(run: RunContents, now: float | None = None) -> Status:
    """Return the state of a run, in words that end with what to type next.

    Args:
        run: as read.
        now: seconds since 1970; default: the clock's.
    """
    outcome = outcome_of(run, now)
    return Status(
        state=outcome.state,
        title=title_said(outcome),
        said=outcome_said(outcome),
        step=outcome.step,
        steps=outcome.steps,
        started=_time(run.status.started) if run.status else None,
        updated=_updated(run),
        seconds=_seconds(run),
        log=[] if outcome.state in _WELL else [here_said(run, line) for line in run.log_tail[-LOG_LINES:]],
    )


def outcome_of(run: RunContents, now: float | None = None) -> Outcome:
    """Return the facts of a run's state, of which sentences are made."""
    now = time.time() if now is None else now
    status, updated, checkpoints = run.status, _updated(run), checkpoint_steps(run)
    return Outcome(
        _state(run, now),
        run.folder.path,
        run.last_step,
        _steps(run),
        begun=bool(run.rows),
        said=clean(here_said(run, status.said)).strip() if status else "",
        evidence=read_evidence(status.evidence) if status else None,
        supervised=run.supervised,
        saved=checkpoints[-1] if checkpoints else None,
        doing=status.doing if status else "",
        pace=pace_of(run),
        silent=None if updated is None else now - updated,
    )


def filling_of(run: RunContents) -> CollectProgress | None:
    """Return how far the batch of the step is that is not done; None where that is not known."""
    filling = read_filling(run.status.filling) if run.status else None
    return filling if filling is not None and filling.step > run.last_step else None


def checkpoint_steps(run: RunContents) -> list[int]:
    """Return the steps of the checkpoints that are kept, in order."""
    return list(step_files(run.folder.checkpoints, ""))


def pace_of(run: RunContents) -> float | None:
    """Return the seconds of a step, mean of the last ten."""
    seconds = [row["time/step"] for row in run.rows[-10:] if row.get("time/step") is not None and row["step"]]
    return sum(seconds) / len(seconds) if seconds else None


def here_said(run: RunContents, text: str) -> str:
    """Return text that names the folder where the run lies now: it may have been copied."""
    before = run.status.folder if run.status else ""
    here = clean(str(run.folder.path), newlines=False)
    if before in ("", ".", here):
        return text
    for typed in (shlex.quote(before), before):
        text = re.sub(rf"--resume {re.escape(typed)}(?![\w/.-])", lambda _: f"--resume {shlex.quote(here)}", text)
    return re.sub(rf"(?<![\w/.'-]){re.escape(before)}(?![\w.-])", lambda _: here, text)


def _seconds(run: RunContents) -> float | None:
    found = [row["time/step"] for row in run.rows if row.get("time/step") is not None]
    whole = sum(found)
    return float(whole) if found and math.isfinite(whole) else None


def _state(run: RunContents, now: float) -> State:
    if run.status is not None and run.status.state != "running":
        return run.status.state
    if run.status is not None:
        return "running" if run.held or _elsewhere(run.status, run, now) else "killed"
    if run.held:
        return "running"
    if _steps(run) and run.last_step >= _steps(run):
        return "finished"
    return "unfilled" if max(step_files(run.folder.stopped), default=0) > run.last_step else "unknown"


def _elsewhere(status: RunStatus, run: RunContents, now: float) -> bool:
    """On another machine: its lock may not be seen from here, so a recent update counts."""
    updated = _time(status.updated)
    if status.host == os.uname().nodename or updated is None:
        return False
    return -CLOCKS_APART < now - updated < max(ELSEWHERE, 10 * (pace_of(run) or 0.0))


def _steps(run: RunContents) -> int:
    if run.recipe is not None and not run.supervised:  # a supervised run counts its epochs' steps
        return run.recipe.trainer.steps
    return run.status.steps if run.status else 0


def _time(seconds: float) -> float | None:
    return seconds if 0 < seconds < 1e11 else None


def _updated(run: RunContents) -> float | None:
    """Return the time of the last update; of a run that does not say, when metrics.jsonl was written last."""
    found = _time(run.status.updated) if run.status else None
    return _written(run) if found is None else found


def _written(run: RunContents) -> float | None:
    """When metrics.jsonl was written last, for runs that do not say."""
    try:
        return run.folder.metrics.stat().st_mtime
    except OSError:
        return None
