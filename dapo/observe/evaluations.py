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

import pyarrow as pa
import pyarrow.compute as pc

from dapo.errors import DataError
from dapo.observe.columns import columns_of
from dapo.observe.held_out import HeldOut, Problem, Solved
from dapo.observe.parquet import read_parquet
from dapo.observe.tables import Write, named_values, texts, write_table_file
from dapo.types.enums import FinishReason
from dapo.types.evaluation import Evaluated

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

_ROWS_AT_ONCE = 8192
_CONTENT = ["set", "prompt_id", "answer", "problem", "columns"]
_COUNTED = [*_CONTENT, "sample", "accuracy", "read", "finish"]


def evaluation_table(step: int, responses: Sequence[Evaluated], values: Mapping[tuple[str, int], str]) -> pa.Table:
    """Return one row for each response, in their order; ``values``: by set and problem the JSON of its columns."""
    columns: dict[str, Any] = {
        "step": [step] * len(responses),
        "set": texts([r.dataset for r in responses]).dictionary_encode(),
        "problem": [r.problem for r in responses],
        "sample": [r.sample for r in responses],
        "prompt_id": texts([r.prompt.id for r in responses]).dictionary_encode(),
        "answer": texts([r.prompt.answer for r in responses]).dictionary_encode(),
        "read": texts([r.score.answer for r in responses]),
        "accuracy": [r.score.accuracy for r in responses],
        "rewards": named_values([r.score.values for r in responses]),
        "length": [r.completion.model_tokens for r in responses],
        "finish": texts([r.completion.finish for r in responses]).dictionary_encode(),
        "unscored": texts([r.score.reason for r in responses]),
        "columns": texts([values[r.dataset, r.problem] for r in responses]).dictionary_encode(),
    }
    arrays = [
        column if isinstance(column := columns[field.name], pa.Array) else pa.array(column, type=field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def _columns_of(responses: Sequence[Evaluated]) -> dict[tuple[str, int], str]:
    """Return by set and problem the JSON of its columns."""
    prompts = {(r.dataset, r.problem): r.prompt for r in responses}
    return {key: json.dumps(row) for key, row in zip(prompts, columns_of(prompts.values()), strict=True)}


def write_evaluation(path: Path, step: int, responses: Sequence[Evaluated], write: Write = write_table_file) -> None:
    """Write the responses of one evaluation; ``write`` puts tables into a file."""
    values = _columns_of(responses)

    def tables() -> Iterator[pa.Table]:
        for first in range(0, max(1, len(responses)), _ROWS_AT_ONCE):
            yield evaluation_table(step, responses[first : first + _ROWS_AT_ONCE], values)

    write(path, SCHEMA, tables())


def read_evaluation(path: Path, columns: Sequence[str] | None = None, within: Path | None = None) -> pa.Table:
    """Return the responses of one evaluation: some columns, or all (None); ``within``: see ``open_regular``.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return read_parquet(path, columns, within)
    except (pa.ArrowException, OSError, DataError) as error:
        raise DataError(f"{path} cannot be read as an evaluation: {error}") from None


def held_out_of(responses: Sequence[Evaluated]) -> HeldOut:
    """Count the responses of an evaluation that was made just now."""
    return _counted(evaluation_table(0, responses, _columns_of(responses)))


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
