"""One rank's share of an optimizer step: passes, their sums, and the update. A world of one does all of it.

Every pass adds to the gradient of the plain sum of weight x correction x L, so passes and ranks may cut a minibatch as
they like. What a pass says of itself are sums; ``optimizer_step`` counts the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.algorithms.correction import OffPolicyMask, tokens_corrected
from dapo.algorithms.losses import LossInputs
from dapo.algorithms.objective import Objective
from dapo.algorithms.variants.a3po import interpolated_logprobs
from dapo.errors import LearnerError
from dapo.learner.experts import expert_routes
from dapo.learner.forward import FILLER, ForwardPasses, by_row
from dapo.learner.optimizer import Optimizer
from dapo.learner.plan import Minibatch
from dapo.learner.reference_policy import Reference
from dapo.learner.step_metrics import Rated, TokenRecord, corrections
from dapo.learner.teacher import Teacher
from dapo.metrics.stats import Stats, merge, stat
from dapo.models.loaded import LoadedModel
from dapo.models.packing import PackedBatch
from dapo.types.batch import BoolArray, FloatArray, Of, RatioAgainst, Row, by_response

if TYPE_CHECKING:  # the schema needs pydantic, and who brings settings of its own does not; sharding imports slowly
    from dapo.config import schema
    from dapo.learner.sharding import Sharding

Correction = Callable[[FloatArray, FloatArray, BoolArray], FloatArray | None] | OffPolicyMask
"""Learner's and sampler's log-probabilities and the loss mask of one response -> its importance correction w.
``OffPolicyMask`` takes the present log-probabilities instead of the old ones, and the advantage."""


class PolicyStep(ForwardPasses):
    """The maths of one rank over its part of the rows.

    Args:
        loaded: The model; its weights are updated in place.
        objective: The loss.
        settings: The recipe's ``learner`` section.
        temperature: Of sampling; log-probabilities are those of logits / temperature.
        correction: Where the ratio runs against the learner's own log-probabilities, or a mask.
        reference: The recipe's ``algorithm.reference`` where a reference is needed; the weights at hand become it.
        sharding: Of the model, which other ranks hold parts of; None: all of it is here.
        starts: Float32 numbers of the model's files, by parameter (``dapo.models.read.float32_weights``).
        teachers: Frozen models that judge its tokens, by what ``Of`` calls them.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        objective: Objective,
        settings: schema.LearnerSection,
        temperature: float,
        correction: Correction | None = None,
        reference: schema.ReferenceSection | None = None,
        sharding: Sharding | None = None,
        starts: Mapping[str, Tensor] | None = None,
        teachers: Mapping[Of, Teacher] | None = None,
    ) -> None:
        super().__init__(loaded, settings, temperature, sharding)
        self.objective, self.correction, self.teachers = objective, correction, teachers or {}
        self.optimizer = Optimizer(dict(loaded.model.named_parameters()), settings, starts)
        self.reference = None if reference is None else Reference(loaded, reference)
        self.experts = expert_routes(loaded, settings.router_replay)
        self.entropy_coefficient = 0.0  # of the entropy term, set with each training step
        self.skipped_in_a_row = 0

    @property
    def whole_responses(self) -> bool:
        """Whether a pass needs all parts of a response: the loss or the correction reads more than single tokens."""
        corrects = self.correction is not None and not getattr(self.correction, "by_token", False)
        return corrects or not self.objective.by_token

    @contextmanager
    def under(self, of: Of) -> Iterator[ForwardPasses]:
        """Yield what computes by these weights inside.

        Raises:
            LearnerError: there is no reference, or no such teacher.
        """
        if of == "policy":
            yield self
            return
        if of in self.teachers:
            with self.teachers[of].at_work() as teacher:
                yield teacher
            return
        if self.reference is None or of != "reference":
            raise LearnerError(
                f"log-probabilities of {of} were asked for, and this learner was made without one: set "
                "algorithm.kl_coefficient or algorithm.teacher, or take a loss that needs none"
            )
        with self.reference.in_place():
            yield self
            self.release()

    def minibatch(
        self,
        work: Minibatch,
        record: TokenRecord,
        *,
        ratio_against: RatioAgainst,
        old_logprobs: Sequence[FloatArray] | None = None,
    ) -> Stats:
        """All passes of this rank in one optimiser step, up to the update; ``old_logprobs`` are of ``work.rows``."""
        last = sum(planned.backward for planned in work.passes) - 1
        parts = []
        for number, planned in enumerate(work.passes):
            if self.sharding is not None and planned.backward:
                self.sharding.before_backward(last=number == last)
            if not planned.rows:
                self.empty_pass(backward=planned.backward)
                continue
            parts.append(
                self.forward_backward(
                    [work.rows[n] for n in planned.rows],
                    record,
                    ratio_against=ratio_against,
                    old_logprobs=None if old_logprobs is None else [old_logprobs[n] for n in planned.rows],
                    backward=planned.backward,
                )
            )
        self.release()
        return merge(parts)

    def forward_backward(
        self,
        rows: Sequence[Row],
        record: TokenRecord,
        *,
        ratio_against: RatioAgainst,
        old_logprobs: Sequence[FloatArray] | None = None,
        backward: bool = True,
    ) -> Stats:
        """One pass: the gradient of its rows' loss is added up, and their tokens go on record.

        Args:
            rows: one micro-batch.
            record: of this optimiser step.
            ratio_against: with ``learner`` and no ``old_logprobs``, the detached current ones; ``interpolated`` always
                has these on one side.
            old_logprobs: of each row, where the weights moved since they were computed.
            backward: False: only for the metrics; the rows have no gradient.

        Raises:
            LearnerError: the device has too little memory for this pass.
        """
        batch = self._batch(rows)
        with self._computing(batch), self._routed(batch, training=True):
            self._pass(rows, batch, record, ratio_against, old_logprobs, backward)
        return merge([stat("train/micro_batches", 1), stat("train/packed_tokens", batch.input_ids.numel())])

    def _pass(
        self,
        rows: Sequence[Row],
        batch: PackedBatch,
        record: TokenRecord,
        ratio_against: RatioAgainst,
        old_logprobs: Sequence[FloatArray] | None,
        backward: bool,
    ) -> None:
        with torch.set_grad_enabled(backward):
            logprobs, entropy = self.policy(batch, self.temperature, self.objective.entropy)
            rated = self._rated(rows, batch, logprobs, ratio_against, old_logprobs, record.version)
            mask = np.concatenate([r.row.loss_mask for r in rated])
            inputs = _inputs(rated, mask, batch, logprobs, entropy, self.objective)
            if self.objective.teacher is not None:
                inputs = replace(inputs, advantages=self.objective.teacher.advantages(inputs))
            loss, flags = self.objective.loss(inputs)
            weights = np.where(mask, _spread([r.row.loss_weight for r in rated], batch.lengths), np.float32(0))
            weighted = torch.where(inputs.loss_mask, _tensor(weights * corrections(rated), logprobs) * loss, 0.0)
            terms = self.objective.terms(inputs, self.entropy_coefficient)
            if terms is not None:  # by the token's weight alone: no clip and no correction acts on them
                weighted = weighted + _tensor(weights, logprobs) * terms
            total = weighted.sum()
        if backward:
            torch.autograd.backward(total)
            self.optimizer.accumulate()
        # It reads what was computed, and waits for it: a card has been given the backward pass by now.
        record.add(rated, logprobs, entropy, weighted, flags)

    def _routed(self, batch: PackedBatch, *, training: bool) -> AbstractContextManager[None]:
        return nullcontext() if self.experts is None else self.experts.following(batch, training=training)

    def empty_pass(self, *, backward: bool = True) -> None:
        """Go through the model with one token that carries no loss: other ranks have rows in this pass."""
        batch = self._batch([FILLER])
        with self._computing(batch), torch.set_grad_enabled(backward):
            logprobs, _ = self.policy(batch, self.temperature, self.objective.entropy)
            if backward:
                torch.autograd.backward((0.0 * logprobs).sum())
                self.optimizer.accumulate()

    def optimizer_step(self, learning_rate: float) -> Stats:
        """Clip and apply what the passes added up; counts the step that their loss and tokens belong to.

        Raises:
            LearnerError: More than ``max_skipped_steps`` steps in a row had a gradient that is not finite.
        """
        norm, applied = self.optimizer.step(learning_rate)
        self.skipped_in_a_row = 0 if applied else self.skipped_in_a_row + 1
        if self.skipped_in_a_row > self.settings.max_skipped_steps:
            raise LearnerError(
                f"{self.skipped_in_a_row} optimiser steps in a row had a gradient that is not finite (norm {norm}); "
                f"learner.max_skipped_steps = {self.settings.max_skipped_steps} allows no more. The weights are those "
                "before the first of them. Resume from the last checkpoint with a smaller learner.learning_rate or "
                "with model.dtype=float32; a loss of yours must be finite with its gradient at large ratios, too"
            )
        return merge(
            [
                step_counts(skipped=not applied),
                stat("train/loss", 0, 1),
                stat("train/grad_norm", norm if applied else 0, applied),
                stat("train/grad_norm_max", norm) if applied else {},
            ]
        )

    def _rated(
        self,
        rows: Sequence[Row],
        batch: PackedBatch,
        logprobs: Tensor,
        ratio_against: RatioAgainst,
        old_logprobs: Sequence[FloatArray] | None,
        version: int,
    ) -> list[Rated]:
        """Yield the batch's rows in packed order, each with the log-probabilities below its ratio; ``version`` is that
        of the weights."""
        chosen = [rows[number] for number in batch.order]
        if ratio_against == "sampler" and self.correction is None:
            return [Rated(row, row.sampler_logprobs, None) for row in chosen]
        if ratio_against == "sampler":
            olds: Sequence[FloatArray] = [row.sampler_logprobs for row in chosen]
        elif old_logprobs is None:
            olds = by_row(logprobs, batch)
        else:
            olds = [old_logprobs[number] for number in batch.order]
        if ratio_against == "interpolated":
            olds = [
                interpolated_logprobs(own, row.sampler_logprobs, version - row.versions)
                for row, own in zip(chosen, olds, strict=True)
            ]
        if self.correction is None:
            return [Rated(row, old, None) for row, old in zip(chosen, olds, strict=True)]
        present = by_row(logprobs, batch) if isinstance(self.correction, OffPolicyMask) else olds
        return _corrected(chosen, olds, present, self.correction)


def _corrected(
    rows: Sequence[Row], olds: Sequence[FloatArray], present: Sequence[FloatArray], correction: Correction
) -> list[Rated]:
    """Return the rows with the correction of their responses, of which all parts are among ``rows``.

    ``present`` are the log-probabilities that the correction compares with the sampler's.
    """
    rated: dict[int, Rated] = {}
    for members in by_response(rows):
        own = [rows[n] for n in members]
        sampler, mask = _joined([r.sampler_logprobs for r in own]), _joined([r.loss_mask for r in own])
        against = _joined([present[n] for n in members])
        factors: FloatArray | None
        if isinstance(correction, OffPolicyMask):
            masked = correction(against, sampler, mask, own[0].advantage)
            factors, acted = masked, np.equal(masked, 0.0)
        else:
            factors = correction(against, sampler, mask)
            acted = tokens_corrected(factors, against, sampler, mask)
        ends = np.cumsum([len(r.token_ids) for r in own])[:-1]
        w_R = [None] * len(own) if factors is None else np.split(factors, ends)
        for n, w, bounded in zip(members, w_R, np.split(acted, ends), strict=True):
            rated[n] = Rated(rows[n], olds[n], w, bounded)
    return [rated[n] for n in range(len(rows))]


def _joined(arrays: Sequence[NDArray]) -> NDArray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def step_counts(*, skipped: bool = False, empty: bool = False) -> Stats:
    """One optimiser step, as its counters see it."""
    return merge(
        [
            stat("train/optimizer_steps", 1),
            stat("train/skipped_steps", skipped),
            stat("train/empty_steps", empty),
            stat("train/loss_tokens", 0, 1),
        ]
    )


def _inputs(
    rated: Sequence[Rated],
    mask: BoolArray,
    batch: PackedBatch,
    logprobs: Tensor,
    entropy: Tensor,
    objective: Objective,
) -> LossInputs:
    rows = [r.row for r in rated]
    responses, num_responses = _responses(rows, batch)
    reference = [row.reference_logprobs for row in rows if row.reference_logprobs is not None]
    if "reference" in objective.needs and len(reference) != len(rows):
        raise LearnerError(
            f"the loss needs reference log-probabilities, and {len(rows) - len(reference)} of {len(rows)} rows have "
            "none; take a loss without a reference"
        )
    return LossInputs(
        logprobs=logprobs,
        old_logprobs=_tokens([r.old_logprobs for r in rated], logprobs),
        advantages=_tensor(_spread([row.advantage for row in rows], batch.lengths), logprobs),
        loss_mask=torch.from_numpy(mask).to(logprobs.device),
        rows=responses,
        num_rows=num_responses,
        entropy=entropy,
        reference_logprobs=_tokens(reference, logprobs) if "reference" in objective.needs else None,
        teacher_logprobs=_tokens([row.teacher_or_nan() for row in rows], logprobs) if objective.teacher else None,
        extra={name: values.to(logprobs.device) for name, values in objective.extra_tensors(rows).items()},
    )


def _responses(rows: Sequence[Row], batch: PackedBatch) -> tuple[Tensor, int]:
    """Return the response of each token [tokens] and the number of responses; parts of one have the same number."""
    if not any(row.part for row in rows):
        return batch.row_of_token, len(rows)
    responses = by_response(rows)
    of_row = torch.empty(len(rows), dtype=torch.int64)
    for number, members in enumerate(responses):
        of_row[members] = number
    return of_row.to(batch.targets.device)[batch.row_of_token], len(responses)


def _spread(numbers: Sequence[float], lengths: Sequence[int]) -> FloatArray:
    """One number a row, as float32 [tokens]."""
    return np.repeat(np.array(numbers, dtype=np.float32), lengths)


def _tokens(arrays: Sequence[NDArray], like: Tensor) -> Tensor:
    return _tensor(np.concatenate(arrays), like)


def _tensor(array: NDArray, like: Tensor) -> Tensor:
    return torch.from_numpy(array).to(like)
