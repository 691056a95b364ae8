"""Micro-batches: rows laid out for one forward pass, packed (no padding, shared prompts) or padded.

A response's last token is never an input: nothing is predicted from it. The hidden state that predicts response token
t stands at token t - 1, and for t = 0 at the prompt's last token; ``PackedBatch.predictors`` holds that shift, and no
other place in the program shifts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dapo.contracts.types import IntArray, TrainRow
from dapo.errors import LearnerError
from dapo.models.packed_attention import PackedContext, Segment


@dataclass(slots=True)
class PackedBatch:
    """One micro-batch. N counts the response tokens of all its rows, in the order of ``rows``."""

    rows: list[TrainRow]  # in packed order: the rows of a group are neighbours
    order: list[int]  # rows[i] was given as row number order[i]
    input_ids: Tensor  # [1, tokens] packed, [rows, longest] padded
    position_ids: Tensor  # as input_ids
    attention_mask: Tensor | None  # padded only
    context: PackedContext | None  # packed only
    predictors: Tensor  # [N] flat position of the hidden state that predicts each response token
    targets: Tensor  # [N] the response tokens
    lengths: list[int]  # response tokens of each row

    @property
    def row_of_token(self) -> Tensor:
        """[N] index into ``rows``."""
        lengths = torch.tensor(self.lengths, device=self.targets.device)
        return torch.repeat_interleave(lengths, output_size=len(self.targets))


def pack(rows: Sequence[TrainRow], device: torch.device) -> PackedBatch:
    """One row of tokens in which each group's prompt stands once, followed by its responses.

    Raises:
        LearnerError: A row has an empty prompt, so nothing predicts its first token.
    """
    ids: list[IntArray] = []
    positions: list[IntArray] = []
    predictors: list[IntArray] = []
    segments: list[Segment] = []
    order: list[int] = []
    cursor = 0
    for members in _by_prompt(rows):
        prompt_ids = _prompt(rows[members[0]])
        prompt = (cursor, cursor + len(prompt_ids))
        segments.append(Segment(*prompt))
        ids.append(prompt_ids)
        positions.append(np.arange(len(prompt_ids)))
        cursor = prompt[1]
        for index in members:
            inputs = rows[index].token_ids[:-1]
            order.append(index)
            segments.append(Segment(cursor, cursor + len(inputs), prompt))
            ids.append(inputs)
            positions.append(np.arange(len(prompt_ids), len(prompt_ids) + len(inputs)))
            if len(rows[index].token_ids):
                predictors.append(np.concatenate([[prompt[1] - 1], np.arange(cursor, cursor + len(inputs))]))
            cursor += len(inputs)
    packed = [rows[index] for index in order]
    return PackedBatch(
        rows=packed,
        order=order,
        input_ids=_tensor(ids, device).unsqueeze(0),
        position_ids=_tensor(positions, device).unsqueeze(0),
        attention_mask=None,
        context=PackedContext(segments, device),
        predictors=_tensor(predictors, device),
        targets=_tensor([row.token_ids for row in packed], device),
        lengths=[len(row.token_ids) for row in packed],
    )


def pad(rows: Sequence[TrainRow], device: torch.device, pad_token_id: int) -> PackedBatch:
    """Right-padded rows for the model's own attention: each row is its prompt and its response without the last token.

    Raises:
        LearnerError: A row has an empty prompt, so nothing predicts its first token.
    """
    sequences = [np.concatenate([_prompt(row), row.token_ids[:-1]]) for row in rows]
    longest = max(len(sequence) for sequence in sequences)
    ids = np.full((len(rows), longest), pad_token_id, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    predictors = []
    for number, (row, sequence) in enumerate(zip(rows, sequences, strict=True)):
        ids[number, : len(sequence)] = sequence
        mask[number, : len(sequence)] = 1
        first = number * longest + len(row.prompt_ids) - 1
        predictors.append(np.arange(first, first + len(row.token_ids)))
    return PackedBatch(
        rows=list(rows),
        order=list(range(len(rows))),
        input_ids=torch.from_numpy(ids).to(device),
        position_ids=torch.arange(longest, device=device).expand(len(rows), -1),
        attention_mask=torch.from_numpy(mask).to(device),
        context=None,
        predictors=_tensor(predictors, device),
        targets=_tensor([row.token_ids for row in rows], device),
        lengths=[len(row.token_ids) for row in rows],
    )


def split(rows: Sequence[TrainRow], max_tokens: int, *, packed: bool = True) -> list[list[int]]:
    """Indices of the rows of each micro-batch, at most ``max_tokens`` input tokens each.

    Packed, a group stays together where it fits, so its prompt is computed once; a larger group is divided. Padded,
    rows of similar length come together and the padding counts. A row over the limit is a micro-batch of its own.
    """
    return _split_packed(rows, max_tokens) if packed else _split_padded(rows, max_tokens)


def _split_packed(rows: Sequence[TrainRow], max_tokens: int) -> list[list[int]]:
    batches: list[list[int]] = []
    used = max_tokens + 1  # the first row opens a micro-batch
    for members in _by_prompt(rows):
        prompt = len(rows[members[0]].prompt_ids)
        whole = prompt + sum(_inputs(rows[index]) for index in members)
        opened = used + whole > max_tokens  # a group that does not fit behind the others starts a new micro-batch
        for number, index in enumerate(members):
            cost = _inputs(rows[index]) + (prompt if number == 0 else 0)
            if (opened and number == 0) or used + cost > max_tokens:
                batches.append([])
                used, cost = 0, prompt + _inputs(rows[index])
            batches[-1].append(index)
            used += cost
    return batches


def _split_padded(rows: Sequence[TrainRow], max_tokens: int) -> list[list[int]]:
    lengths = [len(row.prompt_ids) + _inputs(row) for row in rows]
    batches: list[list[int]] = []
    for index in sorted(range(len(rows)), key=lambda i: -lengths[i]):  # the first of a micro-batch is its longest
        if not batches or (len(batches[-1]) + 1) * lengths[batches[-1][0]] > max_tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def _by_prompt(rows: Sequence[TrainRow]) -> Iterable[list[int]]:
    """Row indices by group, in order of first appearance. Rows of one group with unequal prompts do not share."""
    groups: dict[tuple[int, bytes], list[int]] = {}
    for index, row in enumerate(rows):
        groups.setdefault((row.group, row.prompt_ids.tobytes()), []).append(index)
    return groups.values()


def _inputs(row: TrainRow) -> int:
    return max(len(row.token_ids) - 1, 0)


def _prompt(row: TrainRow) -> IntArray:
    if len(row.prompt_ids) == 0:
        raise LearnerError(
            f"a row of group {row.group} has an empty prompt: nothing predicts its first token; "
            "give every prompt at least one token (a begin-of-sequence token will do)"
        )
    return row.prompt_ids


def _tensor(arrays: Sequence[IntArray], device: torch.device) -> Tensor:
    joined = np.concatenate(arrays) if arrays else np.empty(0)
    return torch.from_numpy(joined.astype(np.int64, copy=False)).to(device)
