"""What the reference thinks of the responses that are about to be trained, and the KL that is taken off rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dapo.algorithms.shaping import kl_in_reward
from dapo.loop.algorithm import Algorithm
from dapo.types.batch import BoolArray, Completion, FloatArray, Group, Metrics, RatioAgainst, TokenRow
from dapo.types.protocols import Learner

References = dict[tuple[int, int], FloatArray]
"""Log-probabilities [response tokens] under the reference, by (group, index of the response)."""


def reference_logprobs(groups_P: Sequence[Group], algorithm: Algorithm, learner: Learner) -> References:
    """Of every response that votes or carries loss; {} where the algorithm needs no reference."""
    if not algorithm.needs_reference:
        return {}
    return _ask(learner, groups_P, algorithm, "reference")


def subtract_kl(
    groups_P: Sequence[Group], references: References, algorithm: Algorithm, learner: Learner, against: RatioAgainst
) -> Metrics:
    """Take ``algorithm.kl_in_reward`` x the KL of each voter's response off its shaped reward.

    The policy's side is whatever the ratio runs against: the sampler's numbers (also where they are interpolated, which
    is to cost no forward pass), or the learner's.
    """
    if not algorithm.kl_in_reward:
        return {}
    own = _ask(learner, groups_P, algorithm, "policy") if against == "learner" else {}
    taken: list[float] = []
    for group in groups_P:
        assert group.rewards_G is not None, "shape_group comes first"
        assert group.voters_G is not None
        change = np.zeros(len(group.completions_G))
        for index in np.flatnonzero(group.voters_G):
            key, completion = (group.id, int(index)), group.completions_G[index]
            change[index] = kl_in_reward(
                own.get(key, completion.logprobs),
                references[key],
                _generated(completion),
                coefficient=algorithm.kl_in_reward,
            )
        group.rewards_G = group.rewards_G + change
        taken += change[group.voters_G].tolist()
    return {"reward/kl_penalty": float(np.mean(taken)) if taken else 0.0}


def _ask(learner: Learner, groups_P: Sequence[Group], algorithm: Algorithm, of: str) -> References:
    wanted = [
        (group, index)
        for group in groups_P
        for index, mask in enumerate(algorithm.loss_masks(group))
        if algorithm.votes(group, index) or mask.any()
    ]
    if not wanted:
        return {}
    rows = [
        TokenRow(
            group.id,
            group.prompt.token_ids.astype(np.int32),
            group.completions_G[index].token_ids.astype(np.int32),
        )
        for group, index in wanted
    ]
    found = learner.logprobs(rows, "reference" if of == "reference" else "policy").result()
    return {(group.id, index): values for (group, index), values in zip(wanted, found, strict=True)}


def _generated(completion: Completion) -> BoolArray:
    return np.ones(len(completion), dtype=np.bool_) if completion.generated is None else completion.generated
