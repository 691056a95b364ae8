"""How a run ended, or how far it is, in sentences: from its status, its evidence and its metrics.

The list, the page, the terminal and the Python side all show these sentences. ``ended_said`` says what happened, and
``next_said`` what to do about it.
"""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple

from dapo.observe.notices import early_said, time_said
from dapo.observe.status import read_evidence
from dapo.observe.stopped import PARTIAL, cause_said, go_on_said, met_said, resume_said
from dapo.observe.text import clean, number
from dapo.processes.watch import lost_said
from dapo.report.page_data import State
from dapo.report.reader import RunContents
from dapo.report.words import brief, first_sentence, seconds_said, sentence
from dapo.types.evidence import ClusterLost, DataEnded, Evidence, NoGain, OutOfTime, StopEvidence
from dapo.words import counted

STILL = 60.0
"""Seconds without an update from which a sentence says so, if they are also ten times those of a step."""
LONGEST = 400  # characters of an error's message in a sentence


def ended_said(run: RunContents, state: State, steps: int) -> str:
    """Return how a run ended, or that it goes on; "" for a run that is at its end.

    Args:
        run: as read.
        state: of the run.
        steps: that it wants; 0 where that is not known.
    """
    step, of = run.last_step, f" of {steps}" if steps else ""
    where = "after its last step" if 0 < steps <= step else f"in step {step + 1}{of}"
    done = f"{step} of {counted(steps, 'step')}" if of else counted(step, "step")
    if state == "unfilled":
        met, _, _ = unfilled_said(run)
        return f"The run stopped because step {step + 1}{of} could not fill its batch. {met}".strip()
    if state == "failed":
        error = brief(first_sentence(clean(last_words(run), newlines=False)), LONGEST).rstrip(".")
        return f"The run ended with an error {where}: {error or 'it does not say which'}."
    if state == "killed":
        return f"The run was killed {where}: its process was gone without a word."
    if state == "interrupted":
        cause = cause_of(run)
        return f"The run was stopped {'by hand' if cause is None else cause.by} after {done}."
    if state == "unknown":
        return f"The run has {done} and does not say what ended it."
    if state == "running":
        return (
            f"The run is going on: {done} {'is' if step == 1 else 'are'} done." if run.rows else "The run is starting."
        )
    if step < steps:
        return f"The run ended after {done}: {early_of(run) or 'there was no further data'}."
    return ""


def next_said(run: RunContents, state: State, steps: int, silent: float | None) -> str:
    """Return what more is known of a run and what to do next, a command as it can be typed where there is one.

    Args:
        run: as read.
        state: of the run.
        steps: that it wants.
        silent: seconds since its last update.
    """
    go_on = f"`{_resume(run)}` goes on from {_checkpoint(run)}."
    if state == "finished":
        folder = shlex.quote(clean(str(run.folder.path), newlines=False))
        return f"Next: `dapo evaluate {folder} --samples 16`, or `dapo export {folder} MODEL_FOLDER`."
    if state == "running":
        return _running(run, steps - run.last_step, silent)
    if state == "interrupted":
        stopped = cause_of(run)
        how = sentence(brief(last_words(run), LONGEST)) if stopped is None else stopped.said
        return f"{how} {go_on}".strip()
    if state == "unfilled":
        _, cause, _ = unfilled_said(run)
        because = first_sentence(cause) or "What was judged is in stopped/*.parquet."
        return f"{because} {_refill(run)}"
    if state == "failed":
        whole = clean(last_words(run), newlines=False).strip()
        more = brief(whole[len(first_sentence(whole)) :].strip(". "), LONGEST)
        return f"{sentence(more)} Once that is fixed, {go_on}".strip()
    if state == "killed":
        return (
            f"It ran out of memory, or the machine went down (`dmesg` names a process that ran out of memory). {go_on}"
        )
    return go_on


def _running(run: RunContents, left: int, silent: float | None) -> str:
    pace, said = pace_of(run), []
    if not run.rows:
        said.append("It is loading its model, or evaluates it before the first step.")
    elif pace is not None and left > 0:
        said.append(f"A step takes {number(pace)} s: about {seconds_said(pace * left)} left.")
    if doing := str((run.status_record or {}).get("doing") or ""):
        said.append(f"Now: {brief(clean(doing, newlines=False), LONGEST)}.")
    if silent is not None and silent >= STILL and silent >= 10 * (pace or 0.0):
        said.append(f"Its last update was {seconds_said(silent)} ago.")
    return " ".join([*said, "Ctrl-C in its terminal saves and stops it."])


def last_words(run: RunContents) -> str:
    """Return what ended the run, as it said itself; "" where it did not. Untrusted: it may quote a response."""
    return clean(here_said(run, _raw_words(run))).strip()


def evidence_of(run: RunContents) -> StopEvidence | None:
    """Return why its batch did not fill, as data; None if it did, or if the run did not record it."""
    found = _evidence(run)
    return found if isinstance(found, StopEvidence) else None


def early_of(run: RunContents) -> str:
    """Return why it was at its end before its last step; "" where it does not say. Untrusted, and made harmless."""
    found = _evidence(run)
    return clean(early_said(found), newlines=False) if isinstance(found, DataEnded | NoGain) else last_words(run)


class StopReason(NamedTuple):
    """Why a run stopped without a request."""

    title: str  # of how it stands
    by: str  # behind "was stopped"
    said: str  # a sentence


def cause_of(run: RunContents) -> StopReason | None:
    """Return what stopped it, saved; None of a run that was stopped by hand, or not at all."""
    found = _evidence(run)
    if isinstance(found, OutOfTime):
        return StopReason("out of time", "by its limit of time", f"{time_said(found)}.")
    if isinstance(found, ClusterLost):
        said = sentence(clean(lost_said(found), newlines=False))
        return StopReason("lost its cluster", "as its cluster was lost", said)
    return None


def unfilled_said(run: RunContents) -> tuple[str, str, str]:
    """Return what was met, the likely cause and how to go on, of a run that could not fill its batch.

    A part that is not known is "". Of a run without evidence, what it said as a whole stands for the first.
    """
    evidence = evidence_of(run)
    if evidence is None:
        return sentence(brief(last_words(run), LONGEST)), "", ""
    met = met_said(evidence)
    if evidence.met == "cap.groups" and evidence.shares.judged > (evidence.limit or 0.0) * evidence.wanted:
        met += f"; {evidence.shares.judged} were judged, since some had been sent out in earlier steps"
    files = clean(f"{run.folder.stopped}/*.parquet", newlines=False)
    return sentence(met), cause_said(evidence, f"its rollouts ({files})"), go_on_said(evidence, run.folder.path)


def _resume(run: RunContents, change: str = "") -> str:
    return resume_said(run.folder.path, change, supervised=run.supervised)


def export_command(run: RunContents, step: int) -> str:
    """Return ``dapo export`` of a checkpoint, as it can be typed."""
    return f"dapo export {shlex.quote(clean(str(run.folder.path), newlines=False))} MODEL_FOLDER --step {step}"


def checkpoint_steps(run: RunContents) -> list[int]:
    """Return the steps of the checkpoints that are kept, in order."""
    try:
        names = [path.name for path in run.folder.checkpoints.iterdir()]
    except OSError:
        names = []
    return sorted(int(match[1]) for name in names if (match := re.fullmatch(r"step_(\d+)", name)))


def _refill(run: RunContents) -> str:
    """Return how to go on after a batch that could not be filled: a command as it can be typed, where there is one."""
    evidence = evidence_of(run)
    if evidence is not None and evidence.kept:
        said = f"`{_resume(run, PARTIAL)}` trains on the groups that there are."
    else:
        said = f"`{_resume(run, 'KEY=VALUE')}` goes on with changed settings."
    return f"{said} Other problems or another rollout.group_size need a new run."


def _checkpoint(run: RunContents) -> str:
    """Return where a resume begins."""
    steps = checkpoint_steps(run)
    return f"its checkpoint of step {steps[-1]}" if steps else "its beginning: there is no checkpoint yet"


def pace_of(run: RunContents) -> float | None:
    """Return the seconds of a step, mean of the last ten."""
    seconds = [row["time/step"] for row in run.rows[-10:] if row.get("time/step") is not None and row["step"]]
    return sum(seconds) / len(seconds) if seconds else None


def here_said(run: RunContents, text: str) -> str:
    """Return text that names the folder where the run lies now: it may have been copied."""
    before = (run.status_record or {}).get("folder")
    here = clean(str(run.folder.path), newlines=False)
    if not isinstance(before, str) or before in ("", ".", here):
        return text
    for typed in (shlex.quote(before), before):
        text = re.sub(rf"--resume {re.escape(typed)}(?![\w/.-])", lambda _: f"--resume {shlex.quote(here)}", text)
    return re.sub(rf"(?<![\w/.'-]){re.escape(before)}(?![\w.-])", lambda _: here, text)


def _evidence(run: RunContents) -> Evidence | None:
    return read_evidence((run.status_record or {}).get("evidence"))


def _raw_words(run: RunContents) -> str:
    said = (run.status_record or {}).get("said")
    return said if isinstance(said, str) else ""
