"""Read parquet files that may come from an untrusted archive: a few kilobytes can unpack to gigabytes.

What a file says of itself is looked at first, and what is unpacked is counted as it comes, since a text that stands
there once can be named a million times.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from dapo.errors import DataError
from dapo.observe.run_files import open_regular

FREE = 2**28
"""Bytes that every read may unpack to: the rollouts of 1,000 responses of 20,000 tokens."""
TIMES = 200
"""A larger file may unpack to this many times its size. Text and numbers of runs shrink to a tenth or a fifth."""
MOST = 2**32
"""Bytes that no read may unpack to."""
MOST_ROWS = 5_000_000
ROWS_AT_ONCE = 256


class TooLarge(DataError):
    """A file that unpacks to more than any run writes. The message goes on where a file's name stood."""


@dataclass(frozen=True, slots=True)
class ParquetSource:
    """An open parquet file. Make it with ``open_parquet``."""

    file: pq.ParquetFile
    stamp: tuple[int, int]  # time of the last change in nanoseconds, and bytes of the file

    @property
    def names(self) -> list[str]:
        """Its columns."""
        return list(self.file.schema_arrow.names)

    @property
    def counts(self) -> list[int]:
        """Rows of each row group, as the file says."""
        return [self.file.metadata.row_group(n).num_rows for n in range(self.file.num_row_groups)]

    def read(self, columns: Sequence[str] | None = None, groups: Sequence[int] | None = None) -> pa.Table:
        """Columns (None: all) of some row groups (None: all), as long as they unpack to an ordinary size.

        Raises:
            TooLarge: they unpack to more than FREE bytes and TIMES the file's size, or to more than MOST, or are more
                than MOST_ROWS.
            pa.ArrowException, OSError: the file is damaged.
        """
        chosen = list(range(self.file.num_row_groups)) if groups is None else list(groups)
        wanted = self.names if columns is None else [name for name in self.names if name in set(columns)]
        stored = self.stamp[1]
        most = min(MOST, max(FREE, TIMES * stored))
        rows, told = _told(self.file.metadata, chosen, wanted)
        if rows > MOST_ROWS:
            raise TooLarge(f"it holds {rows:,} rows; at most {MOST_ROWS:,} are read at once")
        size, batches = told, []
        if size <= most:
            size = 0
            for batch in self.file.iter_batches(ROWS_AT_ONCE, row_groups=chosen, columns=wanted, use_threads=False):
                size += batch.nbytes
                if size > most:
                    break
                batches.append(batch)
        if size > most:
            raise TooLarge(f"its {stored:,} bytes unpack to more than {most:,}, which no run writes")
        schema = batches[0].schema if batches else pa.schema([self.file.schema_arrow.field(name) for name in wanted])
        return pa.Table.from_batches(batches, schema=schema)


@contextmanager
def open_parquet(path: Path, within: Path | None = None) -> Iterator[ParquetSource]:
    """Open a parquet file if it is a regular file; ``within``: see ``open_regular``.

    Raises:
        OSError: it cannot be opened.
        pa.ArrowException: it is no parquet file.
    """
    with open_regular(path, within) as raw, pq.ParquetFile(raw) as file:
        stat = os.fstat(raw.fileno())
        yield ParquetSource(file, (stat.st_mtime_ns, stat.st_size))


def read_parquet(path: Path, columns: Sequence[str] | None = None, within: Path | None = None) -> pa.Table:
    """Read a whole file, or some of its columns; raises as ``open_parquet`` and ``ParquetSource.read`` do."""
    with open_parquet(path, within) as source:
        return source.read(columns)


def _told(metadata: pq.FileMetaData, groups: Sequence[int], columns: Sequence[str]) -> tuple[int, int]:
    """Rows, and bytes when unpacked, as the file has it."""
    rows = size = 0
    for n in groups:
        group = metadata.row_group(n)
        rows += group.num_rows
        for c in range(group.num_columns):
            column = group.column(c)
            if column.path_in_schema.split(".")[0] in columns:
                size += max(0, column.total_uncompressed_size)
    return rows, size
