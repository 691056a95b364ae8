"""Why a run stopped, or cannot be judged, in sentences that end with what to do: from evidence and the run's folder."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dapo.config.files import RESOLVED, parse_yaml
from dapo.errors import DapoError
from dapo.observe.files import read_regular
from dapo.observe.jsonl import write_atomically
from dapo.observe.text import clean, percent, shorten
from dapo.observe.why import why
from dapo.types.evidence import (
    FRACTION,
    HEALTHY,
    UNREAD,
    Example,
    Shares,
    SilentEvidence,
    StopEvidence,
    UnscoredEvidence,
)

PARTIAL = "algorithm.dynamic_sampling.cap.then=train_partial"
PROBLEM, ANSWER, RESPONSE = 80, 40, 160
"""Characters of an example that are shown."""
_OWN = "algorithm.dynamic_sampling"
GIVEN = "given.json"
"""In the folder of a run that a Python program started: the parts and arguments that it gave beside the recipe."""
_MOST_BYTES = 64 * 1024  # of that file


def stop_said(evidence: object, run: Path) -> str:
    """Return the message of an error that carries evidence.

    Args:
        evidence: ``StopEvidence``, ``UnscoredEvidence`` or ``SilentEvidence``; anything else is shown as it is.
        run: the folder of the run.
    """
    if isinstance(evidence, StopEvidence):
        return _unfilled(evidence, run)
    if isinstance(evidence, UnscoredEvidence):
        return _unscored(evidence, run)
    return silent_said(evidence) if isinstance(evidence, SilentEvidence) else repr(evidence)


def resume_said(run: Path, change: str = "", program: str = "dapo", supervised: bool | None = None) -> str:
    """Return what continues a run, as it can be typed: a command, or the call of a run that a Python program started.

    Args:
        run: its folder.
        change: a setting to change, as KEY=VALUE.
        program: how dapo is called from a terminal.
        supervised: whether the run is; None: its recipe is read.
    """
    arguments = arguments_given(run)
    if arguments is None:
        command = "sft" if (_is_supervised(run) if supervised is None else supervised) else "train"
        return f"{program} {command} --resume {_typed(run)} {change}".rstrip()
    if change:
        key, _, value = change.partition("=")
        arguments.append(f"**{{{key}: {value}}}" if key == "KEY" else f'**{{"{key}": "{value}"}}')
    folder = json.dumps(clean(str(run), newlines=False), ensure_ascii=False)
    return f"dapo.resume({', '.join([folder, *arguments])})"


def record_given(run: Path, arguments: Sequence[str], parts: dict[str, str]) -> None:
    """Write the arguments that ``dapo.resume`` needs, and the names of parts, to the folder of a new run."""
    write_atomically(run / GIVEN, json.dumps({**parts, "resume": list(arguments)}) + "\n")


def arguments_given(run: Path) -> list[str] | None:
    """Return the arguments that ``dapo.resume`` needs, such as ``rewards=[mine]``; None: no Python program started it.

    A folder may be anyone's, so the texts are made harmless.
    """
    with suppress(OSError, ValueError, RecursionError):
        found = json.loads(read_regular(run / GIVEN, _MOST_BYTES))
        arguments = found.get("resume") if isinstance(found, dict) else None
        if isinstance(arguments, list) and all(isinstance(one, str) for one in arguments):
            return [shorten(clean(one, newlines=False).replace("`", ""), RESPONSE) for one in arguments]
    return None


def _is_supervised(run: Path) -> bool:
    try:
        recipe, _ = parse_yaml((run / RESOLVED).read_text("utf-8"), RESOLVED)
        section = recipe.get("run")
    except (OSError, ValueError, DapoError):  # no run yet, or a damaged one: the command will say so
        return False
    return isinstance(section, dict) and section.get("stage") == "sft"


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
    change = _change(evidence.shares)
    if change:
        return f"{resume}: {change.format(partial=or_partial)}"
    also = f"; {partial}" if partial else ""
    return (
        f"{resume}, with other `rewards` or `{_OWN}` settings: a higher `{_OWN}.cap.groups` searches "
        f"longer{also}. Other problems, another instruction or group size need a new run."
    )


def _change(shares: Shares) -> str:
    """Return the setting to change; "" if there is no single one."""
    if shares.kept >= HEALTHY:
        return f"`{_OWN}.cap.groups=...` or `cap.tokens` (a higher cap){{partial}}."
    if shares.all_wrong > 0.5 and shares.accuracy > FRACTION:
        return f"`{_OWN}.correct_at=...`{{partial}}."
    if shares.all_wrong > 0.5 and shares.answered is not None and shares.answered < UNREAD:
        return "`rewards.0.pattern=...` or another reward. Another instruction needs a new run."
    if shares.truncated > 0.5:
        return "`rollout.max_response_tokens=...` (longer responses){partial}."
    share, change = max(
        (shares.out_of_band, f"`{_OWN}.band=...`"),
        (shares.uniform, f"`{_OWN}.metric=...` or `{_OWN}.tolerance=...`"),
        (shares.too_few_scored, "once the reward function is fixed"),
    )
    return f"{change}{{partial}}." if share > 0.5 else ""


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


def _typed(run: Path) -> str:
    return shlex.quote(clean(str(run), newlines=False))
