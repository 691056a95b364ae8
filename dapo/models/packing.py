"""Micro-batches: rows laid out for one forward pass, packed (no padding, shared prompts) or padded.

A response's last token is never an input: nothing is predicted from it. The hidden state that predicts response token
t stands at token t - 1, and for t = 0 at the prompt's last token; ``PackedBatch.sources`` holds that shift, and no
other place in the program shifts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dapo.errors import LearnerError
from dapo.models.attention import AttentionContext
from dapo.models.copies import Copies
from dapo.models.packed_attention import PackedContext, Segment
from dapo.types.batch import IdArray, IntArray, TokenRow, by_prompt


@dataclass(slots=True)
class PackedBatch:
    """One micro-batch. N counts the response tokens of all its rows, in the order of ``rows``."""

    rows: list[TokenRow]  # in packed order: the rows of a group are neighbours
    order: list[int]  # rows[i] was given as row number order[i]
    input_ids: Tensor  # [1, tokens] packed, [rows, longest] padded
    position_ids: Tensor  # as input_ids
    attention_mask: Tensor | None  # padded only
    context: AttentionContext | None  # packed only
    sources: Copies  # [N] flat position of the hidden state that predicts each response token
    targets: Tensor  # [N] the response tokens
    lengths: list[int]  # response tokens of each row

    @property
    def row_of_token(self) -> Tensor:
        """[N] index into ``rows``."""
        lengths = torch.tensor(self.lengths, device=self.targets.device)
        return torch.repeat_interleave(lengths, output_size=len(self.targets))


def pack(rows: Sequence[TokenRow], device: torch.device) -> PackedBatch:
    """One row of tokens in which each group's prompt stands once, followed by its responses.

    Raises:
        LearnerError: A row has an empty prompt, so nothing predicts its first token.
    """
    ids: list[IdArray] = []
    segments: list[Segment] = []
    behind: list[int] = []  # tokens of its sequence before each segment
    order: list[int] = []
    cursor = 0
    for members in by_prompt(rows):
        prompt_ids = _prompt(rows[members[0]])
        prompt = (cursor, cursor + len(prompt_ids))
        segments.append(Segment(*prompt))
        ids.append(prompt_ids)
        behind.append(0)
        cursor = prompt[1]
        for index in members:
            inputs = rows[index].token_ids[:-1]
            segments.append(Segment(cursor, cursor + len(inputs), prompt))
            ids.append(inputs)
            behind.append(len(prompt_ids))
            cursor += len(inputs)
        order += members
    packed = [rows[index] for index in order]
    lengths = [len(row.token_ids) for row in packed]
    starts = np.array([segment.start for segment in segments])
    positions = np.arange(cursor) - np.repeat(starts - behind, [len(part) for part in ids])
    return PackedBatch(
        rows=packed,
        order=order,
        input_ids=_tensor(ids, device).unsqueeze(0),
        position_ids=_tensor([positions], device).unsqueeze(0),
        attention_mask=None,
        context=PackedContext(segments, device),
        sources=Copies(_predictors([s for s in segments if s.prompt is not None], lengths), device),
        targets=_tensor([row.token_ids for row in packed], device),
        lengths=lengths,
    )


def _predictors(responses: Sequence[Segment], lengths: Sequence[int]) -> IntArray:
    """[N] where each response token is predicted: the first at its prompt's last token, token t at token t - 1."""
    first = np.cumsum([0, *lengths])[:-1]  # of each response, among all response tokens
    found = np.arange(sum(lengths)) + np.repeat([s.start - 1 for s in responses] - first, lengths)
    there = [number for number, length in enumerate(lengths) if length]
    found[first[there]] = [s.prompt[1] - 1 for s in map(responses.__getitem__, there) if s.prompt is not None]
    return found


def pad(rows: Sequence[TokenRow], device: torch.device, pad_token_id: int) -> PackedBatch:
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
        sources=Copies(_joined(predictors), device),
        targets=_tensor([row.token_ids for row in rows], device),
        lengths=[len(row.token_ids) for row in rows],
    )


def _prompt(row: TokenRow) -> IdArray:
    if len(row.prompt_ids) == 0:
        raise LearnerError(
            f"a row of group {row.group} has an empty prompt: nothing predicts its first token; "
            "give every prompt at least one token (a begin-of-sequence token will do)"
        )
    return row.prompt_ids


def _tensor(arrays: Sequence[IdArray], device: torch.device) -> Tensor:
    return torch.from_numpy(_joined(arrays)).to(device)


def _joined(arrays: Sequence[IdArray]) -> IntArray:
    return (np.concatenate(arrays) if arrays else np.empty(0)).astype(np.int64, copy=False)
