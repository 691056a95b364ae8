"""A run's training problems by the ids of their prompts: prompts.parquet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

import pyarrow as pa

from dapo.errors import DataError
from dapo.observe.parquet import open_parquet
from dapo.observe.prompts import read_problems
from dapo.observe.run_files import check_regular
from dapo.report.reader import RunContents


def problems_of(run: RunContents) -> Mapping[str, tuple[str, str, str]]:
    """Id -> problem as the data has it, answer and source; {} where the file is missing or damaged."""
    path = run.folder.prompts
    try:
        check_regular(path, run.within)
        stat = path.stat()
        return _problems(path, stat.st_mtime_ns, stat.st_size)
    except (OSError, DataError):
        return {}


def count_prompts(run: RunContents) -> int:
    """Return the number of training prompts, as the file says; 0 where it is missing or damaged."""
    try:
        with open_parquet(run.folder.prompts, run.within) as source:
            return sum(source.counts)
    except (OSError, pa.ArrowException):
        return 0


@lru_cache(maxsize=8)
def _problems(path: Path, changed: int, size: int) -> dict[str, tuple[str, str, str]]:
    return read_problems(path)
