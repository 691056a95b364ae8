"""RUN/evaluations/step_NNNNNN.parquet: every response of an evaluation without its text, one row a response.

From these rows each number under ``validation/`` can be counted again. Texts of a few problems are in samples.jsonl:
those of all would be gigabytes in a long run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dapo.errors import DataError
from dapo.observe.columns import columns_of
from dapo.observe.held_out import HeldOut, Problem, Solved
from dapo.observe.parquet import read_parquet
from dapo.observe.tables import Write, named_values, repeated, table_of, texts, write_table_file
from dapo.types.batch import Group
from dapo.types.enums import FinishReason
from dapo.types.evaluation import ValidationSets

_NAMES = pa.dictionary(pa.int32(), pa.string())

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),  # training steps that the weights have behind them
        ("set", _NAMES),  # validation set
        ("problem", pa.int32()),  # index in the set
        ("sample", pa.int32()),  # -1: greedy
        ("prompt_id", _NAMES),  # content hash of the problem
        ("answer", _NAMES),  # gold
        ("read", pa.string()),  # the answer that the verifier read; null where it knows none
        ("accuracy", pa.float64()),  # null where it is unknown
        ("rewards", pa.map_(pa.string(), pa.float64())),  # by name; of those that did not fail
        ("length", pa.int32()),  # tokens
        ("finish", _NAMES),
        ("unscored", pa.string()),  # why a verifier failed; null where none did
        ("columns", _NAMES),  # JSON of the problem's columns of few values, each text stored once
    ],
    metadata={"dapo.evaluations": "1"},
)

_PROBLEMS_AT_ONCE = 1024
_CONTENT = ["set", "prompt_id", "answer", "problem", "columns"]
_COUNTED = [*_CONTENT, "sample", "accuracy", "read", "finish"]


def evaluation_tables(step: int, sets: ValidationSets) -> Iterator[pa.Table]:
    """Return tables of one row for each response, in their order."""
    for name, groups in sets.items():
        values = [json.dumps(row) for row in columns_of([group.prompt for group in groups])]
        for first in range(0, len(groups), _PROBLEMS_AT_ONCE):
            some = slice(first, first + _PROBLEMS_AT_ONCE)
            yield _table(step, name, groups[some], values[some])


def _table(step: int, name: str, groups: Sequence[Group], values: Sequence[str]) -> pa.Table:
    """Return the rows of some groups of a set; ``values``: of each problem the JSON of its columns."""
    sizes = [len(group.completions_G) for group in groups]
    completions = [completion for group in groups for completion in group.completions_G]
    scores = [score for group in groups for score in group.scores_G]
    columns: dict[str, Any] = {
        "step": [step] * len(scores),
        "set": repeated([name] * len(groups), sizes),
        "problem": np.repeat([group.id for group in groups], sizes),
        "sample": [completion.key.sample for completion in completions],
        "prompt_id": repeated([group.prompt.id for group in groups], sizes),
        "answer": repeated([group.prompt.answer for group in groups], sizes),
        "read": texts([score.answer for score in scores]),
        "accuracy": [score.accuracy for score in scores],
        "rewards": named_values([score.values for score in scores]),
        "length": [completion.model_tokens for completion in completions],
        "finish": texts([completion.finish for completion in completions]).dictionary_encode(),
        "unscored": texts([score.reason for score in scores]),
        "columns": repeated(values, sizes),
    }
    return table_of(SCHEMA, columns)


def write_evaluation(path: Path, step: int, sets: ValidationSets, write: Write = write_table_file) -> None:
    """Write the responses of one evaluation; ``write`` puts tables into a file."""
    write(path, SCHEMA, evaluation_tables(step, sets))


def read_evaluation(path: Path, columns: Sequence[str] | None = None, within: Path | None = None) -> pa.Table:
    """Return the responses of one evaluation: some columns, or all (None); ``within``: see ``open_regular``.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return read_parquet(path, columns, within)
    except (pa.ArrowException, OSError, DataError) as error:
        raise DataError(f"{path} cannot be read as an evaluation: {error}") from None


def held_out_of(sets: ValidationSets) -> HeldOut:
    """Count the responses of an evaluation that was made just now."""
    return _counted(pa.concat_tables([SCHEMA.empty_table(), *evaluation_tables(0, sets)]))


def read_held_out(path: Path, within: Path | None = None) -> HeldOut | None:
    """Count the responses of an evaluation's file; None where there is none, or one that no run wrote.

    ``within``: see ``open_regular``.
    """
    try:
        return _counted(read_evaluation(path, _COUNTED, within))
    except (DataError, KeyError, pa.ArrowException):
        return None


def _counted(table: pa.Table) -> HeldOut:
    """Raise KeyError or ArrowException for a table that no evaluation wrote."""
    if "columns" not in table.column_names:  # of an older version
        table = table.append_column("columns", pa.nulls(len(table), pa.string()))
    fields = [SCHEMA.field(name) for name in _COUNTED]
    plain = [pa.field(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in fields]
    table = table.select(_COUNTED).cast(pa.schema(plain))
    table = table.filter(pc.greater_equal(table["sample"], 0))
    accuracy = pc.if_else(pc.is_finite(table["accuracy"]), table["accuracy"], None)  # null where it is unknown
    known = table.select(_CONTENT).append_column("accuracy", accuracy)
    known = known.append_column("right", pc.greater_equal(accuracy, 1.0))
    sums = known.group_by(_CONTENT, use_threads=False).aggregate(
        [("accuracy", "mean"), ("accuracy", "count"), ("right", "sum")]
    )
    problems: dict[Problem, Solved] = {}
    seen: Counter[tuple[str, str, str]] = Counter()
    for row in sums.sort_by("problem").to_pylist():
        same = (row["set"], row["prompt_id"], row["answer"])
        if row["accuracy_count"]:
            counts = row["problem"], row["accuracy_mean"], row["accuracy_count"], row["right_sum"]
            problems[Problem(*same, seen[same])] = Solved(*counts, _read_columns(row["columns"]))
        seen[same] += 1
    truncated = pc.sum(pc.equal(table["finish"], FinishReason.LENGTH.value)).as_py() or 0
    return HeldOut(problems, len(table), truncated, len(table) - table["read"].null_count)


@lru_cache(maxsize=256)
def _read_columns(text: str | None) -> Mapping[str, str]:
    """Return a problem's columns; {} where the file is of an older version, or holds what no evaluation wrote."""
    try:
        found = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return {}
    return {name: str(value) for name, value in found.items()} if isinstance(found, dict) else {}
