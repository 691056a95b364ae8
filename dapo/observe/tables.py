"""Columns of Arrow tables without a Python object for each value, and Parquet files that are whole or absent."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dapo.observe.text import utf8

Write = Callable[[Path, pa.Schema, Iterable[pa.Table]], None]
"""``write_table_file``, or ``TableWriter.write``, which does it a little later."""


def texts(values: Sequence[str | None]) -> pa.Array:
    """Strings; lone surrogates, which no file can hold, become U+FFFD."""
    try:
        return pa.array(values, type=pa.string())
    except UnicodeEncodeError:
        return pa.array([None if value is None else utf8(value) for value in values], type=pa.string())


def repeated(values: Sequence[str | None], sizes: Sequence[int]) -> pa.DictionaryArray:
    """Each text as many times as its size says, stored once each."""
    code_of: dict[str | None, int] = {
        text: n for n, text in enumerate(dict.fromkeys(v for v in values if v is not None))
    }
    codes = np.repeat(np.array([code_of.get(value, -1) for value in values], dtype=np.int32), sizes)
    missing = codes < 0 if None in values else None
    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=missing), texts(list(code_of)))


def offsets_of(rows: Iterable[Sized]) -> NDArray[np.int32]:
    """Return where each row begins when all are laid end to end, and where the last one ends."""
    return np.fromiter(itertools.accumulate(map(len, rows), initial=0), dtype=np.int32)


def ragged(
    arrays: Sequence[NDArray[Any] | None], of: pa.DataType, offsets: NDArray[np.int32] | None = None
) -> pa.ListArray:
    """Return a list column from numpy rows; None makes a null. ``offsets``: those of the rows, if known."""
    rows = [array for array in arrays if array is not None]
    values: NDArray[Any] = np.concatenate(rows) if rows else np.empty(0, np.int8)
    values = values.astype(of.to_pandas_dtype(), copy=False)
    missing = np.array([array is None for array in arrays], dtype=np.bool_) if len(rows) < len(arrays) else None
    if offsets is None:
        offsets = offsets_of(() if array is None else array for array in arrays)
    return lists(offsets, pa.array(values, type=of), missing)


def lists(offsets: NDArray[np.int32], values: pa.Array, missing: NDArray[np.bool_] | None = None) -> pa.ListArray:
    """Return lists cut from ``values`` at ``offsets``; null where ``missing``."""
    mask = None if missing is None else pa.array(missing)
    return pa.ListArray.from_arrays(pa.array(offsets), values, mask=mask)


def named_values(rows: Sequence[Mapping[str, float]]) -> pa.MapArray:
    """Return a map column from numbers by name."""
    names = texts([name for row in rows for name in row])
    values = pa.array([value for row in rows for value in row.values()], type=pa.float64())
    return pa.MapArray.from_arrays(pa.array(offsets_of(rows)), names, values)


def table_of(schema: pa.Schema, columns: Mapping[str, Any]) -> pa.Table:
    """Return a table of columns by name: arrays, or values of the type that the schema says."""
    arrays = [
        column if isinstance(column := columns[field.name], pa.Array) else pa.array(column, type=field.type)
        for field in schema
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


class TableWriter:
    """Writes table files in a thread. Most of that is outside Python's lock, so training goes on meanwhile."""

    _MOST_TABLES = 8
    """A file of more is written at once: that step takes long anyway, and its tables would fill memory."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tables")
        self._waiting: list[tuple[Path, pa.Schema, list[pa.Table]]] = []
        self._writing: list[Future[None]] = []

    def write(self, path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
        """Take the tables now; they are written when ``start`` is called. See ``write_table_file``."""
        tables = iter(tables)
        first = list(itertools.islice(tables, self._MOST_TABLES))
        if len(first) < self._MOST_TABLES:
            self._waiting.append((path, schema, first))
        else:
            self.sync()
            write_table_file(path, schema, itertools.chain(first, tables))

    def start(self) -> None:
        """Write what was taken, once the files before it are there; goes on without waiting for these.

        Raises:
            OSError: an earlier file could not be written.
        """
        self._join()
        self._writing = [self._thread.submit(write_table_file, *file) for file in self._waiting]
        self._waiting = []

    def sync(self) -> None:
        """Until every file is there.

        Raises:
            OSError: one could not be written.
        """
        self.start()
        self._join()

    def close(self) -> None:
        """``sync``, and end the thread."""
        try:
            self.sync()
        finally:
            self._thread.shutdown()

    def _join(self) -> None:
        writing, self._writing = self._writing, []
        for file in writing:
            file.result()


def write_table_file(path: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
    """Write a Parquet file (zstd), one row group for each table. A crash at any instant leaves no half file at
    ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    # Dictionaries and statistics of every column would cost more time than the compression does.
    encoded = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    counted = [field.name for field in schema if pa.types.is_integer(field.type)]
    with (
        pa.OSFile(str(temporary), "wb") as file,
        pq.ParquetWriter(
            file, schema, compression="zstd", use_dictionary=encoded or False, write_statistics=counted or False
        ) as writer,
    ):
        for table in tables:
            writer.write_table(table)
    os.replace(temporary, path)
