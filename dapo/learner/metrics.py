"""What one optimiser step reports about its tokens; keys as in ``dapo.contracts.glossary``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dapo.algorithms.correction import tokens_corrected
from dapo.algorithms.diagnostics import merge_gaps, sampler_gap
from dapo.algorithms.ratio import log_ratio
from dapo.contracts.types import BoolArray, FloatArray, Metrics, TokenTrace, TrainRow

BUILT_IN_FLAGS = ("clip_low", "clip_high", "clip_dual")


def loss_mask(row: TrainRow) -> BoolArray:
    """Tokens of a row that carry loss."""
    return row.weights != 0 if row.loss_mask is None else row.loss_mask


@dataclass(slots=True)
class TokenRecord:
    """Every token of an optimiser step, gathered micro-batch by micro-batch; all arrays are [tokens]."""

    rows: list[TrainRow] = field(default_factory=list)
    logprobs: list[NDArray] = field(default_factory=list)
    entropy: list[NDArray] = field(default_factory=list)
    weighted_loss: list[NDArray] = field(default_factory=list)
    flags: dict[str, list[NDArray]] = field(default_factory=dict)

    def add(
        self,
        rows: Sequence[TrainRow],
        logprobs: Tensor,
        entropy: Tensor,
        weighted_loss: Tensor,
        flags: Mapping[str, Tensor],
    ) -> None:
        """One micro-batch: its rows in packed order, and what the forward pass and the loss said of their tokens."""
        self.rows.extend(rows)
        self.logprobs.append(_numpy(logprobs))
        self.entropy.append(_numpy(entropy))
        self.weighted_loss.append(_numpy(weighted_loss))
        for name, flag in flags.items():
            self.flags.setdefault(name, []).append(_numpy(flag))

    def metrics(self, *, weights_moved: bool) -> Metrics:
        """Means over tokens with loss.

        Args:
            weights_moved: The weights were updated since they were published. Where the ratio runs against the
                sampler's own numbers, the gap between sampler and learner can then no longer be told from learning.
        """
        mask = np.concatenate([loss_mask(row) for row in self.rows])
        logprobs = np.concatenate(self.logprobs)[mask].astype(np.float64)
        old = np.concatenate([_old(row) for row in self.rows])[mask]
        log_ratios = log_ratio(logprobs, old)
        ratios = np.exp(log_ratios)
        out: Metrics = {
            "train/loss": float(sum(loss.sum(dtype=np.float64) for loss in self.weighted_loss)),
            "train/entropy": float(np.concatenate(self.entropy)[mask].mean(dtype=np.float64)),
            "train/approx_kl": float((np.expm1(log_ratios) - log_ratios).mean()),
            "train/ratio_mean": float(ratios.mean()),
            "train/ratio_max": float(ratios.max()),
            "train/ratio_min": float(ratios.min()),
            "train/loss_tokens": int(mask.sum()),
            **self._correction(mask),
        }
        for name, parts in self.flags.items():
            flag = np.concatenate(parts)[mask]
            out[f"train/{name}" if name in BUILT_IN_FLAGS else f"custom/{name}"] = float(flag.mean())
            if name == "clip_high":
                out["train/clip_high_probability"] = float(np.exp(logprobs[flag]).mean()) if flag.any() else math.nan
        return out | self._gaps(mask, logprobs, old, weights_moved)

    def traces(self) -> list[TokenTrace]:
        """What is known of each token of the traced rows; copies, so the rest of the record can go."""
        chosen = [number for number, row in enumerate(self.rows) if row.traced]
        if not chosen:
            return []
        lengths = np.array([len(row.token_ids) for row in self.rows])
        wanted = np.repeat([row.traced for row in self.rows], lengths)
        rows = [self.rows[number] for number in chosen]
        logprobs = np.concatenate(self.logprobs)[wanted].astype(np.float32)
        old = np.concatenate([_old(row) for row in rows]).astype(np.float32)
        ratio = np.exp(log_ratio(logprobs, old)).astype(np.float32)
        entropy = np.concatenate(self.entropy)[wanted].astype(np.float32)
        clip = self._clip(wanted)
        ends = np.cumsum(lengths[chosen])
        parts = [slice(end - len(row.token_ids), end) for row, end in zip(rows, ends, strict=True)]
        return [
            TokenTrace(
                group=row.group,
                sample=row.sample,
                logprobs=logprobs[part],
                old_logprobs=old[part],
                ratio=ratio[part],
                entropy=entropy[part],
                clip=None if clip is None else clip[part],
            )
            for row, part in zip(rows, parts, strict=True)
        ]

    def _clip(self, wanted: BoolArray) -> NDArray[np.int8] | None:
        """1 + the index in ``BUILT_IN_FLAGS`` of the bound that cut each wanted token, 0 where none did."""
        if not any(name in self.flags for name in BUILT_IN_FLAGS):
            return None
        clip = np.zeros(int(wanted.sum()), dtype=np.int8)
        for number, name in enumerate(BUILT_IN_FLAGS, 1):
            if name in self.flags:
                clip[np.concatenate(self.flags[name])[wanted].astype(np.bool_)] = number
        return clip

    def _correction(self, mask: BoolArray) -> Metrics:
        if all(row.correction is None for row in self.rows):
            return {"train/correction_mean": 1.0, "train/correction_share": 0.0}
        parts = [np.ones(len(row.token_ids)) if row.correction is None else row.correction for row in self.rows]
        changed = sum(
            tokens_corrected(row.correction, _old(row), row.sampler_logprobs, loss_mask(row))
            for row in self.rows
            if row.sampler_logprobs is not None
        )
        return {
            "train/correction_mean": float(np.concatenate(parts)[mask].mean()),
            "train/correction_share": changed / int(mask.sum()),
        }

    def _gaps(self, mask: BoolArray, logprobs: NDArray, old: NDArray, weights_moved: bool) -> Metrics:
        """Sampler against learner, for tokens of the present weights and for older ones apart."""
        recomputed = np.concatenate(
            [np.full(len(row.token_ids), row.sampler_logprobs is not None) for row in self.rows]
        )[mask]
        if weights_moved and not recomputed.all():
            return {}
        sampler = np.concatenate(
            [_old(row) if row.sampler_logprobs is None else row.sampler_logprobs for row in self.rows]
        )[mask]
        learner = np.where(recomputed, old, logprobs)
        current = np.concatenate(
            [np.ones(len(row.token_ids), dtype=np.bool_) if row.current is None else row.current for row in self.rows]
        )[mask]
        out: Metrics = {}
        for suffix, chosen in (("", np.ones_like(current)), ("_current", current), ("_older", ~current)):
            gap = merge_gaps([sampler_gap(learner, sampler, chosen)])
            if gap["tokens"]:
                out[f"train/gap_mean{suffix}"] = gap["mean_abs"]
                out[f"train/gap_kl{suffix}"] = gap["k3"]
                out[f"train/gap_max{suffix}"] = gap["max"]
        return out


def _old(row: TrainRow) -> FloatArray:
    assert row.old_logprobs is not None, "the learner fills in the current ones"
    return row.old_logprobs


def _numpy(tensor: Tensor) -> NDArray:
    array: NDArray = tensor.detach().cpu().numpy()
    return array
