"""Read records from JSONL, JSON and Parquet files and from hub data sets.

Every reader yields ``(where, record)``: a phrase for error messages ("data.jsonl, line 7") and a dict.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dapo.errors import DataError

Record = dict[str, Any]
Located = tuple[str, Record]

HUB_PREFIX = "hub:"
_SHOWN = 80  # characters of an offending line that an error quotes


def read_records(path: str, split: str = "train") -> Iterator[Located]:
    """Yield the records of a file, chosen by its suffix, or of ``hub:owner/name`` or ``hub:owner/name:subset``.

    Raises:
        DataError: the file is missing, of an unknown kind, or malformed (the message gives file, line and content).
    """
    if path.startswith(HUB_PREFIX):
        yield from _read_hub(path.removeprefix(HUB_PREFIX), split)
        return
    file = Path(path).expanduser()
    if not file.exists():
        raise DataError(f"data file not found: {path}{_neighbours(file)}")
    if file.is_dir():
        raise DataError(f"{path} is a folder, not a data file{_neighbours(file / '?')}")
    readers = {".jsonl": _read_jsonl, ".ndjson": _read_jsonl, ".json": _read_json, ".parquet": _read_parquet}
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise DataError(f"{path}: unknown kind of file {file.suffix!r}; expected one of {', '.join(readers)}")
    yield from reader(file)


def _neighbours(file: Path) -> str:
    """What does exist next to a missing file, as the tail of an error message."""
    if not file.parent.is_dir():
        return f" (the folder {file.parent} does not exist either; relative paths start at {Path.cwd()})"
    names = sorted(p.name for p in file.parent.iterdir() if p.suffix.lower() in {".jsonl", ".json", ".parquet"})
    return f"; the folder {file.parent} holds: {', '.join(names[:8]) or 'no data files'}"


def _quote(text: str) -> str:
    text = text.strip()
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


def _record(value: Any, where: str) -> Located:
    if not isinstance(value, dict):
        raise DataError(
            f"{where}: expected an object with named fields, found {type(value).__name__} {_quote(str(value))}"
        )
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
            except (json.JSONDecodeError, RecursionError) as error:
                hint = "; a file that is one JSON list needs the suffix .json" if line.strip() == "[" else ""
                raise DataError(f"{where}: not JSON ({error}); found {_quote(line)}{hint}") from error
            yield _record(value, where)


def _read_json(file: Path) -> Iterator[Located]:
    try:
        value = json.loads(file.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise DataError(f"{file}: not UTF-8 text ({error.reason} at byte {error.start})") from error
    except (json.JSONDecodeError, RecursionError) as error:
        raise DataError(f"{file}: not JSON ({error}); one object per line needs the suffix .jsonl") from error
    if not isinstance(value, list):
        raise DataError(f"{file}: expected a JSON list of objects, found {type(value).__name__}")
    for number, item in enumerate(value, start=1):
        yield _record(item, f"{file}, item {number}")


def _read_parquet(file: Path) -> Iterator[Located]:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(file)
        number = 0
        for batch in table.iter_batches(batch_size=4096):
            for row in batch.to_pylist():
                number += 1
                yield f"{file}, row {number}", row
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{file}: not a readable Parquet file ({error})") from error


def _read_hub(name: str, split: str) -> Iterator[Located]:
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"hub:{name} needs the extra `data`: pip install 'dapo-rl[data]'") from error
    try:
        repository, _, subset = name.partition(":")
        rows = datasets.load_dataset(repository, subset or None, split=split)
    except Exception as error:  # the hub client raises many kinds: network, access, unknown split
        raise DataError(f"hub:{name}, split {split!r} could not be loaded: {type(error).__name__}: {error}") from error
    for number, row in enumerate(rows, start=1):
        yield _record(dict(row), f"hub:{name}[{split}], row {number}")
