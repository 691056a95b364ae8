"""Problems of the section ``slurm``: values that would break the script, and times that cannot be kept."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dapo.config.faults import Broken
from dapo.config.schema import Recipe

_TIME = re.compile(r"(?:(?P<days>\d+)-)?(?P<a>\d+)(?::(?P<b>\d+))?(?::(?P<c>\d+))?")
_PLAIN = re.compile(r" *[\w@%+=:,./-][\w@%+=:,./#^~-]*( +[\w@%+=:,./-][\w@%+=:,./#^~-]*)* *")
"""Words that no shell reads as anything else: ``#`` and ``~`` mean something at the beginning of a word."""
_OPTION = re.compile(r"[a-z][a-z-]+")
_OURS = {
    "nodes": "slurm.nodes",
    "signal": "slurm.signal_seconds",
    "requeue": "slurm.requeue",
    "no-requeue": "slurm.requeue",
    "job-name": "run.name",
    "ntasks": None,
    "ntasks-per-node": None,
    "output": None,
    "error": None,
    "open-mode": None,
    "chdir": None,
    "array": None,
}
"""Options that the script has itself, and the setting that decides each; None: the script needs its own value."""


def gpus_per_option(options: Mapping[str, Any]) -> int:
    """Return the number in the option ``gpus-per-node``, such as 8 in ``h100:8``; 0: none is asked for."""
    number = str(options.get("gpus-per-node", "")).rpartition(":")[2]
    return int(number) if number.isdecimal() else 0


def time_limit(text: str) -> int | None:
    """Seconds of a limit as sbatch reads it, None for a text that it would not read.

    ``M``, ``M:S``, ``H:M:S``, ``D-H``, ``D-H:M`` and ``D-H:M:S``.
    """
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    a, b, c = (int(found[key] or 0) for key in "abc")
    if found["days"] is not None:
        return int(found["days"]) * 86_400 + a * 3600 + b * 60 + c
    return a * 3600 + b * 60 + c if found["c"] is not None else a * 60 + b


def check_slurm(r: Recipe) -> Broken:
    """Yield settings that no job script could hold."""
    slurm = r.slurm
    if slurm.container is not None and not _PLAIN.fullmatch(slurm.container):
        said = "expected a command of plain words on one line, such as apptainer exec --nv /images/dapo.sif"
        move = "the job splits it at spaces and reads no lists, quotes, variables or patterns; put these into a script"
        yield "slurm.container", f"{said}: {move}"
    for n, line in enumerate(slurm.setup):
        if "\n" in line or "\r" in line:
            yield f"slurm.setup.{n}", "is one line of shell; give further lines as further items"
    for name, value in slurm.options.items():
        yield from _check_option(name, value)
    if "time" not in slurm.options:
        return
    seconds = time_limit(str(slurm.options["time"]))
    if not seconds:
        forms = "expected MINUTES, HH:MM:SS, D-HH or D-HH:MM:SS, more than 0; in YAML in quotes"
        yield "slurm.options.time", forms
    elif seconds <= slurm.signal_seconds:
        move = f"the job would be asked to save {slurm.signal_seconds} s before its end, and has {seconds} s in all"
        yield "slurm.signal_seconds", f"{move}; give it more slurm.options.time, or set this lower"


def _check_option(name: str, value: str | int | bool) -> Broken:
    path = f"slurm.options.{name}"
    if not _OPTION.fullmatch(name):
        long = name.lstrip("-").partition("=")[0].replace("_", "-")
        hint = f"; did you mean `{long}`?" if _OPTION.fullmatch(long) and long != name else ""
        yield path, f"expected the long name of an option of sbatch, such as mem or gpus-per-node{hint}"
    elif name in _OURS:
        setting = _OURS[name]
        yield path, f"is {setting}; set that" if setting else "the script sets it itself; take it out"
    elif value is False or (isinstance(value, str) and not (value.strip() and value.isprintable())):
        yield path, "expected true, a number, or text on one line; leave out what is not asked for"
