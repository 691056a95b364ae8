"""The newest numbers of runs in the text format of Prometheus, which ``dapo view`` serves at ``/metrics``."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dapo.metrics.glossary import placeholders
from dapo.observe.metrics import Row
from dapo.observe.text import utf8
from dapo.report.page_data import ProcessView, RunLine

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
NEWEST = 1000
"""Rows of a run, from its end, in which a number counts as recent: evaluations are rare."""
_OTHER = "dapo_other"


class _Family(NamedTuple):
    """A metric of Prometheus: its help and type, and its samples as labels and value."""

    help: str
    kind: str
    samples: list[tuple[dict[str, str], float]]


def latest_of(rows: Sequence[Row]) -> dict[str, float]:
    """Return the newest value of each metric key of a run."""
    found: dict[str, float] = {}
    for row in rows[-NEWEST:]:
        found |= {key: float(value) for key, value in row.items() if value is not None and key != "step"}
    return found


def exposition(runs: Iterable[tuple[RunLine, Mapping[str, float], Sequence[ProcessView]]]) -> str:
    """Return all metrics of all runs, each with its line of the glossary as help.

    Args:
        runs: each run's line of the list, its newest numbers by metric key, and its processes.
    """
    families: dict[str, _Family] = {}

    def add(name: str, text: str, labels: dict[str, str], value: float | None, kind: str = "gauge") -> None:
        if value is not None:
            families.setdefault(name, _Family(text, kind, [])).samples.append((labels, value))

    for line, numbers, processes in runs:
        run = {"run": line["name"]}
        about = {"state": line["state"], "model": line["model"], "preset": line["preset"]}
        add("dapo_run_info", "What a run is, as labels; the value is always 1.", run | about, 1.0)
        add("dapo_run_running", "1 while the run goes on, 0 after it ended.", run, float(line["state"] == "running"))
        add("dapo_run_step", "Last training step of the run.", run, line["step"])
        add("dapo_run_steps", "Training steps that the recipe wants.", run, line["steps"])
        updated = "Seconds since 1970 at the last update of the run."
        add("dapo_run_updated_timestamp_seconds", updated, run, line["updated"])
        for severity, count in (("bad", line["bad"]), ("warn", line["advice"] - line["bad"])):
            add("dapo_run_warnings", "Warnings that the rules found.", run | {"severity": severity}, count)
        for one in processes:
            about = run | {"process": one["name"], "role": one["role"], "machine": one["machine"]}
            add("dapo_process_alive", "1 if the process was at work at the last step.", about, float(one["alive"]))
            add("dapo_process_restarts", "Restarts of the process in this command.", about, one["restarts"])
            memory = None if one["memory_mib"] is None else one["memory_mib"] * 2**20
            add("dapo_process_resident_memory_bytes", "Memory of the process at the last step.", about, memory)
            add("dapo_process_turn_seconds", "Seconds of the last turn of the process.", about, one["turn_seconds"])
        for key, value in numbers.items():
            known = placeholders(key)
            if known is None:
                add(_OTHER, "Metrics that the glossary of this version does not know.", run | {"key": key}, value)
                continue
            metric, names = known
            kind = "counter" if metric.key.startswith("counters/") else "gauge"
            add(name_of(metric.key), f"{metric.meaning} ({metric.unit})", run | names, value, kind)
    return "".join(_text(name, family) for name, family in families.items())


def name_of(key: str) -> str:
    """Return the metric name of a key of the glossary. What stands for a placeholder is a label."""
    return "dapo_" + re.sub(r"[^a-zA-Z0-9]+", "_", key).strip("_").lower()


def _text(name: str, family: _Family) -> str:
    text = family.help.replace("\\", r"\\").replace("\n", r"\n")
    lines = [f"# HELP {name} {text}", f"# TYPE {name} {family.kind}"]
    for labels, value in family.samples:
        pairs = ",".join(f'{label}="{_escaped(of)}"' for label, of in labels.items())
        lines.append(f"{name}{{{pairs}}} {_number(value)}")
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    """Return a label's value: text of users, in which a backslash, a quote and a line end have a meaning."""
    return utf8(value).replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return ("+Inf" if value > 0 else "-Inf") if math.isinf(value) else repr(float(value))
