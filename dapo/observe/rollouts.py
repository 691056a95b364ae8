"""RUN/rollouts/step_NNNNNN.parquet: every scored group of a step, one row a response.

The schema is the same in every run, so files of many steps and runs can be read as one table (``rewards`` is a map
by name for that reason; ``accuracy``, which every response has, is also a column).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from dapo.contracts.enums import Disposition, Verdict
from dapo.contracts.types import Group
from dapo.errors import DataError
from dapo.observe.text import utf8

Which = Literal["all", "kept", "sample", "none"]

_NAMES = pa.dictionary(pa.int32(), pa.string())  # few distinct values: stored once each

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),  # training step in which the group was judged or trained
        ("born", pa.int32()),  # training step that dispatched it
        ("group", pa.int64()),
        ("sample", pa.int32()),  # index in the group
        ("prompt_id", _NAMES),  # content hash: the same problem in other steps and runs
        ("source", _NAMES),
        ("prompt", _NAMES),  # what the model saw
        ("answer", _NAMES),  # gold
        ("response", pa.string()),
        ("token_ids", pa.list_(pa.int32())),  # response tokens, stop token included
        ("logprobs", pa.list_(pa.float32())),  # the sampler's, at the sampling temperature, nats
        ("versions", pa.list_(pa.int32())),  # weights that made each token
        ("length", pa.int32()),  # tokens
        ("finish", _NAMES),
        ("accuracy", pa.float64()),  # null where unscored
        ("rewards", pa.map_(pa.string(), pa.float64())),  # by name; empty where unscored
        ("reward", pa.float64()),  # weighted sum, before scaling and penalty; null where unscored
        ("penalty", pa.float64()),
        ("shaped_reward", pa.float64()),  # scaled + penalty; null where unscored
        ("advantage", pa.float64()),  # null unless the group trained
        ("voter", pa.bool_()),
        ("verdict", _NAMES),
        ("disposition", _NAMES),
        ("unscored", pa.string()),  # why; null where scored
    ],
    metadata={"dapo.rollouts": "1"},
)

GROUPS_PER_ROW_GROUP = 64
"""A reader can fetch this many groups at a time, and a writer holds no more than that twice."""


def rollout_table(step: int, groups: Sequence[Group]) -> pa.Table:
    """One row for each response of ``groups``, in their order."""
    completions = [completion for group in groups for completion in group.completions_G]
    scores = [score for group in groups for score in group.scores_G]
    sizes = [len(group.completions_G) for group in groups]
    row_of_group = pa.array(np.repeat(np.arange(len(groups)), sizes))

    def per_group(values: list[Any], of: pa.DataType) -> pa.Array:
        """A column whose value is the same for all responses of a group: made once a group."""
        return _column(values, of).take(row_of_group)

    columns: dict[str, Any] = {
        "step": np.full(len(completions), step),
        "born": np.repeat([group.born for group in groups], sizes),
        "group": np.repeat([group.id for group in groups], sizes),
        "sample": np.concatenate([np.arange(size) for size in sizes]) if sizes else [],
        "prompt_id": per_group([group.prompt.id for group in groups], _NAMES),
        "source": per_group([utf8(group.prompt.source) for group in groups], _NAMES),
        "prompt": per_group([utf8(group.prompt.text) for group in groups], _NAMES),
        "answer": per_group([utf8(group.prompt.answer) for group in groups], _NAMES),
        "response": [utf8(completion.text) for completion in completions],
        "token_ids": _ragged([c.token_ids for c in completions], pa.int32(), np.int32),
        "logprobs": _ragged([c.logprobs for c in completions], pa.float32(), np.float32),
        "versions": _ragged([c.versions for c in completions], pa.int32(), np.int32),
        "length": [len(completion) for completion in completions],
        "finish": [completion.finish.value for completion in completions],
        "accuracy": [score.values.get("accuracy") if score.scored else None for score in scores],
        "rewards": [[(utf8(name), value) for name, value in score.values.items()] for score in scores],
        "reward": [score.reward if score.scored else None for score in scores],
        "penalty": _per_response(groups, "penalties_G"),
        "shaped_reward": _per_response(groups, "rewards_G"),
        "advantage": _per_response(groups, "advantages_G"),
        "voter": _per_response(groups, "voters_G"),
        "verdict": per_group([group.verdict.value if group.verdict else None for group in groups], _NAMES),
        "disposition": per_group([g.disposition.value if g.disposition else None for g in groups], _NAMES),
        "unscored": [None if score.reason is None else utf8(score.reason) for score in scores],
    }
    arrays = [_column(columns[field.name], field.type) for field in SCHEMA]
    return pa.Table.from_arrays(arrays, schema=SCHEMA)


def select_groups(groups: Sequence[Group], which: Which, count: int = 8) -> list[Group]:
    """The groups that go to the file: the setting ``logging.rollouts``.

    ``kept`` are those that passed the keep rule or trained all the same; ``sample`` is ``count`` groups, evenly spread
    over the step, so that the choice is a function of the recipe.
    """
    if which == "none":
        return []
    if which == "kept":
        trained = (Disposition.TRAINED, Disposition.FILLED)
        return [group for group in groups if group.verdict is Verdict.KEPT or group.disposition in trained]
    if which == "sample" and count < len(groups):
        return [groups[len(groups) * i // count] for i in range(count)]
    return list(groups)


def write_rollouts(path: Path, step: int, groups: Sequence[Group], *, add: bool = False) -> None:
    """Write a step's groups (zstd). A crash at any instant leaves no half file under this name.

    Args:
        path: The file.
        step: The training step.
        groups: In the order in which they will stand there.
        add: Keep what the file holds of other groups, before these.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    earlier = None
    if add and path.exists():
        table = pq.read_table(path)
        earlier = table.filter(
            pc.invert(pc.is_in(table["group"], pa.array([group.id for group in groups], pa.int64())))
        )
    with pq.ParquetWriter(temporary, SCHEMA, compression="zstd") as writer:
        if earlier is not None:
            writer.write_table(earlier.cast(SCHEMA))
        for first in range(0, max(1, len(groups)), GROUPS_PER_ROW_GROUP):
            writer.write_table(rollout_table(step, groups[first : first + GROUPS_PER_ROW_GROUP]))
    os.replace(temporary, path)


def read_rollouts(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """The rollouts of one file, or of all files of a folder in order of their steps.

    Raises:
        DataError: nothing there, or a file that is no rollout file.
    """
    files = sorted(path.glob("step_*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise DataError(f"no rollouts at {path}. They are written when logging.rollouts is not 'none'.")
    try:
        return pa.concat_tables([pq.read_table(file, columns=columns and list(columns)) for file in files])
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as rollouts: {error}") from None


def _ragged(arrays: Sequence[NDArray[Any]], of: pa.DataType, dtype: type) -> pa.ListArray:
    """A list column from numpy rows without a Python object for each token."""
    offsets = np.zeros(len(arrays) + 1, dtype=np.int32)
    np.cumsum([len(array) for array in arrays], out=offsets[1:])
    values: NDArray[Any] = np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.empty(0, dtype)
    return pa.ListArray.from_arrays(offsets, pa.array(values, type=of))


def _per_response(groups: Iterable[Group], name: str) -> list[Any]:
    """A per-response array of the groups that have it; None elsewhere and for nan."""
    values: list[Any] = []
    for group in groups:
        array: NDArray[Any] | None = getattr(group, name)
        values += [None] * len(group.completions_G) if array is None else array.tolist()
    return [None if isinstance(value, float) and math.isnan(value) else value for value in values]


def _column(values: Any, of: pa.DataType) -> pa.Array:
    if isinstance(values, pa.Array):
        return values
    if pa.types.is_dictionary(of):
        return pa.array(values, type=pa.string()).dictionary_encode()
    return pa.array(values, type=of)
