"""Spans of a run: spans.jsonl as a file for Perfetto or chrome://tracing, and where the time went for the page.

The trace event format counts in microseconds: https://perfetto.dev/docs/getting-started/other-formats
"""

from __future__ import annotations

import re
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from dapo.metrics.glossary import BESIDE, START
from dapo.observe.metrics import Row, series
from dapo.observe.spans import merged
from dapo.report.page_data import TimeView
from dapo.report.phases import in_order, phases_of_row
from dapo.report.reader import RunContents
from dapo.types.protocols import Span

COUNTERS = {
    "tokens per second": "time/tokens_per_second",
    "acceptance": "sampling/acceptance_rate",
    "held-out accuracy": "validation/accuracy",
}
MOST_SPANS = 200_000
"""Of one run in trace.json (some 30 MB); steps are merged beyond that."""

_SHARE = re.compile(r"policy/staleness_share/([0-9]{1,3})")

Event = dict[str, Any]


def spans_of(run: RunContents) -> tuple[list[Span], str]:
    """Return a run's spans in order of time, and a sentence on their source if they were not recorded.

    A run without spans.jsonl has its phases' seconds in its metrics: they are laid one after another.
    """
    if run.spans:
        return sorted(run.spans, key=lambda span: span.start), ""
    spans: list[Span] = []
    clock = 0.0
    for row in run.rows:
        start = clock
        for name in phases_of_row(row):
            seconds = max(0.0, float(row[f"time/{name}"] or 0.0))
            if seconds:
                spans.append(Span(row["step"], name, clock, seconds, seconds, 1))
            clock += seconds
        clock = max(clock, start + float(row.get("time/step") or 0.0))
    return spans, "This run recorded no spans: each step's phases are laid one after another." if spans else ""


def time_of(run: RunContents) -> TimeView:
    """Return the seconds of each phase, most first, and who worked beside the driver for how much of the time."""
    spans, note = spans_of(run)
    seconds: dict[str, defaultdict[int, float]] = defaultdict(lambda: defaultdict(float))
    for span in spans:
        seconds[span.name][span.step] += span.busy
    whole = max((span.start + span.seconds for span in spans), default=0.0) - (spans[0].start if spans else 0.0)
    beside = (*BESIDE, *(process["name"] for process in run.processes))
    starts = {f"{name} {START}" for name in beside}
    phases = [(name, list(of.values())) for name, of in seconds.items() if name not in starts.union(beside)]
    return {
        "phases": sorted(
            ((name, sum(of), statistics.median(of), max(of)) for name, of in phases), key=lambda phase: -phase[1]
        ),
        "busy": [(name, min(1.0, sum(seconds[name].values()) / (whole or 1.0))) for name in beside if name in seconds],
        "ages": ages_of(run.rows),
        "note": note,
    }


def ages_of(rows: Sequence[Row]) -> list[tuple[int, float]]:
    """Age in versions, and the share of all trained tokens that had it; none where nothing was older than 0."""
    tokens: defaultdict[int, float] = defaultdict(float)
    for row in rows:
        trained = row.get("sampling/trained_tokens") or 0.0
        for key, share in row.items():
            if (found := _SHARE.fullmatch(key)) and share:
                tokens[int(found[1])] += share * trained
    whole = sum(tokens.values())
    if not whole or set(tokens) == {0}:
        return []
    return [(age, round(tokens[age] / whole, 6)) for age in range(max(tokens) + 1)]


def _steps(together: int) -> str:
    return "each step" if together == 1 else f"{together} steps each"


def merge_to(spans: Sequence[Span], limit: int) -> tuple[list[Span], int]:
    """At most ``limit`` spans (but one a phase), and over how many steps they were merged; 0: not at all."""
    if len(spans) <= limit:
        return list(spans), 0
    steps = {step: n for n, step in enumerate(sorted({span.step for span in spans}))}
    together = 1
    while True:
        fewer = _merge(spans, {step: n // together for step, n in steps.items()})
        if len(fewer) <= limit or together >= len(steps):
            return fewer, together
        together = max(together + 1, -(-len(fewer) * together // limit))


def _merge(spans: Sequence[Span], bucket: dict[int, int]) -> list[Span]:
    """One span for each phase and bucket of steps."""
    parts: dict[tuple[str, int], list[Span]] = defaultdict(list)
    for span in sorted(spans, key=lambda span: span.start):
        parts[span.name, bucket[span.step]].append(span)
    fewer = (merged(group) for group in parts.values())
    return sorted((replace(one, busy=min(one.busy, one.seconds)) for one in fewer), key=lambda span: span.start)


def trace_of(runs: Sequence[tuple[str, RunContents]]) -> dict[str, Any]:
    """Return a trace that Perfetto opens: a process for each (label, run), a track for each phase, counters next to
    them.

    Every run starts at 0, so that runs of different days lie below one another.
    """
    events: list[Event] = []
    notes = []
    for pid, (label, run) in enumerate(runs, 1):
        spans, note = spans_of(run)
        spans, together = merge_to(spans, MOST_SPANS)
        if together:
            note = f"Spans of a phase are merged over {_steps(together)}: there were too many for one file."
        notes += [f"{label}: {note}"] * bool(note)
        events += _named("process_name", pid, 0, label)
        origin = spans[0].start if spans else 0.0
        for tid, name in enumerate(in_order(span.name for span in spans), 1):
            events += _named("thread_name", pid, tid, name)
            events.append({"ph": "M", "name": "thread_sort_index", "pid": pid, "tid": tid, "args": {"sort_index": tid}})
            events += _slices([span for span in spans if span.name == name], pid, tid, origin)
        events += _counters(run, spans, pid, origin)
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"made by": "dapo report", "notes": notes}}


def _named(what: str, pid: int, tid: int, name: str) -> list[Event]:
    return [{"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}]


def _slices(spans: Sequence[Span], pid: int, tid: int, origin: float) -> Iterator[Event]:
    """One phase's spans, each cut off where the next begins: Perfetto drops slices that overlap on a track."""
    for n, span in enumerate(spans):
        start = _micro(span.start - origin)
        end = _micro(span.start + span.seconds - origin)
        if n + 1 < len(spans):
            end = min(end, _micro(spans[n + 1].start - origin))
        yield {
            "ph": "X",
            "name": span.name,
            "cat": "dapo",
            "pid": pid,
            "tid": tid,
            "ts": start,
            "dur": max(0, end - start),
            "args": {"step": span.step, "busy seconds": round(span.busy, 6), "stretches": span.count},
        }


def _counters(run: RunContents, spans: Sequence[Span], pid: int, origin: float) -> Iterator[Event]:
    """Metrics at the end of their steps, where the time of that is known."""
    ends: dict[int, float] = {}
    for span in spans:
        ends[span.step] = max(ends.get(span.step, 0.0), span.start + span.seconds)
    for name, key in COUNTERS.items():
        for step, value in zip(*series(run.rows, key), strict=True):
            if step in ends:
                yield {"ph": "C", "name": name, "pid": pid, "ts": _micro(ends[step] - origin), "args": {name: value}}


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)
