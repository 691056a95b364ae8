"""How a run stands, or how it ended: from status.json, its lock and its metrics."""

from __future__ import annotations

import math
import os
import time
from typing import Any, get_args

from dapo.report.endings import cause_of, ended_said, here_said, next_said, pace_of
from dapo.report.page_data import State, Status
from dapo.report.reader import RunContents
from dapo.words import counted

ELSEWHERE = 600.0
"""Seconds after the last update for which a run on another machine, whose lock cannot be seen here, counts as
running; or ten times a step's seconds, where that is longer."""
CLOCKS_APART = 60.0
"""Seconds by which the other machine's clock may be ahead."""
LOG_LINES = 20
_TITLES: dict[State, str] = {
    "running": "running",
    "finished": "finished",
    "interrupted": "stopped by hand",
    "unfilled": "could not fill its batch",
    "failed": "ended by an error",
    "killed": "killed",
    "unknown": "did not reach its end",
}
_WELL = ("running", "finished")


def status_of(run: RunContents, now: float | None = None) -> Status:
    """Return the state of a run, in words that end with what to type next.

    Args:
        run: as read.
        now: seconds since 1970; default: the clock's.
    """
    now = time.time() if now is None else now
    state = _state(run, now)
    record = run.status_record or {}
    started, updated = _time(record, "started"), _time(record, "updated")
    if updated is None:
        updated = _written(run)
    step, steps = run.last_step, _steps(run)
    ended = ended_said(run, state, steps)
    whole = "The only step is done." if steps == 1 else f"All {counted(steps, 'step')} are done."
    title = _TITLES[state]
    if state == "running" and not run.rows:
        title = "starting"
    if state == "interrupted" and (cause := cause_of(run)) is not None:
        title = cause.title
    return Status(
        state=state,
        title=title,
        said=f"{ended or whole} {next_said(run, state, steps, None if updated is None else now - updated)}",
        step=step,
        steps=steps,
        started=started,
        updated=updated,
        seconds=_seconds(run),
        log=[] if state in _WELL else [here_said(run, line) for line in run.log_tail[-LOG_LINES:]],
    )


def _seconds(run: RunContents) -> float | None:
    found = [row["time/step"] for row in run.rows if row.get("time/step") is not None]
    whole = sum(found)
    return float(whole) if found and math.isfinite(whole) else None


def _state(run: RunContents, now: float) -> State:
    said = str((run.status_record or {}).get("state"))
    if said == "running":
        return "running" if run.held or _elsewhere(run, now) else "killed"
    known: dict[Any, State] = {state: state for state in get_args(State)}
    if said in known:
        return known[said]
    if run.held:
        return "running"
    if _steps(run) and run.last_step >= _steps(run):
        return "finished"
    return "unfilled" if max(run.folder.stopped_files(), default=0) > run.last_step else "unknown"


def _elsewhere(run: RunContents, now: float) -> bool:
    """On another machine: its lock may not be seen from here, so a recent update counts."""
    record = run.status_record or {}
    updated = _time(record, "updated")
    if record.get("host") in (None, os.uname().nodename) or updated is None:
        return False
    return -CLOCKS_APART < now - updated < max(ELSEWHERE, 10 * (pace_of(run) or 0.0))


def _steps(run: RunContents) -> int:
    if run.recipe is not None and not run.supervised:  # a supervised run counts its epochs' steps
        return run.recipe.trainer.steps
    steps = (run.status_record or {}).get("steps")
    return steps if isinstance(steps, int) else 0


def _time(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) and 0 < value < 1e11 else None


def _written(run: RunContents) -> float | None:
    """When metrics.jsonl was written last, for runs that do not say."""
    try:
        return run.folder.metrics.stat().st_mtime
    except OSError:
        return None
