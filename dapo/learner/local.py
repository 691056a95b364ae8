"""The learner of one process: micro-batches, one optimiser step at a time, and the weights' way to the engine."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.algorithms.losses import LossInputs
from dapo.config import schema
from dapo.contracts.types import BoolArray, FloatArray, Metrics, TokenTrace, TrainRow
from dapo.errors import LearnerError
from dapo.learner import storage
from dapo.learner.metrics import TokenRecord, loss_mask
from dapo.learner.optimizer import Optimizer
from dapo.models.checksum import checksum
from dapo.models.forward import token_logprobs
from dapo.models.loaded import LoadedModel
from dapo.models.packing import PackedBatch, pack, pad, split
from dapo.models.positions import check_positions

Loss = Callable[[LossInputs], tuple[Tensor, Mapping[str, Tensor]]]
"""Loss of every token, unreduced, and bool flags by name: say ``clipped_loss`` with its settings bound."""

Correction = Callable[[FloatArray, FloatArray, BoolArray], FloatArray | None]
"""Learner's and sampler's log-probabilities and the loss mask of one response -> its importance correction w."""


class SharedWeights:
    """The learner's own tensors: an engine in the same process reads them and has only derived tensors to refresh."""

    shares_memory = True

    def __init__(self, loaded: LoadedModel) -> None:
        self._loaded = loaded

    def named_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters and persistent buffers under their names in the model; a tied head is named once."""
        yield from storage.model_tensors(self._loaded).items()


class LocalLearner:
    """Trains a ``LoadedModel`` in this process (the contract is ``dapo.contracts.protocols.Learner``).

    Args:
        loaded: The model; its weights are updated in place.
        loss: See ``Loss``.
        settings: The recipe's ``learner`` section.
        temperature: Of sampling; log-probabilities are those of logits / temperature.
        correction: For rows without old log-probabilities, whose ratio runs against the detached current ones; rows
            that have old ones bring their correction along.
        zero_advantage_is_free: The loss of a token with advantage 0 has no gradient, as with every built-in loss (but
            perhaps not yours). Rows without any advantage are then run forward only, for their metrics.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        loss: Loss,
        settings: schema.Learner,
        temperature: float,
        correction: Correction | None = None,
        *,
        zero_advantage_is_free: bool = False,
    ) -> None:
        self.loaded = loaded
        self.loss = loss
        self.settings = settings
        self.temperature = temperature
        self.correction = correction
        self.zero_advantage_is_free = zero_advantage_is_free
        self.optimizer = Optimizer(dict(loaded.model.named_parameters()), settings)
        self.skipped_in_a_row = 0
        self._weights_moved = False  # since the last publish
        self._traces: list[TokenTrace] = []  # until they are taken

    def logprobs(self, rows: Sequence[TrainRow]) -> list[FloatArray]:
        """Log-probability of every response token under the present weights, in the order of ``rows``."""
        found: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(rows)
        for indices in split(rows, self.settings.microbatch_tokens, packed=self.loaded.packed):
            batch = self._batch([rows[index] for index in indices])
            with torch.no_grad():
                logprobs, _ = token_logprobs(self.loaded, batch, self.temperature, want_entropy=False)
            for number, part in zip(batch.order, _by_row(logprobs, batch), strict=True):
                found[indices[number]] = part.astype(np.float32)
        return found

    def update(self, rows: Sequence[TrainRow], learning_rate: float) -> Metrics:
        """One optimiser step on the gradient of sum(weight x correction x L) over the loss tokens of ``rows``.

        Rows in which no token carries loss are not computed at all. Without any loss token nothing moves, neither
        weights nor moments, and ``train/empty_steps`` is 1.

        Raises:
            LearnerError: More than ``max_skipped_steps`` steps in a row had a gradient that is not finite.
        """
        rows = [row for row in rows if loss_mask(row).any()]
        if not rows:
            return {"train/loss_tokens": 0, "train/empty_steps": 1, "train/skipped_steps": 0, "train/micro_batches": 0}
        record = TokenRecord()
        micro_batches = packed_tokens = 0
        for part, has_gradient in self._by_gradient(rows):
            for indices in split(part, self.settings.microbatch_tokens, packed=self.loaded.packed):
                batch = self._batch([part[index] for index in indices])
                with torch.set_grad_enabled(has_gradient):
                    loss = self._weighted_loss(batch, record)
                if has_gradient:
                    torch.autograd.backward(loss)
                    self.optimizer.accumulate()
                micro_batches += 1
                packed_tokens += batch.input_ids.numel()
        metrics = record.metrics(weights_moved=self._weights_moved)
        self._traces += record.traces()
        norm, applied = self.optimizer.step(learning_rate)
        self._weights_moved |= applied
        self._count_skipped(norm, applied)
        return metrics | {
            "train/grad_norm": norm if applied else math.nan,
            "train/skipped_steps": 0 if applied else 1,
            "train/empty_steps": 0,
            "train/micro_batches": micro_batches,
            "train/packed_tokens": packed_tokens,
        }

    def take_traces(self) -> list[TokenTrace]:
        """Traces of the traced rows of every ``update`` since the last call; see the protocol."""
        taken, self._traces = self._traces, []
        return taken

    def publish(self) -> SharedWeights:
        self._weights_moved = False
        return SharedWeights(self.loaded)

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """Of the named weights, rounded to the types that an engine holds them in; see the protocol."""
        present = self.loaded.model.state_dict()
        return {name: checksum(present[name], getattr(torch, to)) for name, to in dtypes.items() if name in present}

    def save(self, folder: Path) -> None:
        """Weights, optimiser state and the count of skipped steps; ``load`` restores them to the bit."""
        storage.save(folder, self.loaded, self.optimizer.state(), {"skipped_in_a_row": self.skipped_in_a_row})

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, in place: an engine that shares the weights sees them at the next publish.

        Raises:
            CheckpointError: The folder is incomplete, or belongs to another model.
        """
        optimizer, counters = storage.load(folder, self.loaded)
        self.optimizer.load(optimizer)
        self.skipped_in_a_row = int(counters["skipped_in_a_row"])
        self._weights_moved = False

    def export(self, folder: Path) -> None:
        """A Hugging Face folder that ``AutoModelForCausalLM`` and ``AutoTokenizer`` load."""
        storage.export(folder, self.loaded)

    def _batch(self, rows: Sequence[TrainRow]) -> PackedBatch:
        longest = max(len(row.prompt_ids) + len(row.token_ids) - 1 for row in rows)
        check_positions(self.loaded.name, self.loaded.exact_positions, longest)
        if self.loaded.packed:
            return pack(rows, self.loaded.device)
        return pad(rows, self.loaded.device, self.loaded.pad_token_id)

    def _by_gradient(self, rows: list[TrainRow]) -> list[tuple[list[TrainRow], bool]]:
        """Rows with a gradient, and rows that only report. A batch without any advantage keeps its zero gradient."""
        live = [bool(row.advantages[loss_mask(row)].any()) for row in rows]
        if not self.zero_advantage_is_free or all(live) or not any(live):
            return [(rows, True)]
        return [
            ([row for row, alive in zip(rows, live, strict=True) if alive is wanted], wanted)
            for wanted in (True, False)
        ]

    def _weighted_loss(self, batch: PackedBatch, record: TokenRecord) -> Tensor:
        """Sum of weight x correction x L over one micro-batch; its tokens go on record."""
        logprobs, entropy = token_logprobs(self.loaded, batch, self.temperature)
        rows = self._with_old_logprobs(batch, logprobs)

        def tokens(arrays: Sequence[NDArray | None]) -> Tensor:
            return torch.from_numpy(np.concatenate([x for x in arrays if x is not None])).to(logprobs)

        mask = torch.from_numpy(np.concatenate([loss_mask(row) for row in rows])).to(logprobs.device)
        inputs = LossInputs(
            logprobs=logprobs,
            old_logprobs=tokens([row.old_logprobs for row in rows]),
            advantages=tokens([row.advantages for row in rows]),
            loss_mask=mask,
            rows=batch.row_of_token,
            num_rows=len(rows),
        )
        loss, flags = self.loss(inputs)
        weights = tokens([row.weights if row.correction is None else row.weights * row.correction for row in rows])
        weighted = torch.where(mask, weights * loss, 0.0)
        record.add(rows, logprobs, entropy, weighted, flags)
        return weighted.sum()

    def _with_old_logprobs(self, batch: PackedBatch, logprobs: Tensor) -> list[TrainRow]:
        """The batch's rows; those without old log-probabilities get the current ones and their correction."""
        if all(row.old_logprobs is not None for row in batch.rows):
            return batch.rows
        rows = []
        for row, current in zip(batch.rows, _by_row(logprobs, batch), strict=True):
            if row.old_logprobs is None:
                correction = row.correction
                if self.correction is not None and row.sampler_logprobs is not None:
                    correction = self.correction(current, row.sampler_logprobs, loss_mask(row))
                row = replace(row, old_logprobs=current, correction=correction)
            rows.append(row)
        return rows

    def _count_skipped(self, norm: float, applied: bool) -> None:
        self.skipped_in_a_row = 0 if applied else self.skipped_in_a_row + 1
        if self.skipped_in_a_row > self.settings.max_skipped_steps:
            raise LearnerError(
                f"{self.skipped_in_a_row} optimiser steps in a row had a gradient that is not finite (norm {norm}); "
                f"learner.max_skipped_steps = {self.settings.max_skipped_steps} allows no more. The weights are those "
                "before the first of them: resume from the last checkpoint with a smaller learner.learning_rate, or "
                "with model.dtype=float32"
            )


def _by_row(values: Tensor, batch: PackedBatch) -> list[NDArray]:
    """Values of all response tokens, cut into rows of the batch."""
    parts: list[NDArray] = np.split(values.detach().float().cpu().numpy(), np.cumsum(batch.lengths)[:-1])
    return parts
