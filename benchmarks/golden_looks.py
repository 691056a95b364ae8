"""What a run looks like: the data of its report, `dapo data` and `dapo check`, without clock values and paths.

``golden_matrix.py`` writes them beside each of its runs, at both revisions, and compares them.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from golden import Difference, Renamed, relative_difference

from dapo.metrics.glossary import lookup

CLOCK = frozenset(
    {"made", "started", "updated", "seconds", "time", "facts", "processes", "version", "folder", "log", "memory_mib"}
)
"""Keys of the report's data that hold times, memory, the machine or the revision."""
DURATION = re.compile(
    r"(?:\d ?|\ba )(?:ms|s|sec|seconds?|min|minutes?|h|hours?|days?)\b"
    r"|\b(?:generating|scoring|learning|evaluating|publishing|saving|waiting|starting)\b.*\d ?%"
    r"|\d ?% (?:generating|scoring|learning|evaluating|publishing|saving|waiting|starting)\b"
)
"""In a part of a sentence that says how long something took."""
BUNDLE = re.compile(r'id="bundle">([^<]*)<')


def looking(folder: Path) -> list[tuple[str, list[str]]]:
    """Return what to run when a run has ended: the file of its output, and the words after `dapo`."""
    run = str(folder / "run")
    return [("report.txt", ["report", run, "-o", str(folder / "report")]), ("data.txt", ["data", run])]


def check_command(words: list[str]) -> list[str]:
    """Return `dapo check` of what `dapo train` or `dapo sft` is asked."""
    verb, recipe, *settings = words
    return ["check", recipe, *settings, "--verbose", *(["--sft"] if verb == "sft" else [])]


def compare_looks(base: Path, here: Path, renamed: Renamed) -> list[Difference]:
    """Return what differs between the looks in two folders, by key or by page and line."""
    sides = [dict(looks(folder)) for folder in (base, here)]
    sides[0] = {renamed.names.get(name, name) or "": values for name, values in sides[0].items()}
    found = []
    for name in sorted(sides[0].keys() | sides[1].keys()):
        if name in renamed.new or not name:
            continue
        absent = ("", "absent")
        pairs = list(zip_longest(*(side.get(name, []) for side in sides), fillvalue=absent))
        unequal = [(ours, theirs) for ours, theirs in pairs if ours[1] != theirs[1]]
        if unequal:
            sizes = [relative_difference(ours[1], theirs[1]) for ours, theirs in unequal]
            largest = max((size for size in sizes if size is not None), default=None)
            (where, ours), (there, theirs) = unequal[0]
            values = [str(value) if value == "absent" else repr(value) for value in (ours, theirs)]
            found.append(Difference(name, len(unequal), len(pairs), largest, where or there, *values))
    return found


def looks(folder: Path) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """Yield the parts of a run's looks by name, each as places and their values."""
    if (page := folder / "report" / "report.html").is_file():
        block = BUNDLE.search(page.read_text())
        if block is None:
            raise SystemExit(f"{page} holds no data; did the id of their block change?")
        bundle = json.loads(gzip.decompress(base64.b64decode(block[1])))
        values: dict[str, list[tuple[str, Any]]] = {}
        for path, value in leaves(bundle):
            name = re.sub(r"\.\d+(?=\.|$)", "", path)
            parts = [line for part in str(value).split("\n") for line in plain(part, folder)]
            texts = [value] if not isinstance(value, str) else parts
            values.setdefault(f"report: {name}", []).extend((path, text) for text in texts)
        yield from values.items()
    for name in ("data.txt", "check.txt"):
        if (text := folder / name).is_file():
            yield f"dapo {name.removesuffix('.txt')}", list(lines(text.read_text(errors="replace"), folder))


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the plain values below ``value`` with their paths, without those that a clock decides."""
    if isinstance(value, Mapping):
        if by_clock(value):
            return
        for key, inner in value.items():
            metric = lookup(key)
            if key not in CLOCK and not (metric is not None and metric.clock):
                yield from leaves(inner, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from leaves(inner, f"{path}.{number}")
    else:
        yield path, value


def by_clock(value: Mapping[str, Any]) -> bool:
    """Return whether a tile, a warning or a chart shows times or memory."""
    keys = [value["key"]] if isinstance(value.get("key"), str) else value.get("keys") or []
    metrics = [lookup(key) for key in keys if isinstance(key, str)]
    return bool(metrics) and all(metric is not None and metric.clock for metric in metrics)


def plain(text: str, folder: Path) -> list[str]:
    """Return the parts of a sentence without the run's folder; parts that name durations become one #."""
    found: list[str] = []
    for part in re.split(r"[;,] ", without_folder(text, folder)):
        shown = "#" if DURATION.search(part) else part.strip()
        if shown != "#" or found[-1:] != ["#"]:
            found.append(shown)
    return found


def without_folder(text: str, folder: Path) -> str:
    return text.replace(str(folder), "FOLDER")


def lines(text: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the lines of a page with their numbers. The column of seconds in a table is left out,
    and so are widths, which follow from it."""
    seconds = False
    for number, line in enumerate(text.splitlines(), start=1):
        seconds = line.rstrip().endswith("seconds") or (seconds and bool(line.strip()))
        shown = re.sub(r"[\d.,]+(\s\s+[a-z])", r"#\1", line) if seconds else line
        for part in plain(" ".join(shown.split()), folder):
            yield f"line {number}", part
