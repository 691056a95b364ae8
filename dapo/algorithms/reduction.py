"""Reductions as weights: how the losses of single tokens become one number.

The driver turns lengths, masks and groups of one optimiser step into a weight per row before anything is sent to the
learner. Every loss token of a row has its row's weight, and the learner's loss is the plain sum of weight x L. So
micro-batches, ranks, packing and row order cannot change the gradient, and no second place holds a denominator.
(``micro_batch_mean`` alone depends on its split, by definition.) Suffix _R: one entry per row, which is one response.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

Reduction = Literal["token_mean", "prompt_mean", "sequence_mean", "sequence_sum", "constant", "micro_batch_mean"]


def loss_weights(
    loss_masks: Sequence[ArrayLike],
    groups: ArrayLike,
    reduction: Reduction,
    *,
    constant_length: float | None = None,
    micro_batches: Sequence[Sequence[int]] | None = None,
    micro_batch_weighted: bool = True,
) -> NDArray[np.float32]:
    """Compute the weight that each loss token of a row has in one optimiser step.

    With M the loss masks and N the number of True entries in them, the loss of the step is, by ``reduction``:

    ==================  ====================================================================================
    token_mean          sum(L M) / N
    prompt_mean         mean over groups of sum(L M) of the group / loss tokens of the group (DAPO eq. 8, literally)
    sequence_mean       mean over rows of the row's token mean (GRPO)
    sequence_sum        mean over rows of the row's token sum
    constant            sum(L M) / (number of rows x ``constant_length``) (Dr. GRPO)
    micro_batch_mean    mean over ``micro_batches`` of the micro-batch's token mean, weighted by its number of rows
                        (verl <= 0.6) or, with ``micro_batch_weighted=False``, not (ms-swift's bnpo)
    ==================  ====================================================================================

    Rows, groups and micro-batches without a loss token are not counted, except that ``constant`` counts every row.

    Args:
        loss_masks: one bool array [tokens] per row; True where the token carries loss, after all masks.
        groups: int [rows], the id of each row's group. Read by ``prompt_mean`` only.
        reduction: a name from the table.
        constant_length: for ``constant``: the fixed length in tokens.
        micro_batches: for ``micro_batch_mean``: row numbers of each micro-batch; each row exactly once.
        micro_batch_weighted: for ``micro_batch_mean``.

    Returns:
        float32 [rows], 0 for a row without a loss token.

    Raises:
        ValueError: unknown reduction, a setting it needs is missing, or lengths that do not fit together.
    """
    masks = [np.asarray(mask, dtype=np.bool_) for mask in loss_masks]
    groups_R = np.asarray(groups)
    if groups_R.shape != (len(masks),):
        raise ValueError(f"groups has shape {groups_R.shape} for {len(masks)} rows; give one group id per row")
    counts_R = np.array([np.count_nonzero(mask) for mask in masks], dtype=np.int64)
    if reduction == "micro_batch_mean":
        scale_R = _micro_batch_mean(counts_R, micro_batches, micro_batch_weighted)
    else:
        scale_R = _scale(counts_R, groups_R, reduction, constant_length)
    return np.where(counts_R > 0, scale_R, 0.0).astype(np.float32)


def _scale(
    counts_R: NDArray[np.int64], groups_R: NDArray[np.int64], reduction: Reduction, constant_length: float | None
) -> NDArray[np.float64]:
    """Weight of each row's loss tokens, of which it has ``counts_R``."""
    rows, tokens, rows_with_loss = len(counts_R), int(counts_R.sum()), int(np.count_nonzero(counts_R))
    match reduction:
        case "token_mean":
            return np.full(rows, 1.0 / max(tokens, 1))
        case "prompt_mean":
            return _prompt_mean(counts_R, groups_R)
        case "sequence_mean":
            return _inverse(counts_R * rows_with_loss)
        case "sequence_sum":
            return np.full(rows, 1.0 / max(rows_with_loss, 1))
        case "constant":
            if constant_length is None or constant_length <= 0:
                raise ValueError(f"reduction 'constant' needs constant_length > 0 tokens, got {constant_length}")
            return np.full(rows, 1.0 / (max(rows, 1) * constant_length))
        case _:
            raise ValueError(f"unknown reduction {reduction!r}; expected one of {', '.join(get_args(Reduction))}")


def _prompt_mean(counts_R: NDArray[np.int64], groups_R: NDArray[np.int64]) -> NDArray[np.float64]:
    _, group_of_row = np.unique(groups_R, return_inverse=True)
    tokens_P = np.bincount(group_of_row, weights=counts_R)
    return _inverse(tokens_P * np.count_nonzero(tokens_P))[group_of_row]


def _micro_batch_mean(
    counts_R: NDArray[np.int64], micro_batches: Sequence[Sequence[int]] | None, weighted: bool
) -> NDArray[np.float64]:
    if micro_batches is None:
        raise ValueError("reduction 'micro_batch_mean' is defined by its split; give micro_batches")
    rows = [row for batch in micro_batches for row in batch]
    if sorted(rows) != list(range(len(counts_R))):
        raise ValueError(f"micro_batches must hold each of the {len(counts_R)} rows exactly once, got rows {rows}")
    tokens_M = np.array([counts_R[list(batch)].sum() for batch in micro_batches])
    rows_M = np.array([np.count_nonzero(counts_R[list(batch)]) for batch in micro_batches])
    votes_M = rows_M if weighted else np.minimum(rows_M, 1)
    scale_M = votes_M * _inverse(tokens_M * votes_M.sum())
    scale_R = np.zeros(len(counts_R))
    for batch, scale in zip(micro_batches, scale_M, strict=True):
        scale_R[list(batch)] = scale
    return scale_R


def _inverse(counts: NDArray) -> NDArray[np.float64]:
    """1 / counts, and 0 where a count is 0: what is not there weighs nothing."""
    inverses: NDArray[np.float64] = np.zeros(counts.shape)
    np.divide(1.0, counts, out=inverses, where=counts > 0)
    return inverses
