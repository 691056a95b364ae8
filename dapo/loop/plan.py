"""From groups to rows: minibatches of whole groups, and a weight per token computed here, by the driver."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dapo.loop.algorithm import Algorithm
from dapo.types.batch import BoolArray, FloatArray, Group, Row


def split_minibatches(groups_P: Sequence[Group], minibatch_prompts: int | None) -> list[list[Group]]:
    """Whole groups per optimiser step, in order. A smaller last one only when a partial batch is trained."""
    size = minibatch_prompts or max(1, len(groups_P))
    return [list(groups_P[i : i + size]) for i in range(0, len(groups_P), size)]


def minibatch_rows(
    groups: Sequence[Group],
    algorithm: Algorithm,
    traced: Collection[int] = (),
    references: Mapping[tuple[int, int], FloatArray] | None = None,
) -> list[Row]:
    """Rows of one optimiser step.

    Args:
        groups: with advantages.
        algorithm: gives the loss mask and the weights.
        traced: ids of the groups whose tokens the learner keeps on record.
        references: log-probabilities under a reference, by (group, index of the response).
    """
    members = [(group, index) for group in groups for index in range(len(group.completions_G))]
    masks = [mask for group in groups for mask in algorithm.loss_masks(group)]
    weights_R = algorithm.loss_weights(masks, np.array([group.id for group, _ in members], dtype=np.int64))
    rows = []
    prompts = {group.id: group.prompt.token_ids.astype(np.int32) for group in groups}
    for (group, index), mask, weight in zip(members, masks, _one_number_each(masks, weights_R), strict=True):
        assert group.advantages_G is not None, "assign_advantages comes first"
        completion = group.completions_G[index]
        rows.append(
            Row(
                group=group.id,
                sample=index,
                prompt_ids=prompts[group.id],
                token_ids=completion.token_ids.astype(np.int32),
                loss_mask=mask,
                sampler_logprobs=completion.logprobs,
                versions=completion.versions,
                loss_weight=weight,
                advantage=float(group.advantages_G[index]),
                reference_logprobs=None if references is None else references.get((group.id, index)),
                traced=group.id in traced,
            )
        )
    if algorithm.marks is None:
        return rows
    return [replace(row, marked=marked) for row, marked in zip(rows, algorithm.marks(rows), strict=True)]


def _one_number_each(masks: Sequence[BoolArray], weights_R: Sequence[FloatArray]) -> list[float]:
    """Every reduction gives the loss tokens of a row one weight; 0 of a row without any."""
    if not masks:
        return []
    lengths = np.array([len(mask) for mask in masks])
    places = np.flatnonzero(np.concatenate(masks))  # of loss tokens, in one long row
    weights, row_of = np.concatenate(weights_R)[places], np.repeat(np.arange(len(masks)), lengths)[places]
    found = np.zeros(len(masks), dtype=weights.dtype)
    found[row_of] = weights
    assert (found[row_of] == weights).all(), "a reduction weighs the tokens of a row alike"
    numbers: list[float] = found.tolist()
    return numbers
