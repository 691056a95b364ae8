"""Cut an episode into rows where turns have prompts of their own, and join what is computed of the rows.

A row begins with each turn of the model that has a prompt (``Turn.prompt_ids``, its own or that of the reply before it)
and ends with the last turn that continues it. Tokens outside of all rows are replies, which carry no loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from dapo.errors import HookError
from dapo.types.batch import MODEL, FloatArray, Group, IntArray, Row, TokenRow, Turn
from dapo.types.extra import Extra


@dataclass(frozen=True, slots=True)
class Part:
    """One row of an episode: its prompt, and the stretch of the episode's tokens that follows it."""

    number: int  # from 0
    prompt_ids: IntArray
    first: int  # index of its first token in the episode
    stop: int  # index after its last token


def parts_of(turns: Sequence[Turn]) -> list[Part]:
    """Return the rows of an episode; [] if the whole response is one row behind the group's prompt.

    A turn without tokens, which the engine ended at once, makes no row.
    """
    parts: list[Part] = []
    prompt_ids: IntArray | None = None
    for turn in turns:
        prompt_ids = turn.prompt_ids if turn.prompt_ids is not None else prompt_ids
        if turn.who != MODEL:
            continue
        if prompt_ids is not None:
            parts.append(Part(len(parts), prompt_ids, turn.first, turn.stop))
            prompt_ids = None
        elif parts:
            parts[-1] = replace(parts[-1], stop=turn.stop)
    return [replace(part, number=n) for n, part in enumerate(p for p in parts if p.first < p.stop)]


def cut_row(row: Row, turns: Sequence[Turn]) -> list[Row]:
    """Return the rows of a response; ``row`` holds all of its tokens.

    Every part keeps the weight and the advantage of the whole.

    Raises:
        HookError: an extra array that spans the group's prompt, which the parts do not have.
    """
    parts = parts_of(turns)
    return [_part(row, part) for part in parts] if parts else [row]


def _part(row: Row, part: Part) -> Row:
    span = slice(part.first, part.stop)
    reference, teacher = row.reference_logprobs, row.teacher_logprobs
    return replace(
        row,
        part=part.number,
        prompt_ids=part.prompt_ids.astype(np.int32),
        token_ids=row.token_ids[span],
        loss_mask=row.loss_mask[span],
        sampler_logprobs=row.sampler_logprobs[span],
        versions=row.versions[span],
        reference_logprobs=None if reference is None else reference[span],
        teacher_logprobs=None if teacher is None else teacher[span],
        extra=_extra(row, span),
    )


def _extra(row: Row, span: slice) -> Extra:
    for name, values in row.extra.items():
        if len(values) != len(row.token_ids):
            raise HookError(
                f"extra {name!r} of response {row.sample} of group {row.group} spans its prompt, and its turns have "
                "prompts of their own (environment.rows: turns); give an array of the response's tokens, or set "
                "environment.rows: append"
            )
    return {name: values[span] for name, values in row.extra.items()}


def token_rows(group: Group, index: int) -> list[TokenRow]:
    """Return the rows of a response as a forward pass needs them, in the order of ``cut_row``."""
    made = group.completions_G[index]
    ids = made.token_ids.astype(np.int32)
    parts = parts_of(made.turns)
    if not parts:
        return [TokenRow(group.id, group.prompt.token_ids.astype(np.int32), ids)]
    return [TokenRow(group.id, part.prompt_ids.astype(np.int32), ids[part.first : part.stop]) for part in parts]


def joined_logprobs(
    responses: Sequence[tuple[Group, int]], arrays: Sequence[FloatArray]
) -> dict[tuple[int, int], FloatArray]:
    """Return log-probabilities [response tokens] by (group, index); 0 at tokens that are in no row.

    Args:
        responses: those that were asked for.
        arrays: of each row of theirs, in the order of ``token_rows``.
    """
    found, given = {}, iter(arrays)
    for group, index in responses:
        made = group.completions_G[index]
        parts = parts_of(made.turns)
        if not parts:
            found[group.id, index] = next(given)
            continue
        whole = np.zeros(len(made), np.float32)
        for part in parts:
            whole[part.first : part.stop] = next(given)
        found[group.id, index] = whole
    assert next(given, None) is None, "every row has one answer"
    return found
