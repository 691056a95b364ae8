"""A learner without torch: one number per token of a small vocabulary, moved by a policy gradient with momentum.

Its log-probabilities are those of a softmax over these numbers, whatever stands before a token, so a training step
takes microseconds and still moves what it should: by its rows, their weights and advantages and the learning rate. It
keeps the contract (tests/contracts/learner_contract.py), and counts what it was asked.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dapo.errors import CheckpointError, LearnerError
from dapo.metrics.stats import Stats, merge, over, stat
from dapo.metrics.tokens import TOKEN_METRICS, LossTokens
from dapo.types.batch import FloatArray, Learned, LearnStep, Of, Row, SavedFile, Ticket, TokenRow, TokenTrace
from dapo.types.protocols import Done, Handle

SCORES = "scores.weight"


class ScriptedLearner:
    """Keeps ``dapo.types.protocols.Learner``.

    Args:
        vocabulary: tokens beyond it are taken modulo.
        max_skipped_steps: gradients in a row that may not be finite.
        note: hears of every call before it is answered.

    Attributes:
        calls: what it was asked, in order: "learn", "logprobs", "publish", "save", ...
        steps: every ``LearnStep``.
        diverge: when set, no gradient is finite.
    """

    def __init__(
        self, vocabulary: int = 97, *, max_skipped_steps: int = 3, note: Callable[[str], None] = lambda call: None
    ) -> None:
        self.scores = np.sin(np.arange(vocabulary, dtype=np.float64))
        self.moments = np.zeros(vocabulary)
        self.max_skipped_steps, self.skipped_in_a_row = max_skipped_steps, 0
        self.calls: list[str] = []
        self._note = note
        self.steps: list[LearnStep] = []
        self.diverge = False
        self._weights_moved = False  # since the last publish
        self._reference = self._log_p()

    def learn(self, step: LearnStep) -> Done[Learned]:
        """One step of gradient descent with momentum per minibatch, on -sum(weight x A x log p)."""
        self._asked("learn")
        self.steps.append(step)
        stats: list[Stats] = []
        traces: list[TokenTrace] = []
        before = self._log_p()
        for rows, rate in zip(step.minibatches, step.learning_rates, strict=True):
            kept = [row for row in rows if row.loss_mask.any()]
            stats.append(_counts(empty=not kept))
            if not kept:
                continue
            log_p = self._log_p()
            against_own = step.ratio_against == "learner"
            olds = [self._of(before, row) if against_own else row.sampler_logprobs for row in kept]
            news = [self._of(log_p, row) for row in kept]
            compared = olds if against_own else None if self._weights_moved else news
            stats.append(self._said(kept, news, olds, compared, step.version))
            traces += [
                TokenTrace(row.group, row.sample, new, old.copy(), np.exp(new - old), self._entropy(log_p, row), None)
                for row, new, old in zip(kept, news, olds, strict=True)
                if row.traced
            ]
            stats.append(self._update(kept, np.exp(log_p), rate))
        return Done(Learned(merge(stats), traces))

    def logprobs(self, rows: Sequence[TokenRow], of: Of = "policy") -> Done[list[FloatArray]]:
        """The reference is the learner as it was made."""
        self._asked("logprobs" if of == "policy" else "reference")
        log_p = self._log_p() if of == "policy" else self._reference
        return Done([self._of(log_p, row) for row in rows])

    def rounding(self, rows: Sequence[TokenRow]) -> None:
        """Its numbers are exact."""

    def publish(self, version: int) -> Ticket:
        self._asked("publish")
        self._weights_moved = False
        return Ticket(version, "shared", "", (SCORES,))

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """CRC of the numbers; numpy has no bfloat16, so float16 stands for it."""
        self._asked("checksums")
        kinds = {"float32": np.float32, "bfloat16": np.float16}
        return {name: zlib.crc32(self.scores.astype(kinds[to])) for name, to in dtypes.items() if name == SCORES}

    def save(self, folder: Path) -> Done[list[SavedFile]]:
        self._asked("save")
        folder.mkdir(parents=True, exist_ok=True)
        np.savez(folder / "learner.npz", scores=self.scores, moments=self.moments)
        (folder / "state.json").write_text(json.dumps({"skipped_in_a_row": self.skipped_in_a_row}))
        contents = {path.name: path.read_bytes() for path in (folder / "learner.npz", folder / "state.json")}
        return Done([SavedFile(name, len(content), zlib.crc32(content)) for name, content in contents.items()])

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote.

        Raises:
            CheckpointError: the folder is incomplete, or of another vocabulary; nothing is changed.
        """
        self._asked("load")
        try:
            with np.load(folder / "learner.npz") as found:
                scores, moments = found["scores"], found["moments"]
            skipped = json.loads((folder / "state.json").read_text())["skipped_in_a_row"]
        except OSError as error:
            raise CheckpointError(f"{folder} is not a complete learner checkpoint ({error})") from error
        if scores.shape != self.scores.shape:
            raise CheckpointError(
                f"{folder} belongs to another model: vocabulary {len(scores)} there, {len(self.scores)} here"
            )
        self.scores, self.moments, self.skipped_in_a_row = scores, moments, skipped
        self._weights_moved = False

    def close(self) -> None:
        self._asked("close")

    def _asked(self, call: str) -> None:
        self.calls.append(call)
        self._note(call)

    # ------------------------------------------------------------------ the little model

    def _log_p(self) -> NDArray[np.float64]:
        """Log-probability of every token of the vocabulary."""
        top = self.scores.max()
        log_p: NDArray[np.float64] = self.scores - top - math.log(np.exp(self.scores - top).sum())
        return log_p

    def _of(self, log_p: NDArray[np.float64], row: TokenRow) -> FloatArray:
        return log_p[row.token_ids % len(log_p)].astype(np.float32)

    def _entropy(self, log_p: NDArray[np.float64], row: TokenRow) -> FloatArray:
        return np.full(len(row.token_ids), -(np.exp(log_p) * log_p).sum(), dtype=np.float32)

    def _said(
        self,
        rows: Sequence[Row],
        news: Sequence[FloatArray],
        olds: Sequence[FloatArray],
        compared: Sequence[FloatArray] | None,
        version: int,
    ) -> Stats:
        """``compared``: what the sampler's numbers are held against; None: the weights moved since they were made."""
        mask = np.concatenate([row.loss_mask for row in rows])
        new = np.concatenate(news)[mask].astype(np.float64)
        old = np.concatenate(olds)[mask].astype(np.float64)
        sampler = np.concatenate([row.sampler_logprobs for row in rows])[mask]
        log_p = self._log_p()
        tokens = LossTokens(
            logprobs=new,
            log_ratios=new - old,
            entropy=np.concatenate([self._entropy(log_p, row) for row in rows])[mask].astype(np.float64),
            correction=np.ones(len(new)),
            corrected=np.zeros(len(new), dtype=np.bool_),
            current=np.concatenate([row.versions for row in rows])[mask] == version,
            gaps=None if compared is None else np.concatenate(compared)[mask].astype(np.float64) - sampler,
            flags={name: np.zeros(len(new), dtype=np.bool_) for name in ("clip_low", "clip_high", "clip_dual")},
        )
        loss = -sum(
            float((row.loss_weights() * row.advantage * one)[row.loss_mask].sum(dtype=np.float64))
            for row, one in zip(rows, news, strict=True)
        )
        parts = [stat("train/loss", loss, 0), stat("train/loss_tokens", len(new), 0)]
        for entry in TOKEN_METRICS:
            if (numbers := entry.formula(tokens)) is not None:
                parts.append(over(entry.metric.key, numbers))
        packed = sum(len(row.prompt_ids) + len(row.token_ids) for row in rows)
        return merge([*parts, stat("train/micro_batches", 1), stat("train/packed_tokens", packed)])

    def _update(self, rows: Sequence[Row], p: NDArray[np.float64], rate: float) -> Stats:
        gradient = np.zeros(len(p))
        for row in rows:
            factors = (row.loss_weights() * row.advantage)[row.loss_mask].astype(np.float64)
            np.subtract.at(gradient, row.token_ids[row.loss_mask] % len(p), factors)
            gradient += factors.sum() * p
        norm = math.nan if self.diverge else float(np.linalg.norm(gradient))
        finite = math.isfinite(norm)
        self.skipped_in_a_row = 0 if finite else self.skipped_in_a_row + 1
        if self.skipped_in_a_row > self.max_skipped_steps:
            raise LearnerError(f"{self.skipped_in_a_row} optimiser steps in a row had a gradient that is not finite")
        if finite:
            self.moments = 0.5 * self.moments + gradient
            self.scores = self.scores - rate * self.moments
            self._weights_moved = True
        return merge(
            [
                stat("train/skipped_steps", not finite),
                stat("train/grad_norm", norm if finite else 0.0, finite),
                stat("train/grad_norm_max", norm) if finite else {},
            ]
        )


def _counts(*, empty: bool) -> Stats:
    """One optimiser step, as its counters see it."""
    return merge(
        [
            stat("train/optimizer_steps", 1),
            stat("train/skipped_steps", 0),
            stat("train/empty_steps", empty),
            stat("train/loss", 0, not empty),
            stat("train/loss_tokens", 0, 1),
        ]
    )


class Later(ScriptedLearner):
    """Computes a training step when its result is waited for, as one in another process seems to.

    ``done`` says no ``asks`` times for each step, and whatever the driver does in between comes before the step's end.
    """

    asks = 3

    def learn(self, step: LearnStep) -> Handle[Learned]:
        return _Pending(lambda: super(Later, self).learn(step).result(), self.asks)


class _Pending:
    def __init__(self, compute: Callable[[], Learned], asks: int) -> None:
        self._compute, self._left = compute, asks
        self._value: Learned | None = None

    def done(self) -> bool:
        self._left -= 1
        return self._left < 0

    def result(self, timeout: float | None = None) -> Learned:
        if timeout is not None and self._left > 0:
            self._left -= 1
            raise TimeoutError
        if self._value is None:
            self._value = self._compute()
        return self._value
