"""What the trained groups of a step look like after shaping."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dapo.types.batch import Group, Metrics


def trained_metrics(groups_P: Sequence[Group], loss_tokens_R: Sequence[int], generated_tokens: float) -> Metrics:
    """What the trained groups look like after shaping: rewards, advantages, lengths, penalties.

    Args:
        groups_P: with advantages.
        loss_tokens_R: tokens with loss of each of their responses.
        generated_tokens: of the step.
    """
    loss_tokens = sum(loss_tokens_R)
    rewards = _joined([g.rewards_G for g in groups_P])
    voters = _joined([g.voters_G for g in groups_P]).astype(bool)
    advantages = _joined([g.advantages_G for g in groups_P])
    penalties = _joined([g.penalties_G for g in groups_P])
    shaped = rewards[~np.isnan(rewards)]
    return {
        "reward/shaped_mean": _mean(shaped),
        "reward/shaped_std": float(shaped.std()) if len(shaped) else math.nan,
        "reward/advantage_abs_mean": _mean(np.abs(advantages[voters])),
        "response/length_trained_mean": _mean(_joined([g.lengths() for g in groups_P])),
        "response/truncated_share_trained": _mean(_joined([g.truncated() for g in groups_P])),
        "response/penalty_mean": _mean(penalties),
        "response/penalized": _mean(penalties < 0),
        "response/voters": _mean(voters),
        "response/with_loss": _mean(np.asarray(loss_tokens_R) > 0),
        "sampling/trained_tokens": loss_tokens,
        "sampling/trained_share": loss_tokens / generated_tokens if generated_tokens else math.nan,
    }


def _joined(arrays: Sequence[np.ndarray | None]) -> np.ndarray:
    present = [array for array in arrays if array is not None]
    return np.concatenate(present) if present else np.zeros(0)


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan
