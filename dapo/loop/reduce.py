"""From the optimiser steps of one training step to one row of metrics; every key names its reduction."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dapo.contracts.types import Group, Metrics

# Means over an optimiser step's loss tokens are averaged over all loss tokens of the training step.
_TOKEN_MEANS = (
    "train/entropy",
    "train/approx_kl",
    "train/ratio_mean",
    "train/clip_low",
    "train/clip_high",
    "train/clip_dual",
    "train/gap_mean",
    "train/gap_kl",
    "train/gap_mean_current",
    "train/gap_kl_current",
    "train/gap_mean_older",
    "train/gap_kl_older",
    "train/correction_mean",
    "train/correction_share",
    "train/clip_high_probability",
)
_MEANS = ("train/loss", "train/grad_norm", "train/loss_tokens")
_SUMS = ("train/skipped_steps", "train/empty_steps", "train/micro_batches", "train/packed_tokens")
_MAXIMA = ("train/ratio_max", "train/gap_max", "train/gap_max_current", "train/gap_max_older")
_MINIMA = ("train/ratio_min",)


def reduce_updates(updates: Sequence[Metrics]) -> Metrics:
    """Metrics of a training step from those of its optimiser steps; a nan is left out of the mean."""
    out: Metrics = {"train/optimizer_steps": len(updates)}
    if not updates:
        return out
    tokens = [update["train/loss_tokens"] for update in updates]
    for key in sorted({key for update in updates for key in update}):
        pairs = [(update[key], n) for update, n in zip(updates, tokens, strict=True) if _there(update, key)]
        values = [value for value, _ in pairs]
        if not values:
            out[key] = math.nan
        elif key in _TOKEN_MEANS:
            total = sum(n for _, n in pairs)
            out[key] = sum(value * n for value, n in pairs) / total if total else math.nan
        elif key in _SUMS:
            out[key] = sum(values)
        elif key in _MAXIMA:
            out[key] = max(values)
        elif key in _MINIMA:
            out[key] = min(values)
        elif key in _MEANS or key.startswith("custom/"):
            out[key] = sum(values) / len(values)
        else:
            raise KeyError(f"no reduction is stated for {key!r}; add it to dapo/loop/reduce.py")
    norms = [update["train/grad_norm"] for update in updates if _there(update, "train/grad_norm")]
    out["train/grad_norm_max"] = max(norms, default=math.nan)
    return out


def _there(update: Metrics, key: str) -> bool:
    return key in update and not math.isnan(update[key])


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
