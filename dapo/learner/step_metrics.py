"""Metrics of the tokens of one optimizer step; ``dapo.metrics.tokens`` has the formulas."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dapo.algorithms.ratio import log_ratio
from dapo.metrics.stats import Stats, merge, over, stat
from dapo.metrics.tokens import CLIP_FLAGS, TOKEN_METRICS, LossTokens
from dapo.types.batch import BoolArray, FloatArray, Row, TokenTrace


@dataclass(frozen=True, slots=True)
class Rated:
    """A row with what its ratio runs against, once that is known."""

    row: Row
    old_logprobs: FloatArray
    correction: FloatArray | None  # importance correction w of each token; None is 1
    corrected: BoolArray | None = None  # loss tokens that a bound acted on; None: no token


def corrections(rated: Sequence[Rated]) -> FloatArray:
    """Return the importance corrections of all tokens of the rows, float32 [tokens]; 1 where a row has none."""
    if all(r.correction is None for r in rated):
        return np.ones(sum(len(r.row.token_ids) for r in rated), np.float32)
    return np.concatenate(
        [np.ones(len(r.row.token_ids), np.float32) if r.correction is None else r.correction for r in rated]
    )


@dataclass(slots=True)
class TokenRecord:
    """The tokens of some passes, gathered micro-batch by micro-batch; all arrays are [tokens].

    Args:
        version: Of the weights that are trained: tokens of this version are the current ones.
        old_is_learners: The old log-probabilities are the learner's, from before the first optimiser step.
        weights_moved: The weights were updated since they were published. Where the ratio runs against the sampler's
            own numbers, the gap between sampler and learner can then no longer be separated from learning.
    """

    version: int
    old_is_learners: bool
    weights_moved: bool
    rated: list[Rated] = field(default_factory=list)
    logprobs: list[NDArray] = field(default_factory=list)
    entropy: list[NDArray] = field(default_factory=list)
    loss: float = 0.0  # summed over tokens
    flags: dict[str, list[NDArray]] = field(default_factory=dict)

    def add(
        self,
        rated: Sequence[Rated],
        logprobs: Tensor,
        entropy: Tensor,
        weighted_loss: Tensor,
        flags: Mapping[str, Tensor],
    ) -> None:
        """One micro-batch: its rows in packed order, and what the forward pass and the loss said of their tokens."""
        self.rated.extend(rated)
        self.logprobs.append(_numpy(logprobs))
        self.entropy.append(_numpy(entropy))
        self.loss += float(_numpy(weighted_loss).sum(dtype=np.float64))
        for name, flag in flags.items():
            self.flags.setdefault(name, []).append(_numpy(flag))

    def stats(self) -> Stats:
        """Return sums and counts over tokens with loss. The loss and N add up over passes and ranks, so
        ``dapo.learner.step`` counts them once an optimizer step."""
        if not self.rated:
            return {}
        tokens = self._loss_tokens()
        parts = [stat("train/loss", self.loss, 0), stat("train/loss_tokens", len(tokens.logprobs), 0)]
        for entry in TOKEN_METRICS:
            if (numbers := entry.formula(tokens)) is not None:
                parts.append(over(entry.metric.key, numbers))
        parts += [over(f"custom/{name}", flag) for name, flag in tokens.flags.items() if name not in CLIP_FLAGS]
        return merge(parts)

    def _loss_tokens(self) -> LossTokens:
        rows = [rated.row for rated in self.rated]
        mask = np.concatenate([row.loss_mask for row in rows])
        logprobs = np.concatenate(self.logprobs)[mask].astype(np.float64)
        old = np.concatenate([rated.old_logprobs for rated in self.rated])[mask]
        sampler = np.concatenate([row.sampler_logprobs for row in rows])[mask]
        moved = self.weights_moved and not self.old_is_learners
        gaps = None if moved else log_ratio(old if self.old_is_learners else logprobs, sampler)
        references = [row.reference_logprobs for row in rows if row.reference_logprobs is not None]
        return LossTokens(
            logprobs=logprobs,
            log_ratios=log_ratio(logprobs, old),
            entropy=np.concatenate(self.entropy)[mask].astype(np.float64),
            correction=corrections(self.rated)[mask].astype(np.float64),
            corrected=self._corrected()[mask],
            current=np.concatenate([row.versions for row in rows])[mask] == self.version,
            gaps=gaps,
            flags={name: np.concatenate(parts)[mask].astype(np.bool_) for name, parts in self.flags.items()},
            reference_gaps=log_ratio(np.concatenate(references)[mask], logprobs)
            if len(references) == len(rows)
            else None,
            teacher_gaps=_teacher_gaps(rows, mask, logprobs)
            if any(row.teacher_logprobs is not None for row in rows)
            else None,
        )

    def _corrected(self) -> BoolArray:
        if all(rated.correction is None for rated in self.rated):
            return np.zeros(sum(len(rated.row.token_ids) for rated in self.rated), dtype=np.bool_)
        return np.concatenate(
            [np.zeros(len(r.row.token_ids), np.bool_) if r.corrected is None else r.corrected for r in self.rated]
        )

    def traces(self) -> list[TokenTrace]:
        """Return copies of what is known of each token of the traced rows, so that the rest of the record can go."""
        chosen = [number for number, rated in enumerate(self.rated) if rated.row.traced]
        if not chosen:
            return []
        lengths = np.array([len(rated.row.token_ids) for rated in self.rated])
        wanted = np.repeat([rated.row.traced for rated in self.rated], lengths)
        traced = [self.rated[number] for number in chosen]
        logprobs = np.concatenate(self.logprobs)[wanted].astype(np.float32)
        old = np.concatenate([rated.old_logprobs for rated in traced]).astype(np.float32)
        ratio = np.exp(log_ratio(logprobs, old)).astype(np.float32)
        entropy = np.concatenate(self.entropy)[wanted].astype(np.float32)
        clip = self._clip(wanted)
        ends = np.cumsum(lengths[chosen])
        parts = [slice(end - len(r.row.token_ids), end) for r, end in zip(traced, ends, strict=True)]
        return [
            TokenTrace(
                group=rated.row.group,
                sample=rated.row.sample,
                logprobs=logprobs[part],
                old_logprobs=old[part],
                ratio=ratio[part],
                entropy=entropy[part],
                clip=None if clip is None else clip[part],
                part=rated.row.part,
            )
            for rated, part in zip(traced, parts, strict=True)
        ]

    def _clip(self, wanted: BoolArray) -> NDArray[np.int8] | None:
        """1 + the index in ``CLIP_FLAGS`` of the bound that cut each wanted token, 0 where none did."""
        if not any(name in self.flags for name in CLIP_FLAGS):
            return None
        clip = np.zeros(int(wanted.sum()), dtype=np.int8)
        for number, name in enumerate(CLIP_FLAGS, 1):
            if name in self.flags:
                clip[np.concatenate(self.flags[name])[wanted].astype(np.bool_)] = number
        return clip


def _numpy(tensor: Tensor) -> NDArray:
    array: NDArray = tensor.detach().cpu().numpy()
    return array


def _teacher_gaps(rows: Sequence[Row], mask: BoolArray, logprobs: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return log teacher - log policy of the tokens that a teacher judged; ``logprobs`` are those of ``mask``."""
    theirs = np.concatenate([row.teacher_or_nan() for row in rows])[mask]
    judged = ~np.isnan(theirs)
    return log_ratio(theirs[judged], logprobs[judged])
