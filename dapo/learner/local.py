"""The learner of one process: a training step is one call, and a world of one rank does all of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dapo.algorithms.objective import Objective
from dapo.learner import storage
from dapo.learner.metrics import TokenRecord
from dapo.learner.plan import RankStep, plan_step, split
from dapo.learner.step import Correction, PolicyStep, step_counts
from dapo.metrics.stats import Stats, merge, stat
from dapo.models.adapter import merge_error, published
from dapo.models.broadcast import HERE
from dapo.models.checksum import checksum, once_each
from dapo.models.lending import lend
from dapo.models.loaded import LoadedModel
from dapo.models.meter import give_back
from dapo.models.weights import WeightFolder, model_tensors, offer
from dapo.types.batch import (
    FloatArray,
    HasTokens,
    Learned,
    LearnStep,
    Meeting,
    Of,
    SavedFile,
    Ticket,
    TokenTrace,
)
from dapo.types.protocols import Done, Handle

if TYPE_CHECKING:  # the schema needs pydantic, and who brings settings of its own does not
    from dapo.config import schema


class LocalLearner:
    """Trains a ``LoadedModel`` in this process (the contract is ``dapo.types.protocols.Learner``).

    Args:
        loaded: The model; its weights are updated in place.
        objective: The loss.
        settings: The recipe's ``learner`` section.
        temperature: Of sampling; log-probabilities are those of logits / temperature.
        correction: Importance correction where the ratio runs against the learner's own log-probabilities.
        weights_folder: Publish through this folder; None: engines of this process read the very tensors.
        reference: The recipe's ``algorithm.reference`` where a reference is needed: the weights at hand become it.
        asynchronous: Write checkpoints while training goes on.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        objective: Objective,
        settings: schema.Learner,
        temperature: float,
        correction: Correction | None = None,
        weights_folder: Path | None = None,
        reference: schema.Reference | None = None,
        *,
        asynchronous: bool = False,
    ) -> None:
        self.loaded, self.settings = loaded, settings
        self._writer = ThreadPoolExecutor(1, "checkpoint") if asynchronous else None
        self.rank = PolicyStep(loaded, objective, settings, temperature, correction, reference)
        self._refreshes = reference is not None and reference.refresh_every is not None
        self._address = offer(loaded.model)
        self._folder = None if weights_folder is None else WeightFolder(weights_folder)
        self._weights_moved = False  # since the last publish
        self._lent: list[torch.Tensor] = []  # memory that engines of this device may be reading

    def logprobs(self, rows: Sequence[HasTokens], of: Of = "policy") -> Done[list[FloatArray]]:
        """Log-probability of every response token under the present weights, in the order of ``rows``.

        Raises:
            LearnerError: of a reference, where there is none.
        """
        with self.rank.under(of):
            passes = split(rows, self.settings.microbatch_tokens, packed=self.loaded.packed)
            found = self._logprobs(rows, passes)
        give_back()
        return Done(found)

    def learn(self, step: LearnStep) -> Done[Learned]:
        """One optimiser step per minibatch on the gradient of sum(weight x correction x L) over its loss tokens.

        Rows in which no token carries loss are not computed at all. A minibatch without any loss token moves nothing,
        neither weights nor moments, and counts in ``train/empty_steps``.

        Raises:
            LearnerError: More than ``max_skipped_steps`` steps in a row had a gradient that is not finite.
        """
        stats: list[Stats] = []
        traces: list[TokenTrace] = []
        self._lent = []
        self.rank.entropy_coefficient = step.entropy_coefficient
        (plan,) = plan_step(
            step,
            self.settings.microbatch_tokens,
            packed=self.loaded.packed,
            zero_advantage_is_free=self.rank.objective.zero_advantage_is_free,
        )
        for work, old in zip(plan.minibatches, self._old_logprobs(plan), strict=True):
            if work is None:
                stats.append(step_counts(empty=True))
                continue
            record = TokenRecord(step.version, step.ratio_against == "learner", self._weights_moved)
            stats.append(self.rank.minibatch(work, record, ratio_against=step.ratio_against, old_logprobs=old))
            stats.append(record.stats())
            traces += record.traces()
            stats.append(self._update(work.learning_rate))
        if step.refresh_reference and self.rank.reference is not None:
            self.rank.reference.refresh()
        if self.loaded.adapter and stats:
            stats.append(stat("train/merge_error", merge_error(self.loaded.model)))
        return Done(Learned(merge(stats), traces))

    def publish(self, version: int) -> Ticket:
        """The present weights: where they are, or written to a set of their own below the learner's folder.

        Raises:
            EngineError: they cannot be written.
        """
        self._weights_moved = False
        tensors = model_tensors(self.loaded.model)
        ticket = Ticket(version, "shared", self._address, tuple(tensors))
        if self._folder is not None:
            ticket = Ticket(version, "folder", str(self._folder.write(version, tensors.items())), tuple(tensors))
        give_back()
        return ticket

    def send(self, meeting: Meeting) -> bool:
        """Broadcast the present weights to engines of other processes; whether all of them took part."""
        self._weights_moved = False
        sent = HERE.send(meeting, model_tensors(self.loaded.model), self.loaded.dtype)
        give_back()
        return sent

    def lend(self) -> tuple[str, list[tuple[str, Any]]]:
        """The device, and handles of the weights in its memory, which stay as they are until the next ``learn``.

        Raises:
            LearnerError: they are not on a CUDA device.
        """
        self._weights_moved = False
        device, handles, self._lent = lend(model_tensors(self.loaded.model), self.loaded.dtype)
        give_back()
        return device, handles

    def give_back(self) -> None:
        """Return cached device memory, before engines that share the device wake."""
        give_back()

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """Of the named weights, rounded to the types that an engine holds them in; see the protocol."""
        present = published(self.loaded.model, aliases=True)
        return once_each(
            [name for name in dtypes if name in present],
            lambda name: (present.same(name), dtypes[name]),
            lambda name: checksum(present[name], getattr(torch, dtypes[name])),
        )

    def save(self, folder: Path) -> Handle[list[SavedFile]]:
        """Weights, optimiser state and the count of skipped steps; ``load`` restores them to the bit.

        Where it is asynchronous, the tensors are copied when this returns, and written one checkpoint after another.
        """
        counters = {"skipped_in_a_row": self.rank.skipped_in_a_row}
        reference = self.rank.reference.state() if self.rank.reference is not None and self._refreshes else None
        contents = storage.contents(self.loaded, self.rank.optimizer.state(), counters, reference)
        if self._writer is None:
            return Done(contents.write(folder))
        return self._writer.submit(contents.copied().write, folder)

    def load(self, folder: Path) -> None:
        """Restore what ``save`` wrote, in place: an engine that shares the weights sees them at the next publish.

        Raises:
            CheckpointError: The folder is incomplete, or belongs to another model.
        """
        reference = (
            storage.load_reference(folder, self.loaded) if self._refreshes else None
        )  # refused before anything changes
        optimizer, counters = storage.load(folder, self.loaded)
        if reference is not None and self.rank.reference is not None:
            self.rank.reference.load(reference)
        self.rank.optimizer.load(optimizer)
        self.rank.skipped_in_a_row = int(counters["skipped_in_a_row"])
        self._weights_moved = False

    def close(self) -> None:
        """Finish what is being written; delete published weights that no engine came for."""
        if self._writer is not None:
            self._writer.shutdown()
        if self._folder is not None:
            self._folder.clear()

    def _logprobs(self, rows: Sequence[HasTokens], passes: Iterable[Sequence[int]]) -> list[FloatArray]:
        found: dict[int, FloatArray] = {}
        for indices in passes:
            found.update(zip(indices, self.rank.logprobs([rows[index] for index in indices]), strict=True))
        return [found[index] for index in range(len(rows))]

    def _old_logprobs(self, plan: RankStep) -> list[list[FloatArray] | None]:
        """Return the learner's log-probabilities of each minibatch's rows, where the ratio runs against them.

        The passes are those of training: as long as the weights have not moved, the ratio is exactly 1 in any number
        format. With one minibatch they are the detached current ones, and no pass of their own is needed.
        """
        if plan.ratio_against != "learner" or len(plan.minibatches) == 1:
            return [None] * len(plan.minibatches)
        return [
            None if work is None else self._logprobs(work.rows, [planned.rows for planned in work.passes])
            for work in plan.minibatches
        ]

    def _update(self, rate: float) -> Stats:
        stats = self.rank.optimizer_step(rate)
        self._weights_moved |= stats["train/skipped_steps"].value == 0
        return stats
