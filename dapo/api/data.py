"""Data that a program gives: paths, lists of records, ``datasets.Dataset``, data frames.

Records are written once to ``RUN_DIR/.data``, under a name made of their content: the recipe then names a file like any
other, and a resume needs nothing of the program that gave them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dapo.config.schema import TrainSource
from dapo.data.hub_sets import HUB_PREFIX
from dapo.data.readers import READERS
from dapo.data.values import as_json
from dapo.errors import DataError
from dapo.observe.jsonl import write_atomically

TASK = "task:"
FOLDER = ".data"
_COLUMNS = set(TrainSource.model_fields)


def sources(given: Any, name: str, folder: Path) -> list[dict[str, Any]]:
    """Return the recipe's list of data sources for a program's data.

    Args:
        given: a path, ``hub:owner/name`` or ``task:NAME``; a mapping with the keys of a data source; records (a list of
            mappings, a ``datasets.Dataset``, a data frame, a table of arrow); a list of those that are no records; a
            mapping from names of sets to any of them.
        name: of records that have none.
        folder: where records are written.

    Raises:
        DataError: it is nothing of that, or a record cannot be written as JSON.
    """
    if isinstance(given, str | Path):
        text = str(given)
        return [{"task": text.removeprefix(TASK)} if text.startswith(TASK) else {"path": text}]
    if isinstance(given, Mapping):
        if _is_source(given):
            return [dict(given)]
        if _is_sets(given):
            return [
                {**source, "name": label} for label, below in given.items() for source in sources(below, label, folder)
            ]
        raise DataError(
            f"data given as a mapping with the keys {', '.join(map(repr, list(given)[:8]))}: expected one data source "
            "(path, task...), or sets by name. One problem alone is given as a list of one, and settings of the "
            "section validation by their keys: **{'validation.every': 5}"
        )
    if isinstance(given, list | tuple) and given and all(map(_names_data, given)):
        return [source for item in given for source in sources(item, name, folder)]
    return [_written(_records(given), name, folder)]


def _names_data(item: Any) -> bool:
    """Return whether this is a path, a data source or a data set: everything but a record."""
    return not isinstance(item, Mapping) or _is_source(item)


def _is_source(given: Mapping[Any, Any]) -> bool:
    return bool({"path", "task"} & given.keys()) and given.keys() <= _COLUMNS


def _is_sets(given: Mapping[Any, Any]) -> bool:
    """Return whether these are sets by name: every value is data. A single record is none, though its texts could be
    paths."""
    return bool(given) and all(
        isinstance(key, str)
        and (_names_file(value) if isinstance(value, str) else isinstance(value, Path | list | tuple) or _reads(value))
        for key, value in given.items()
    )


def _names_file(text: str) -> bool:
    return text.startswith((HUB_PREFIX, TASK)) or Path(text).suffix.lower() in READERS or "/" in text


def _reads(value: Any) -> bool:
    if isinstance(value, Mapping):
        return _is_source(value)
    return any(hasattr(value, name) for name in ("to_pylist", "to_dict", "column_names"))


def _records(given: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the records of any object that holds some."""
    if hasattr(given, "to_pylist"):  # a table of arrow
        given = given.to_pylist()
    elif hasattr(given, "columns") and hasattr(given, "to_dict"):  # a data frame
        given = given.to_dict("records")
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise DataError(
            f"{type(given).__name__} is no data: expected a path, a list of records (dicts), a datasets.Dataset or a "
            "data frame"
        )
    for number, record in enumerate(given):
        if not isinstance(record, Mapping):
            raise DataError(
                f"record {number} is {type(record).__name__}, expected a dict with a problem and an answer, such as "
                "{'problem': '2 + 2', 'answer': '4'}"
            )
        yield record


def _written(records: Iterator[Mapping[str, Any]], name: str, folder: Path) -> dict[str, Any]:
    lines, digest = [], hashlib.sha256()
    for number, record in enumerate(records):
        try:
            line = json.dumps(as_json(_plain(record)), ensure_ascii=False)
        except (ValueError, RecursionError) as error:
            raise DataError(f"record {number} of {name!r} cannot be written down: {error}") from None
        lines.append(line)
        digest.update(line.encode() + b"\n")
    if not lines:
        raise DataError(f"the data given for {name!r} hold no record")
    stem = re.sub(r"[^\w-]+", "_", name)[:60]
    path = folder / FOLDER / f"{stem}-{digest.hexdigest()[:12]}.jsonl"
    if not path.is_file():
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, "\n".join(lines) + "\n")
    return {"path": str(path.absolute()), "name": name}


def _plain(value: Any) -> Any:
    """Numbers and arrays of numpy as Python's own."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return _plain(value.tolist()) if hasattr(value, "tolist") else value
