"""How a run stands, or how it ended: from status.json, its lock and its metrics."""

from __future__ import annotations

import math
import os
import re
import shlex
import time
from typing import Any, NamedTuple, get_args

from dapo.observe.notices import early_said, time_said
from dapo.observe.status import read_evidence
from dapo.observe.stopped import PARTIAL, cause_said, go_on_said, met_said
from dapo.observe.text import clean, number
from dapo.processes.watch import lost_said
from dapo.report.page_data import State, Status
from dapo.report.reader import Run
from dapo.report.words import brief, first_sentence, seconds_said, sentence
from dapo.types.evidence import ClusterLost, DataEnded, Evidence, NoGain, OutOfTime, StopEvidence
from dapo.words import counted

ELSEWHERE = 600.0
"""Seconds after the last sign of life for which a run on another machine, whose lock cannot be seen here, counts as
running; or ten times a step's seconds, where that is longer."""
CLOCKS_APART = 60.0
"""Seconds by which the other machine's clock may be ahead."""
STILL = 60.0
"""Seconds without a sign of life from which that is told, where it is also ten times a step's."""
LOG_LINES = 20
LONGEST = 500  # characters of an error's message in a sentence
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


def status_of(run: Run, now: float | None = None) -> Status:
    """The state of a run, in words that end with what to type next.

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
    title = _TITLES[state]
    if state == "running" and not run.rows:
        title = "starting"
    if state == "interrupted" and (cause := cause_of(run)) is not None:
        title = cause.title
    return Status(
        state=state,
        title=title,
        said=_said(run, state, step, steps, None if updated is None else now - updated),
        step=step,
        steps=steps,
        started=started,
        updated=updated,
        seconds=_seconds(run),
        log=[] if state in _WELL else [_here(run, line) for line in run.log_tail[-LOG_LINES:]],
    )


def last_words(run: Run) -> str:
    """What ended the run, as it said itself; "" where it did not. Untrusted: it may quote a response."""
    return clean(_here(run, _raw_words(run))).strip()


def evidence_of(run: Run) -> StopEvidence | None:
    """Why its batch did not fill, as data; None where it did, or where the run was made before that was recorded."""
    found = _evidence(run)
    return found if isinstance(found, StopEvidence) else None


def early_of(run: Run) -> str:
    """Why it was at its end before its last step; "" where it does not say. Untrusted, and made harmless."""
    found = _evidence(run)
    return clean(early_said(found), newlines=False) if isinstance(found, DataEnded | NoGain) else last_words(run)


class Cause(NamedTuple):
    """Why a run was stopped that nobody asked to stop."""

    title: str  # of how it stands
    by: str  # behind "was stopped"
    said: str  # a sentence


def cause_of(run: Run) -> Cause | None:
    """What stopped it, saved; None of a run that was stopped by hand, or not at all."""
    found = _evidence(run)
    if isinstance(found, OutOfTime):
        return Cause("out of time", "by its limit of time", f"{time_said(found)}.")
    if isinstance(found, ClusterLost):
        said = sentence(clean(lost_said(found), newlines=False))
        return Cause("lost its cluster", "as its cluster was lost", said)
    return None


def unfilled_said(run: Run) -> tuple[str, str, str]:
    """What was met, the likely cause and how to go on, of a run that could not fill its batch.

    A part that is not known is "". Of a run without evidence, what it said as a whole stands for the first.
    """
    evidence = evidence_of(run)
    if evidence is None:
        return sentence(brief(last_words(run), LONGEST)), "", ""
    met = met_said(evidence)
    if evidence.met == "max_groups" and evidence.shares.judged > (evidence.limit or 0.0) * evidence.wanted:
        met += f"; {evidence.shares.judged} were judged, since some had been sent out in earlier steps"
    files = clean(f"{run.folder.stopped}/*.parquet", newlines=False)
    return sentence(met), cause_said(evidence, f"its rollouts ({files})"), go_on_said(evidence, run.folder.path)


def resume_command(run: Run) -> str:
    """``dapo train --resume RUN`` (of a supervised run ``dapo sft``), as it can be typed."""
    command = "sft" if run.supervised else "train"
    return f"dapo {command} --resume {shlex.quote(clean(str(run.folder.path), newlines=False))}"


def checkpoint_steps(run: Run) -> list[int]:
    """Steps of the checkpoints that are kept, in order."""
    try:
        names = [path.name for path in run.folder.checkpoints.iterdir()]
    except OSError:
        names = []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step_(\d+)", name)))


def _evidence(run: Run) -> Evidence | None:
    return read_evidence((run.status_record or {}).get("evidence"))


def _raw_words(run: Run) -> str:
    said = (run.status_record or {}).get("said")
    return said if isinstance(said, str) else ""


def _here(run: Run, text: str) -> str:
    """Text in which the folder that the run was made in is the one where it lies now: it may have been copied."""
    before = (run.status_record or {}).get("folder")
    here = clean(str(run.folder.path), newlines=False)
    if not isinstance(before, str) or before in ("", ".", here):
        return text
    for typed in (shlex.quote(before), before):
        text = re.sub(rf"--resume {re.escape(typed)}(?![\w/.-])", lambda _: f"--resume {shlex.quote(here)}", text)
    return re.sub(rf"(?<![\w/.'-]){re.escape(before)}(?![\w.-])", lambda _: here, text)


def _seconds(run: Run) -> float | None:
    found = [row["time/step"] for row in run.rows if row.get("time/step") is not None]
    whole = sum(found)
    return float(whole) if found and math.isfinite(whole) else None


def export_command(run: Run, step: int) -> str:
    """``dapo export`` of a checkpoint, as it can be typed."""
    return f"dapo export {shlex.quote(clean(str(run.folder.path), newlines=False))} MODEL_FOLDER --step {step}"


def _state(run: Run, now: float) -> State:
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


def _elsewhere(run: Run, now: float) -> bool:
    """On another machine: its lock may not be seen from here, so a recent sign of life counts."""
    record = run.status_record or {}
    updated = _time(record, "updated")
    if record.get("host") in (None, os.uname().nodename) or updated is None:
        return False
    return -CLOCKS_APART < now - updated < max(ELSEWHERE, 10 * (_pace(run) or 0.0))


def _steps(run: Run) -> int:
    if run.recipe is not None and not run.supervised:  # a supervised run counts its epochs' steps
        return run.recipe.trainer.steps
    steps = (run.status_record or {}).get("steps")
    return steps if isinstance(steps, int) else 0


def _said(run: Run, state: State, step: int, steps: int, silent: float | None) -> str:
    many = f"{step} of {counted(steps, 'step')}" if steps else counted(step, "step")
    done = f"{many} {'is' if step == 1 else 'are'} done"
    folder = shlex.quote(clean(str(run.folder.path), newlines=False))
    go_on = f"`{resume_command(run)}` goes on from {_checkpoint(run)}."
    if state == "finished":
        why = early_of(run) or "the data ended before"
        whole = "The only step is done." if steps == 1 else f"All {counted(steps, 'step')} are done."
        end = whole if step >= steps else f"{done}: {sentence(why)}"
        return f"{end} Next: `dapo evaluate {folder} --samples 16`, or `dapo export {folder} MODEL_FOLDER`."
    if state == "running":
        return _running(run, done, steps - step, silent)
    if state == "interrupted":
        stopped = cause_of(run)
        how = sentence(brief(last_words(run), LONGEST)) if stopped is None else stopped.said
        return f"{done}. {how or 'Stopped by Ctrl-C, and saved.'} {go_on}"
    if state == "unfilled":
        met, cause, _ = unfilled_said(run)
        if not met:
            met = f"Step {step + 1} did not get enough groups with both right and wrong responses."
        because = first_sentence(cause) or "What was judged stands in stopped/*.parquet."
        return f"{met} {because} {_refill(run)}"
    if state == "failed":
        error = sentence(brief(clean(last_words(run), newlines=False), LONGEST)) or "It does not say which."
        where = "after its last step" if 0 < steps <= step else f"in step {step + 1}{f' of {steps}' if steps else ''}"
        return f"An error ended it {where}: {error} Once that is mended, {go_on}"
    if state == "killed":
        return (
            f"The process was gone after {many}, without a word: killed, out of memory, or the machine went down "
            f"(`dmesg` names a process that ran out of memory). {go_on}"
        )
    return f"It has {many}, and does not say what ended it. {go_on}"


def _refill(run: Run) -> str:
    """How to go on after a batch that could not be filled: a command as it can be typed, where there is one."""
    evidence = evidence_of(run)
    if evidence is not None and evidence.kept:
        said = f"`{resume_command(run)} {PARTIAL}` trains on the groups that there are."
    else:
        said = f"`{resume_command(run)} KEY=VALUE` goes on with changed settings."
    return f"{said} Other problems or another rollout.group_size need a new run."


def _running(run: Run, done: str, left: int, silent: float | None) -> str:
    pace = _pace(run)
    if not run.rows:
        said = "It is loading its model, or evaluates it before the first step."
    else:
        said = done
        said += (
            f", {number(pace)} s each: about {seconds_said(pace * left)} left."
            if pace is not None and left > 0
            else "."
        )
    doing = str((run.status_record or {}).get("doing") or "")
    if doing:
        said += f" Now: {brief(clean(doing, newlines=False), LONGEST)}."
    if silent is not None and silent >= STILL and silent >= 10 * (pace or 0.0):
        said += f" Its last sign of life was {seconds_said(silent)} ago."
    return f"{said} Ctrl-C in its terminal saves and stops it."


def _pace(run: Run) -> float | None:
    """Seconds of a step, mean of the last ten."""
    seconds = [row["time/step"] for row in run.rows[-10:] if row.get("time/step") is not None and row["step"]]
    return sum(seconds) / len(seconds) if seconds else None


def _checkpoint(run: Run) -> str:
    """Where a resume begins."""
    steps = checkpoint_steps(run)
    return f"its checkpoint of step {steps[-1]}" if steps else "its beginning: there is no checkpoint yet"


def _time(record: dict[str, Any], key: str) -> float | None:
    value = record.get(key)
    return float(value) if isinstance(value, int | float) and 0 < value < 1e11 else None


def _written(run: Run) -> float | None:
    """When metrics.jsonl was written last, for runs that do not say."""
    try:
        return run.folder.metrics.stat().st_mtime
    except OSError:
        return None
