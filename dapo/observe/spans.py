"""RUN/spans.jsonl: when each phase of each step began and ended."""

from __future__ import annotations

import itertools
import json
import resource
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dapo.observe.jsonl import JsonlWriter
from dapo.types.protocols import Span

MOST_LINES = 200
"""Lines of spans.jsonl that one step has at most."""
_LATE_LINES = 10
"""Of these, lines for what a step still does after it was recorded: report, save."""
_MOST_HELD = 10_000
"""Spans kept in memory; a remote engine may answer very often before a step is recorded."""


class SpanLog:
    """RUN/spans.jsonl: collects spans and appends them step by step, at most ``MOST_LINES`` a step.

    A step is recorded before it has quite ended: its ``report`` and ``save`` come with the next ``flush``, under their
    own step.
    """

    def __init__(self, path: Path) -> None:
        self._file = JsonlWriter(path)
        self._spans: list[Span] = []
        self._written: Counter[int] = Counter()  # lines of the steps that may still grow

    def add(self, span: Span) -> None:
        self._spans.append(span)
        if len(self._spans) > _MOST_HELD:
            self._spans = merge_spans(self._spans, _MOST_HELD // 2)

    def flush(self) -> None:
        """Append what was collected; a crash at any instant leaves whole lines and at most one half."""
        spans, self._spans = self._spans, []
        by_step = sorted(spans, key=lambda span: span.step)
        lines = [
            line
            for step, members in itertools.groupby(by_step, key=lambda span: span.step)
            for line in merge_spans(members, self._room(step))
        ]
        self._written.update(line.step for line in lines)
        for step in [step for step in self._written if by_step and step < by_step[-1].step]:
            del self._written[step]
        if lines:
            self._file.append_text("".join(map(_line, lines)))

    def close(self) -> None:
        """Append what is left."""
        self.flush()
        self._file.close()

    def _room(self, step: int) -> int:
        written = self._written[step]
        return min(_LATE_LINES, MOST_LINES - written) if written else MOST_LINES - _LATE_LINES


def merge_spans(spans: Iterable[Span], most: int) -> list[Span]:
    """Spans in order of their starts, neighbours of one step and name merged until there are at most ``most``.

    Every name keeps as many stretches as it can: of each, k neighbours become one, with the least k that is enough. A
    step never loses a name, so it keeps more than ``most`` lines where it has more names.
    """
    by_name: dict[tuple[int, str], list[Span]] = {}
    for span in sorted(spans, key=lambda span: span.start):
        by_name.setdefault((span.step, span.name), []).append(span)
    k = 1
    while sum(-(-len(members) // k) for members in by_name.values()) > max(most, len(by_name)):
        k += 1
    fewer = [merged(members[first : first + k]) for members in by_name.values() for first in range(0, len(members), k)]
    return sorted(fewer, key=lambda span: span.start)


def merged(spans: list[Span]) -> Span:
    """One span of several in order of their starts, with the first one's step and name; busy seconds are added."""
    if len(spans) == 1:
        return spans[0]
    first = spans[0]
    end = max(span.start + span.seconds for span in spans)
    busy, count = sum(span.busy for span in spans), sum(span.count for span in spans)
    return Span(first.step, first.name, first.start, end - first.start, busy, count)


def _line(span: Span) -> str:
    """JSON, put together by hand since there are a hundred a step; microseconds are enough."""
    return (
        f'{{"step": {span.step}, "name": {json.dumps(span.name)}, "start": {span.start:.6f}, '
        f'"seconds": {span.seconds:.6f}, "busy": {span.busy:.6f}, "count": {span.count}}}\n'
    )


def peak_rss_mib() -> float:
    """Return the largest resident memory of this process so far, in MiB.

    On Linux ``ru_maxrss`` begins with the peak of whatever started this process, so the kernel's other count is read.
    """
    with suppress(OSError, StopIteration):
        lines = Path("/proc/self/status").read_text().splitlines()
        return int(next(line for line in lines if line.startswith("VmHWM:")).split()[1]) / 2**10  # KiB
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10  # bytes there, KiB elsewhere
