"""RUN/evaluations/step_NNNNNN.parquet: every response of an evaluation without its text, one row a response.

From these rows each number under ``validation/`` can be counted again. Texts of a few problems are in samples.jsonl:
those of all would be gigabytes in a long run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from dapo.errors import DataError
from dapo.observe.parquet import read_parquet
from dapo.observe.tables import Write, named_values, texts, write_table_file
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
    ],
    metadata={"dapo.evaluations": "1"},
)

_ROWS_AT_ONCE = 8192


def evaluation_table(step: int, responses: Sequence[Evaluated]) -> pa.Table:
    """Return one row for each response, in their order."""
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
    }
    arrays = [
        column if isinstance(column := columns[field.name], pa.Array) else pa.array(column, type=field.type)
        for field in SCHEMA
    ]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def write_evaluation(path: Path, step: int, responses: Sequence[Evaluated], write: Write = write_table_file) -> None:
    """Write the responses of one evaluation; ``write`` puts tables into a file."""

    def tables() -> Iterator[pa.Table]:
        for first in range(0, max(1, len(responses)), _ROWS_AT_ONCE):
            yield evaluation_table(step, responses[first : first + _ROWS_AT_ONCE])

    write(path, SCHEMA, tables())


def read_evaluation(path: Path) -> pa.Table:
    """Return the responses of one evaluation.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        return read_parquet(path)
    except (pa.ArrowException, OSError, DataError) as error:
        raise DataError(f"{path} cannot be read as an evaluation: {error}") from None
