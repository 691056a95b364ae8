"""Which groups a run's rollout files hold, without their texts: a few numbers a group, kept in memory by file.

A file is read again only when its time or size changed, so a server can ask at every click. Files that cannot be read
are reported, not raised. Every function may be called from several threads.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from stat import S_ISREG
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dapo.errors import DataError
from dapo.observe.parquet import ParquetSource, TooLarge, open_parquet
from dapo.observe.run_folder import step_files
from dapo.report.reader import RunContents
from dapo.report.recent import Recent
from dapo.types.batch import IntArray
from dapo.types.enums import FinishReason

Stamp = tuple[int, int]
"""Time of the last change in nanoseconds, and size."""

_COLUMNS = ("group", "sample", "prompt_id", "source", "verdict", "disposition", "finish", "accuracy", "length")
_MOST_FILES, _MOST_RUNS = 100_000, 16  # kept in memory: about 5 KB a file of 32 groups
THREADS = min(4, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class Summary:
    """The groups of one file, in its order. Lists and arrays are [groups]."""

    step: int
    path: Path
    first: IntArray  # row of the group's first response
    size: IntArray  # responses
    group: IntArray  # id
    prompt_id: list[str]
    source: list[str]
    verdict: list[str | None]
    disposition: list[str | None]
    correct: IntArray
    scored: IntArray
    truncated: IntArray
    length_mean: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.group)

    def find(self, group: int) -> int | None:
        """Return the place of a group by its id."""
        found = np.flatnonzero(self.group == group)
        return int(found[0]) if len(found) else None


@dataclass(frozen=True)
class Index:
    """All groups of a run."""

    summaries: list[Summary]  # in order of steps
    problems: list[str] = field(default_factory=list)  # files that could not be read

    @cached_property
    def by_prompt(self) -> dict[str, list[tuple[int, int]]]:
        """Prompt -> (place in ``summaries``, place in the summary) of each of its groups, in order of steps."""
        found: dict[str, list[tuple[int, int]]] = {}
        for s, summary in enumerate(self.summaries):
            for g, name in enumerate(summary.prompt_id):
                found.setdefault(name, []).append((s, g))
        return found

    @property
    def groups(self) -> int:
        return sum(map(len, self.summaries))


_files: Recent[tuple[Path, float], tuple[Stamp, Summary | str]] = Recent(_MOST_FILES)
_runs: Recent[tuple[Path, float], tuple[tuple[tuple[int, Stamp], ...], Index]] = Recent(_MOST_RUNS)


def files_of(run: RunContents) -> dict[int, tuple[Path, Stamp]]:
    """Step -> its rollout file, in order of steps. The file of a stopped step counts until the step was done."""
    found: dict[int, tuple[Path, Stamp]] = {}
    for step, path in (step_files(run.folder.stopped) | step_files(run.folder.rollouts)).items():
        try:
            stat = path.stat()
        except OSError:  # removed just now, by a resume
            continue
        if S_ISREG(stat.st_mode):
            found[step] = (path, (stat.st_mtime_ns, stat.st_size))
    return dict(sorted(found.items()))


def index_of(run: RunContents) -> Index:
    """Every group of a run. The first call reads a few columns of all files, later ones what changed."""
    files, correct_at = files_of(run), correct_at_of(run)
    key, state = (run.folder.rollouts, correct_at), tuple((step, stamp) for step, (_, stamp) in files.items())
    known = _runs.get(key)
    if known and known[0] == state:
        return known[1]
    found = {path: _cached(path, correct_at, stamp) for path, stamp in files.values()}
    missing = [(step, path, stamp) for step, (path, stamp) in files.items() if found[path] is None]
    if missing:
        with ThreadPoolExecutor(THREADS) as pool:
            results = pool.map(lambda job: _read_summary(run, job[0], job[1], correct_at), missing)
            for (_, path, stamp), result in zip(missing, results, strict=True):
                found[path] = _files.keep((path, correct_at), (stamp, result))[1]
    parts = found.values()
    index = Index([p for p in parts if isinstance(p, Summary)], [p for p in parts if isinstance(p, str)])
    return _runs.keep(key, (state, index))[1]


def correct_at_of(run: RunContents) -> float:
    """Return the accuracy from which a response is correct."""
    return run.recipe.algorithm.dynamic_sampling.correct_at if run.recipe else 1.0


@contextmanager
def opened(run: RunContents, step: int) -> Iterator[tuple[ParquetSource, Summary]]:
    """Yield a step's file and its summary; both are of one moment, even if the file is replaced meanwhile.

    Raises:
        DataError: no rollouts of that step, or a damaged file.
    """
    named = run.folder.rollout_file(step), run.folder.stopped_file(step)
    path = next((p for p in named if p.is_file()), None)
    if path is None:
        raise DataError(f"no rollouts of step {step} in {run.folder.rollouts}. ")
    with reading(path), open_parquet(path, run.within) as source:
        correct_at, stamp = correct_at_of(run), source.stamp
        summary = _cached(path, correct_at, stamp)
        if not isinstance(summary, Summary):
            summary = _summarise(source, step, path, correct_at)
            _files.keep((path, correct_at), (stamp, summary))
        yield source, summary


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn what may go wrong with a parquet file into one error."""
    try:
        yield
    except TooLarge as error:
        raise DataError(f"{path.name} cannot be read: {error}.") from None
    except DataError:
        raise
    except (pa.ArrowException, OSError, KeyError, ValueError, IndexError, TypeError, OverflowError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"{path.name} cannot be read: {reason}") from None


def read_columns(source: ParquetSource, columns: Sequence[str], groups: Sequence[int] | None = None) -> pa.Table:
    """Columns of some row groups (None: all). A column that the file does not have is all null."""
    have = set(source.names)
    table = source.read([name for name in columns if name in have], groups)
    for name in columns:
        if name not in have:
            table = table.append_column(name, pa.nulls(len(table)))
    return table


def _cached(path: Path, correct_at: float, stamp: Stamp) -> Summary | str | None:
    known = _files.get((path, correct_at))
    return known[1] if known and known[0] == stamp else None


def _read_summary(run: RunContents, step: int, path: Path, correct_at: float) -> Summary | str:
    try:
        with reading(path), open_parquet(path, run.within) as source:
            return _summarise(source, step, path, correct_at)
    except DataError as error:
        return str(error)


def _summarise(source: ParquetSource, step: int, path: Path, correct_at: float) -> Summary:
    if not {"group", "sample"} <= set(source.names):
        raise DataError(f"{path.name} cannot be read: it holds no rollouts, but {', '.join(source.names[:8])}.")
    table = read_columns(source, _COLUMNS)
    rows = len(table)
    groups, samples = whole(table["group"]), whole(table["sample"])
    new = np.ones(rows, np.bool_)
    new[1:] = (groups[1:] != groups[:-1]) | (samples[1:] <= samples[:-1])
    first = np.flatnonzero(new)
    size = np.diff(np.append(first, rows))
    accuracy = numbers(table["accuracy"])
    lengths = np.nan_to_num(numbers(table["length"]))
    cut = np.nan_to_num(numbers(pc.cast(pc.equal(_text(table["finish"]), FinishReason.LENGTH.value), pa.float64())))

    def add(values: Any) -> IntArray:
        return np.add.reduceat(values, first, dtype=np.int64)

    def names(column: str) -> list[Any]:
        return [sys.intern(v) if v else v for v in table[column].take(pa.array(first)).to_pylist()]

    with np.errstate(invalid="ignore"):
        correct, scored = accuracy >= correct_at, ~np.isnan(accuracy)
    return Summary(
        step=step,
        path=path,
        first=first,
        size=size,
        group=groups[first],
        prompt_id=[name or "" for name in names("prompt_id")],
        source=[name or "" for name in names("source")],
        verdict=names("verdict"),
        disposition=names("disposition"),
        correct=add(correct),
        scored=add(scored),
        truncated=add(cut),
        length_mean=np.add.reduceat(lengths, first) / size,
    )


def whole(column: pa.ChunkedArray) -> IntArray:
    """Return a column of whole numbers; -1 where there is none."""
    return np.asarray(pc.fill_null(pc.cast(column, pa.int64()), -1).to_numpy(), np.int64)


def numbers(column: pa.ChunkedArray) -> NDArray[np.float64]:
    """Return a column of numbers; nan where there is none, or where it is not finite."""
    values = np.array(pc.cast(column, pa.float64()).to_numpy(), np.float64)
    values[~np.isfinite(values)] = np.nan
    return values


def _text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.cast(column, pa.string())
