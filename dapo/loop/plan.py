"""From groups to rows: minibatches of whole groups, and a weight per token computed here, by the driver."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from dapo.contracts.types import Group, TrainRow
from dapo.loop.algorithm import Algorithm


def split_minibatches(groups_P: Sequence[Group], minibatch_prompts: int | None) -> list[list[Group]]:
    """Whole groups per optimiser step, in order. A smaller last one only when a partial batch is trained."""
    size = minibatch_prompts or max(1, len(groups_P))
    return [list(groups_P[i : i + size]) for i in range(0, len(groups_P), size)]


def minibatch_rows(
    groups: Sequence[Group], algorithm: Algorithm, version: int, traced: Collection[int] = ()
) -> list[TrainRow]:
    """Rows of one optimiser step.

    Args:
        groups: with advantages.
        algorithm: gives the loss mask and the weights.
        version: of the weights about to be trained.
        traced: ids of the groups whose tokens the learner keeps on record.
    """
    masks, rows = [], []
    for group in groups:
        assert group.advantages_G is not None, "assign_advantages comes first"
        for index, completion in enumerate(group.completions_G):
            mask = algorithm.loss_mask(group, index)
            masks.append(mask)
            rows.append(
                TrainRow(
                    group=group.id,
                    prompt_ids=group.prompt.token_ids,
                    token_ids=completion.token_ids,
                    weights=np.zeros(len(completion), dtype=np.float32),
                    advantages=np.full(len(completion), group.advantages_G[index], dtype=np.float32),
                    old_logprobs=completion.logprobs,
                    loss_mask=mask,
                    sampler_logprobs=completion.logprobs,
                    current=completion.versions == version,
                    sample=index,
                    traced=group.id in traced,
                )
            )
    weights_R = algorithm.weights(masks, np.array([row.group for row in rows], dtype=np.int64))
    for row, weights in zip(rows, weights_R, strict=True):
        row.weights = weights
    return rows
