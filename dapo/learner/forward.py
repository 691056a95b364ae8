"""Forward passes of a model over rows, on one rank: what the policy, its reference and teachers have in common."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dapo.errors import LearnerError, first_line
from dapo.learner.determinism import deterministic_algorithms
from dapo.models.loaded import LoadedModel
from dapo.models.packing import PackedBatch, pack, pad
from dapo.models.policy import Policy
from dapo.models.positions import check_positions
from dapo.types.batch import FloatArray, TokenRow

if TYPE_CHECKING:  # the schema needs pydantic, and who brings settings of its own does not; sharding imports slowly
    from dapo.config import schema
    from dapo.learner.sharding import Sharding


@dataclass(eq=False)
class ForwardPasses:
    """Log-probabilities by one model, whole or a rank's part of it.

    Args:
        loaded: The model.
        settings: The recipe's ``learner`` section.
        temperature: Of sampling; log-probabilities are those of logits / temperature.
        sharding: Of the model, which other ranks hold parts of; None: all of it is here.
    """

    loaded: LoadedModel
    settings: schema.LearnerSection
    temperature: float
    sharding: Sharding | None = None

    def __post_init__(self) -> None:
        self.policy = Policy(self.loaded) if self.sharding is None else self.sharding.policy

    def release(self) -> None:
        """Drop gathered parameters: call it after the last pass before weights change, since they are stale then."""
        if self.sharding is not None:
            self.sharding.release()

    def logprobs(self, rows: Sequence[TokenRow], *, learning: bool = False) -> list[FloatArray]:
        """Log-probability of every response token of one pass under the present weights, in the order of ``rows``.

        ``learning``: they are those of the training step's rows before its updates.
        """
        batch = self._batch(rows)
        routed = self._routed(batch, training=False) if learning else nullcontext()
        with self._computing(batch), routed, torch.no_grad():
            logprobs, _ = self.policy(batch, self.temperature, "none")
        found: list[FloatArray] = [np.zeros(0, dtype=np.float32)] * len(rows)
        for number, part in zip(batch.order, by_row(logprobs, batch), strict=True):
            found[number] = part.astype(np.float32)
        return found

    def _batch(self, rows: Sequence[TokenRow]) -> PackedBatch:
        longest = max(len(row.prompt_ids) + len(row.token_ids) - 1 for row in rows)
        check_positions(self.loaded.name, self.loaded.exact_positions, longest)
        if self.loaded.packed:
            return pack(rows, self.loaded.device)
        return pad(rows, self.loaded.device, self.loaded.pad_token_id)

    @contextmanager
    def _computing(self, batch: PackedBatch) -> Iterator[None]:
        """Compute deterministically if the recipe asks for it, and name what to change if the device has too little
        memory."""
        try:
            with deterministic_algorithms() if self.settings.deterministic else nullcontext():
                yield
        except torch.OutOfMemoryError as error:
            tokens = batch.input_ids.numel()
            raise LearnerError(
                f"the device has too little memory for a pass of {tokens:,} tokens ({first_line(error)}): lower "
                f"learner.microbatch_tokens (now {self.settings.microbatch_tokens:,}), which changes no gradient, or "
                "set model.activation_checkpointing=full; `dapo check` estimates both. The weights are those of the "
                "last optimiser step"
            ) from error

    def _routed(self, batch: PackedBatch, *, training: bool) -> AbstractContextManager[None]:
        """Return what a mixture of experts is held to meanwhile: nothing."""
        return nullcontext()


_ONE = np.zeros(1, dtype=np.int64)
FILLER = TokenRow(0, _ONE, _ONE)
"""One token that carries no loss: it goes through the model where other ranks have rows in a pass."""


def by_row(values: Tensor, batch: PackedBatch) -> list[NDArray]:
    """Values of all response tokens, cut into rows of the batch."""
    parts: list[NDArray] = np.split(values.detach().float().cpu().numpy(), np.cumsum(batch.lengths)[:-1])
    return parts
