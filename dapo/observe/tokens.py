"""RUN/tokens/step_NNNNNN.parquet: a few groups of a step token by token, one row a response.

The sampler's numbers of each token are next to the learner's from its update. Groups that did not
train have the sampler's numbers only, and so have responses of which no token carried loss.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dapo.errors import DataError
from dapo.observe.parquet import read_parquet
from dapo.observe.tables import Write, lists, offsets_of, ragged, table_of, texts, write_table_file
from dapo.types.batch import Group, Response, TokenTrace
from dapo.types.enums import Disposition
from dapo.types.row_parts import parts_of

_NUMBERS = pa.list_(pa.float32())

SCHEMA = pa.schema(
    [
        ("step", pa.int32()),
        ("group", pa.int64()),
        ("sample", pa.int32()),  # index in the group
        ("pieces", pa.list_(pa.string())),  # text of each token, see ``Pieces``
        ("sampler", _NUMBERS),  # log-probability when it was sampled, nats
        ("learner", _NUMBERS),  # the same under the weights before its optimiser step; null where it did not train
        ("old", _NUMBERS),  # what the ratio runs against; null as above
        ("ratio", _NUMBERS),  # exp(learner - old); null as above
        ("entropy", _NUMBERS),  # of the policy at the token, nats; null as above
        # 0 none, 1 low, 2 high, 3 dual; null as above, and for losses without such flags
        ("clip", pa.list_(pa.int8())),
        ("versions", pa.list_(pa.int32())),  # weights that made each token
        # false: the program put the token in, and its numbers mean nothing; null: the policy sampled all
        ("generated", pa.list_(pa.bool_())),
    ],
    metadata={"dapo.tokens": "1"},
)

_GROUPS_PER_ROW_GROUP = 16
_NOTHING = -1
"""Stands for the token before the first."""
_TRAINED = (Disposition.TRAINED, Disposition.FILLED)
_ENDED = (Disposition.DISCARDED, Disposition.EXPIRED)


def select_for_tokens(groups: Sequence[Group], count: int) -> list[Group]:
    """Return the groups that are recorded token by token: the setting ``logging.tokens``.

    ``count`` of those that train, evenly spread (copies are left out: their originals train too), and the middle one of
    those that will never train. A function of the step's groups, so that a resumed run chooses alike.
    """
    if count == 0:
        return []
    trained = [group for group in groups if group.disposition in _TRAINED]
    if count < len(trained):
        trained = [trained[len(trained) * i // count] for i in range(count)]
    ended = [group for group in groups if group.disposition in _ENDED]
    return trained + ended[len(ended) // 2 :][:1]


class Pieces:
    """Cuts the text of a response into the texts of its tokens.

    Joined, they are what the tokenizer makes of the whole. Where several tokens make one character, the last has it and
    the others are empty. Special tokens, which the response's text leaves out, show their name.
    """

    _MEMORY = 2**16
    """Pairs of tokens whose text is remembered."""
    _MOST_HELD = 16
    """Tokens that may wait for their character to become whole. Longer runs are no text, and are shown as they are."""

    def __init__(self, tokenizer: Any) -> None:
        """``tokenizer``: of transformers, or anything with its ``decode``, ``all_special_ids`` and their tokens."""
        self._tokenizer = tokenizer
        self._special: dict[int, str] = {
            int(i): str(tokenizer.convert_ids_to_tokens(int(i))) for i in tokenizer.all_special_ids
        }
        self._known: dict[tuple[int, int], str] = {}  # (token before, token) -> its piece, where no other token matters

    def __call__(self, token_ids: NDArray[Any]) -> list[str]:
        """One piece for each token of a response [response tokens], in linear time."""
        ids: list[int] = token_ids.tolist()
        pairs = list(zip([_NOTHING, *ids], ids, strict=False))
        pieces = [self._known.get(pair) for pair in pairs]
        if None in pieces:
            return self._cut(ids, pairs)
        return pieces  # type: ignore[return-value]

    def _cut(self, ids: list[int], pairs: list[tuple[int, int]]) -> list[str]:
        if len(self._known) > self._MEMORY:
            self._known.clear()
        pieces = [self._special.get(i, "") for i in ids]
        places = [t for t, i in enumerate(ids) if i not in self._special]
        plain = [ids[t] for t in places]
        # Text before ``read`` is given out already; the tokens from ``start`` to there are decoded again with each new
        # one, because what a token looks like depends on the one before it (a blank between words, half a character).
        start = read = 0
        for end, place in enumerate(places, 1):
            alone = place + 1 == end == read + 1 and read - start <= 1  # nothing but the token before it matters
            if alone and (piece := self._known.get(pairs[place])) is not None:
                pieces[place] = piece
            else:
                before, now = self._decode(plain[start:read]), self._decode(plain[start:end])
                waits = now.endswith("\ufffd") or len(now) <= len(before)
                if waits and end - read < self._MOST_HELD and end < len(plain):
                    continue
                pieces[place] = now[len(before) :]
                if alone and not waits:
                    self._known[pairs[place]] = pieces[place]
            start, read = read, end
        for pair, piece in zip(pairs, pieces, strict=True):
            if pair[1] in self._special:
                self._known[pair] = piece
        return pieces

    def _decode(self, ids: list[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))


def token_table(
    step: int, groups: Sequence[Group], traces: Mapping[tuple[int, int], TokenTrace], pieces: Pieces
) -> pa.Table:
    """One row for each response of ``groups``, in their order; ``traces`` by group and sample."""
    keys = [(group.id, sample) for group in groups for sample in range(len(group.completions_G))]
    completions = [completion for group in groups for completion in group.completions_G]
    cut = [pieces(completion.token_ids) for completion in completions]

    found = [traces.get(key) for key in keys]
    offsets = offsets_of(completion.token_ids for completion in completions)

    def traced(name: str, of: pa.DataType) -> pa.ListArray:
        """Return a column of the traces; null where there is none."""
        return ragged([None if trace is None else getattr(trace, name) for trace in found], of)

    columns = {
        "step": pa.array(np.full(len(keys), step), pa.int32()),
        "group": pa.array([group for group, _ in keys], pa.int64()),
        "sample": pa.array([sample for _, sample in keys], pa.int32()),
        "pieces": lists(offsets, texts([piece for row in cut for piece in row])),
        "sampler": ragged([c.logprobs for c in completions], pa.float32(), offsets),
        "learner": traced("logprobs", pa.float32()),
        "old": traced("old_logprobs", pa.float32()),
        "ratio": traced("ratio", pa.float32()),
        "entropy": traced("entropy", pa.float32()),
        "clip": traced("clip", pa.int8()),
        "versions": ragged([c.versions for c in completions], pa.int32(), offsets),
        "generated": ragged([c.generated for c in completions], pa.bool_()),
    }
    return table_of(SCHEMA, columns)


def whole_traces(groups: Sequence[Group], traces: Iterable[TokenTrace]) -> dict[tuple[int, int], TokenTrace]:
    """Return traces by group and sample, the parts of an episode joined; tokens that are in no part have zeros."""
    parts: dict[tuple[int, int], list[TokenTrace]] = {}
    for trace in traces:
        parts.setdefault((trace.group, trace.sample), []).append(trace)
    made = {(group.id, sample): c for group in groups for sample, c in enumerate(group.completions_G)}
    return {key: _joined(own, made[key]) for key, own in parts.items() if key in made}


def _joined(own: Sequence[TokenTrace], made: Response) -> TokenTrace:
    spans = [slice(part.first, part.stop) for part in parts_of(made.turns)]
    if not spans:
        return own[0]

    def joined(name: str) -> Any:
        arrays = [getattr(part, name) for part in own]
        if arrays[0] is None:
            return None
        values = np.zeros(len(made), arrays[0].dtype)
        for part, array in zip(own, arrays, strict=True):
            values[spans[part.part]] = array
        return values

    names = ("logprobs", "old_logprobs", "ratio", "entropy", "clip")
    return TokenTrace(own[0].group, own[0].sample, *(joined(name) for name in names))


def write_tokens(
    path: Path,
    step: int,
    groups: Sequence[Group],
    traces: Iterable[TokenTrace],
    pieces: Pieces,
    write: Write = write_table_file,
) -> None:
    """Write a step's token records (zstd). A crash at any instant leaves no half file under this name.

    Args:
        path: The file.
        step: The training step.
        groups: See ``select_for_tokens``.
        traces: What the learner computed; those of other groups are left out.
        pieces: Cuts text.
        write: What puts tables into a file.
    """
    by_key = whole_traces(groups, traces)
    tables = (
        token_table(step, groups[first : first + _GROUPS_PER_ROW_GROUP], by_key, pieces)
        for first in range(0, max(1, len(groups)), _GROUPS_PER_ROW_GROUP)
    )
    write(path, SCHEMA, tables)


def read_tokens(path: Path) -> pa.Table:
    """Return the token records of one step.

    Raises:
        DataError: there is no such file, or it holds no token records.
    """
    try:
        table = read_parquet(path)
    except (pa.ArrowException, OSError, DataError) as error:
        raise DataError(f"{path} cannot be read as token records: {error}") from None
    if table.column_names != SCHEMA.names:
        raise DataError(f"{path} holds no token records: its columns are {', '.join(table.column_names)}.")
    return table
