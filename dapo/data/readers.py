"""Read records from JSONL, JSON, CSV, Parquet and Arrow files, folders of them, and hub data sets.

Every reader yields ``(where, record)``: a phrase for error messages ("data.jsonl, line 7") and a dict.
"""

from __future__ import annotations

import csv
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dapo.data.folders import files_of
from dapo.data.hub_sets import HUB_PREFIX, read_hub
from dapo.errors import DataError

Record = dict[str, Any]
Located = tuple[str, Record]

_SHOWN = 80  # characters of an offending line that an error quotes
_LONGEST_FIELD = 1 << 28  # characters of one CSV field; the library's own limit is 131,072


def read_records(path: str, split: str = "train") -> Iterator[Located]:
    """Yield the records of a source.

    Args:
        path: a file, whose suffix says how it is read; a folder or a pattern (``data/*.jsonl``), see
            ``dapo.data.folders``; or ``hub:owner/name``, ``hub:owner/name:subset``.
        split: of a folder or a hub data set.

    Raises:
        DataError: a file is missing, of an unknown kind, or malformed (the message gives file, line and content).
    """
    if path.startswith(HUB_PREFIX):
        for where, row in read_hub(path.removeprefix(HUB_PREFIX), split):
            yield _record(row, where)
        return
    for file in files_of(path, split, READERS):
        try:
            if not stat.S_ISREG(file.stat().st_mode):
                raise DataError(
                    f"{file} is no regular file but a pipe, device or socket, which cannot be read again at a resume; "
                    "write the records to a file"
                )
            yield from READERS[file.suffix.lower()](file)
        except OSError as error:
            raise DataError(f"{file} cannot be read: {error.strerror or error}") from error


def _quote(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def _record(value: Any, where: str) -> Located:
    if not isinstance(value, dict):
        shown = _quote(str(value)) if isinstance(value, (str, list, bool, float)) or value is None else ""
        raise DataError(f"{where}: expected an object with named fields, found {type(value).__name__} {shown}".rstrip())
    return where, value


def _read_jsonl(file: Path) -> Iterator[Located]:
    with file.open("rb") as stream:
        for number, raw in enumerate(stream, start=1):
            where = f"{file}, line {number}"
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise DataError(f"{where}: not UTF-8 text ({error.reason} at byte {error.start})") from error
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                hint = "; a file that is one JSON list needs the suffix .json" if line.strip() == "[" else ""
                raise DataError(f"{where}: not JSON ({error}); found {_quote(line)}{hint}") from error
            yield _record(value, where)


def _read_json(file: Path) -> Iterator[Located]:
    try:
        value = json.loads(file.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file}: not JSON ({error}); one object per line needs the suffix .jsonl") from error
    if not isinstance(value, list):
        raise DataError(f"{file}: expected a JSON list of objects, found {type(value).__name__}")
    for number, item in enumerate(value, start=1):
        yield _record(item, f"{file}, item {number}")


def _read_csv(file: Path) -> Iterator[Located]:
    """Rows under the names of the first one. Values stay the text that they are: ``007`` and ``27.0`` too."""
    csv.field_size_limit(_LONGEST_FIELD)
    delimiter = "\t" if file.suffix.lower() == ".tsv" else ","
    number = 1
    try:
        with file.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(stream, delimiter=delimiter, strict=True)
            names = next(rows, [])
            _check_header(file, names)
            number = rows.line_num + 1
            for row in rows:
                where = f"{file}, line {number}"
                if len(row) not in (0, len(names)):
                    raise DataError(
                        f"{where}: {len(row)} values where the header names {len(names)} columns; found "
                        f"{_quote(delimiter.join(row))}; a value that holds {delimiter!r} is in double quotes"
                    )
                if row:
                    yield where, dict(zip(names, row, strict=True))
                number = rows.line_num + 1
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except csv.Error as error:
        raise DataError(f"{file}, line {number}: not CSV ({error}); see to its double quotes") from error


def _check_header(file: Path, names: list[str]) -> None:
    doubled = sorted({name for name in names if names.count(name) > 1})
    if doubled:
        raise DataError(f"{file}, line 1: two columns are called {doubled[0]!r}; rename one")


def _read_parquet(file: Path) -> Iterator[Located]:
    import pyarrow.parquet

    def batches() -> Iterator[Any]:
        table = pyarrow.parquet.ParquetFile(file)
        yield from table.iter_batches(batch_size=4096)

    yield from _rows(file, "Parquet", batches)


def _read_arrow(file: Path) -> Iterator[Located]:
    """Either form: the stream that ``save_to_disk`` writes, or the file with a footer."""
    import pyarrow

    def batches() -> Iterator[Any]:
        with pyarrow.memory_map(str(file)) as source:
            if source.read(6) == b"ARROW1":
                table = pyarrow.ipc.open_file(source)
                yield from (table.get_batch(index) for index in range(table.num_record_batches))
            else:
                source.seek(0)
                yield from pyarrow.ipc.open_stream(source)

    yield from _rows(file, "Arrow", batches)


def _rows(file: Path, kind: str, batches: Callable[[], Iterator[Any]]) -> Iterator[Located]:
    import pyarrow

    number = 0
    try:
        for batch in batches():
            if len(set(batch.schema.names)) < len(batch.schema.names):
                raise DataError(f"{file}: two of its columns have one name; found {batch.schema.names}")
            for row in batch.to_pylist():
                number += 1
                yield f"{file}, row {number}", row
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:
        # ValueError: text that is not UTF-8, or a moment that Python's dates cannot say
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"{file}: not a readable {kind} file (behind row {number}: {reason})") from error


READERS: dict[str, Callable[[Path], Iterator[Located]]] = {
    ".jsonl": _read_jsonl,
    ".ndjson": _read_jsonl,
    ".json": _read_json,
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
"""By suffix."""
