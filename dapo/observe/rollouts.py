"""RUN/rollouts/step_NNNNNN.parquet: every scored group of a step, one row a response.

The schema is the same in every run, so files of many steps and runs can be read as one table (``rewards`` is a map
by name for that reason; ``accuracy``, which every response has, is also a column).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from dapo.errors import DataError
from dapo.observe.parquet import read_parquet
from dapo.observe.tables import Write, named_values, offsets_of, ragged, repeated, table_of, texts, write_table_file
from dapo.types.batch import Group, Response
from dapo.types.enums import Disposition, Verdict

Which = Literal["all", "kept", "none"] | int

_NAMES = pa.dictionary(pa.int32(), pa.string())  # few distinct values: stored once each

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),  # training step in which the group was judged or trained
        ("born", pa.int32()),  # 1 + version of the engine's weights when it was dispatched
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
        ("generated", pa.list_(pa.bool_())),  # false: the program put the token in; null: the policy sampled all
        (
            "turns",  # of an episode, in order; null without an environment
            pa.list_(
                pa.struct(
                    [
                        ("first", pa.int32()),  # index of its first token
                        ("stop", pa.int32()),  # index after its last token
                        ("who", pa.string()),  # assistant, or the role of a reply
                        ("text", pa.string()),
                        ("reward", pa.float64()),
                        ("seconds", pa.float64()),  # that the environment took to answer
                        ("calls", pa.list_(pa.string())),  # names of tools
                        ("prompt_ids", pa.list_(pa.int32())),  # that the turn was made from, where a row begins
                        ("facts", pa.map_(pa.string(), pa.float64())),  # further numbers, by the environment
                    ]
                )
            ),
        ),
        ("ended", _NAMES),  # done, turns, tokens, reply or error; null without an environment
        ("length", pa.int32()),  # tokens that the model sampled
        ("finish", _NAMES),
        ("accuracy", pa.float64()),  # null where unscored
        (
            "rewards",
            pa.map_(pa.string(), pa.float64()),
        ),  # by name; unscored: of those that did not fail
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
    offsets = offsets_of(completion.token_ids for completion in completions)
    per_group = partial(repeated, sizes=sizes)  # a column whose value is the same for all responses of a group
    columns: dict[str, Any] = {
        "step": np.full(len(completions), step),
        "born": np.repeat([group.born for group in groups], sizes),
        "group": np.repeat([group.id for group in groups], sizes),
        "sample": np.concatenate([np.arange(size) for size in sizes]) if sizes else [],
        "prompt_id": per_group([group.prompt.id for group in groups]),
        "source": per_group([group.prompt.source for group in groups]),
        "prompt": per_group([group.prompt.text for group in groups]),
        "answer": per_group([group.prompt.answer for group in groups]),
        "response": texts([completion.shown for completion in completions]),
        "token_ids": ragged([c.token_ids for c in completions], pa.int32(), offsets),
        "logprobs": ragged([c.logprobs for c in completions], pa.float32(), offsets),
        "versions": ragged([c.versions for c in completions], pa.int32(), offsets),
        "generated": ragged([c.generated for c in completions], pa.bool_()),
        "turns": pa.array([_turns(completion) for completion in completions], SCHEMA.field("turns").type),
        "ended": texts([completion.ended for completion in completions]).dictionary_encode(),
        "length": [completion.model_tokens for completion in completions],
        "finish": texts([c.finish for c in completions]).dictionary_encode(),
        "accuracy": [score.values.get("accuracy") if score.reason is None else None for score in scores],
        "rewards": named_values([score.values for score in scores]),
        "reward": [score.reward if score.reason is None else None for score in scores],
        "penalty": _per_response(groups, "penalties_G"),
        "shaped_reward": _per_response(groups, "rewards_G"),
        "advantage": _per_response(groups, "advantages_G"),
        "voter": _voters(groups),
        "verdict": per_group([group.verdict for group in groups]),
        "disposition": per_group([group.disposition for group in groups]),
        "unscored": texts([score.reason for score in scores]),
    }
    return table_of(SCHEMA, columns)


def _turns(completion: Response) -> list[dict[str, Any]] | None:
    if completion.ended is None:
        return None
    names = [field.name for field in SCHEMA.field("turns").type.value_type]
    return [
        {**{name: getattr(turn, name) for name in names}, "facts": list(turn.facts.items())}
        for turn in completion.turns
    ]


def select_groups(groups: Sequence[Group], which: Which) -> list[Group]:
    """Return the groups that go to the file: the setting ``logging.rollouts``.

    ``kept`` are those that passed the keep rule or trained all the same; a number is so many groups, evenly spread over
    the step, so that the choice is a function of the recipe.
    """
    if which == "none":
        return []
    if which == "kept":
        trained = (Disposition.TRAINED, Disposition.FILLED)
        return [group for group in groups if group.verdict is Verdict.KEPT or group.disposition in trained]
    if isinstance(which, int) and which < len(groups):
        return [groups[len(groups) * i // which] for i in range(which)]
    return list(groups)


def write_rollouts(
    path: Path, step: int, groups: Sequence[Group], *, add: bool = False, write: Write = write_table_file
) -> None:
    """Write a step's groups (zstd). A crash at any instant leaves no half file under this name.

    Args:
        path: The file.
        step: The training step.
        groups: In the order of the file.
        add: Keep what the file holds of other groups, before these.
        write: What puts tables into a file.
    """
    tables = (
        rollout_table(step, groups[first : first + GROUPS_PER_ROW_GROUP])
        for first in range(0, max(1, len(groups)), GROUPS_PER_ROW_GROUP)
    )
    earlier: list[pa.Table] = []
    if add and path.exists():
        table = read_parquet(path)
        known = pc.is_in(table["group"], pa.array([group.id for group in groups], pa.int64()))
        earlier = [table.filter(pc.invert(known)).select(SCHEMA.names).cast(SCHEMA)]
    write(path, SCHEMA, itertools.chain(earlier, tables))


def read_rollouts(path: Path, columns: Sequence[str] | None = None) -> pa.Table:
    """Return the rollouts of one file, or of all files of a folder in order of their steps.

    Raises:
        DataError: nothing there, or a file that is no rollout file.
    """
    files = sorted(path.glob("step_*.parquet")) if path.is_dir() else [path]
    if not files or not files[0].exists():
        raise DataError(f"no rollouts at {path}. They are written when logging.rollouts is not 'none'.")
    try:
        tables = [read_parquet(file, columns).select(columns or SCHEMA.names) for file in files]
        return pa.concat_tables(tables, promote_options="permissive")  # turns of older runs have fewer fields
    except (pa.ArrowException, OSError, KeyError, DataError) as error:
        raise DataError(f"{path} cannot be read as rollouts: {error}") from None


def _per_response(groups: Sequence[Group], name: str) -> pa.Array:
    """Return a per-response array of the groups that have it; null elsewhere and for nan."""
    given: list[NDArray[np.float64] | None] = [getattr(group, name) for group in groups]
    rows = [
        np.full(len(group.completions_G), np.nan) if values is None else values
        for group, values in zip(groups, given, strict=True)
    ]
    return pa.array(np.concatenate(rows) if rows else [], type=pa.float64(), from_pandas=True)


def _voters(groups: Sequence[Group]) -> pa.Array:
    """Return which responses vote; null for groups that were never shaped."""
    none: list[Any] = [None]
    rows = [none * len(g.completions_G) if g.voters_G is None else g.voters_G.tolist() for g in groups]
    return pa.array([value for row in rows for value in row], type=pa.bool_())
