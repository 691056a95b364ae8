"""One rank of a learner in a process of its own: joins the others, holds its slices, does what the driver planned.

Nothing is decided here that other ranks would have to know: counts of passes and names of folders come with the calls,
and every rank gets the same calls in the same order.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from dapo.algorithms.objective import Objective
from dapo.config import schema
from dapo.errors import LearnerError
from dapo.learner.metrics import TokenRecord
from dapo.learner.plan import Pass, RankStep
from dapo.learner.sharding import Shape, Sharding
from dapo.learner.shards import ShardStore
from dapo.learner.step import Correction, PolicyStep, step_counts
from dapo.metrics.stats import Stats, merge, stat
from dapo.models.adapter import add_adapter, begin_adapter, merge_squares, published, relative
from dapo.models.broadcast import HERE
from dapo.models.checksum import checksum, once_each
from dapo.models.lending import lend
from dapo.models.load import Inside, load_model, torch_dtype
from dapo.models.loaded import LoadedModel
from dapo.models.meter import give_back
from dapo.models.read import check_buffers, give_memory, read_weights_of
from dapo.models.rendezvous import SCHEME, find
from dapo.models.slices import own_part, own_rows
from dapo.models.weights import model_tensors, write_part
from dapo.types.batch import FloatArray, HasTokens, Meeting, Of, SavedFile, TokenTrace


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Where a rank stands among the others. It travels."""

    rank: int
    shape: Shape
    meeting: (
        str  # where they find each other: file://PATH of a file that was not there before, or store://HOST:PORT/KEY
    )
    timeout: float  # seconds that one may be waited for

    def join(self, device: torch.device) -> None:
        """Meet the others. On CUDA every rank of a machine takes the device of its number there.

        Raises:
            LearnerError: fewer devices than ranks on this machine.
        """
        backend = "gloo"
        if device.type == "cuda":
            local = int(os.environ.get("LOCAL_RANK", self.rank))
            if local >= torch.cuda.device_count():
                raise LearnerError(
                    f"rank {self.rank} is number {local} on its machine, which has {torch.cuda.device_count()} CUDA "
                    "devices: every rank needs one of its own; set learner.ranks accordingly"
                )
            torch.cuda.set_device(local)
            backend = "cpu:gloo,cuda:nccl"
        patience = datetime.timedelta(seconds=self.timeout)
        where: dict[str, Any] = {"init_method": self.meeting}
        if self.meeting.startswith(SCHEME):  # the driver's, which is there before any rank and lives longer
            where = {"store": find(self.meeting, patience)}
        dist.init_process_group(backend, rank=self.rank, world_size=self.shape.ranks, timeout=patience, **where)


@dataclass(frozen=True, slots=True)
class RankFacts:
    """What the driver has to know of a rank to plan for it."""

    packed: bool
    zero_advantage_is_free: bool
    names: tuple[str, ...]  # of what is published
    notes: tuple[str, ...]
    process: int


class Rank:
    """What a driver asks of one rank; the calls of ``LearnerGroup``.

    Args:
        place: among the others, whom it has joined already.
        loaded: the model, cut over ranks.
        sharding: of that model.
        objective: the loss.
        settings: the recipe's ``learner`` section.
        temperature: of sampling.
        correction: where the ratio runs against the learner's own log-probabilities.
        reference: the recipe's ``algorithm.reference``, where a reference is needed.
    """

    def __init__(
        self,
        place: RankPlace,
        loaded: LoadedModel,
        sharding: Sharding,
        objective: Objective,
        settings: schema.Learner,
        temperature: float,
        correction: Correction | None = None,
        reference: schema.Reference | None = None,
    ) -> None:
        self.place, self.loaded, self.sharding = place, loaded, sharding
        self.step = PolicyStep(loaded, objective, settings, temperature, correction, reference, sharding)
        refreshed = reference is not None and reference.refresh_every is not None
        refreshing = self.step.reference if refreshed else None
        self.store = ShardStore(loaded, place.rank, place.shape, self.step.optimizer, refreshing)
        self._weights_moved = False  # since the last publish
        self._lent: list[Tensor] = []  # memory that engines of this device may be reading
        # Of several copies of the model the first one speaks.
        self._speaks = place.rank < place.shape.ranks // place.shape.replicas

    def describe(self) -> RankFacts:
        return RankFacts(
            packed=self.loaded.packed,
            zero_advantage_is_free=self.step.objective.zero_advantage_is_free,
            names=tuple(model_tensors(self.loaded.model)),
            notes=self.loaded.notes,
            process=os.getpid(),
        )

    def learn(self, step: RankStep) -> tuple[Stats, list[list[TokenTrace]]]:
        """This rank's share of a training step's statistics and of each minibatch's traces; rank 0 counts the steps."""
        _check_planned(step, self.place.rank)
        self._lent = []
        self.step.entropy_coefficient = step.entropy_coefficient
        olds = self._old_logprobs(step)
        stats: list[Stats] = []
        traces: list[list[TokenTrace]] = []
        for work, old in zip(step.minibatches, olds, strict=True):
            if work is None:
                stats.append(self._counted(step_counts(empty=True)))
                continue
            record = TokenRecord(step.version, step.ratio_against == "learner", self._weights_moved)
            stats.append(self.step.minibatch(work, record, ratio_against=step.ratio_against, old_logprobs=old))
            stats.append(record.stats())
            traces.append(record.traces())
            updated = self.step.optimizer_step(work.learning_rate)
            self._weights_moved |= updated["train/skipped_steps"].value == 0
            stats.append(self._counted(updated))
        if step.refresh_reference and self.step.reference is not None:
            self.step.reference.refresh()
        if self.loaded.adapter and step.minibatches:
            stats.append(self._counted(stat("train/merge_error", self._merge_error())))
        return merge(stats), traces

    def logprobs(self, rows: Sequence[HasTokens], passes: Sequence[Pass], of: Of = "policy") -> list[FloatArray]:
        """Of each of ``rows``, in their order.

        Raises:
            LearnerError: of a reference, where there is none.
        """
        with self.step.under(of):
            found = self._logprobs(rows, passes)
        give_back()
        return found

    def _logprobs(self, rows: Sequence[HasTokens], passes: Sequence[Pass]) -> list[FloatArray]:
        found: dict[int, FloatArray] = {}
        for planned in passes:
            if planned.rows:
                found.update(zip(planned.rows, self.step.logprobs([rows[n] for n in planned.rows]), strict=True))
            else:
                self.step.empty_pass(backward=False)
        self.step.release()
        return [found[number] for number in range(len(rows))]

    def publish(self, folder: Path) -> None:
        """Write this rank's slices into ``folder``; the parts of all ranks are the model.

        Raises:
            EngineError: they cannot be written.
        """
        self._weights_moved = False
        if self._speaks:
            shards = self.place.shape.ranks // self.place.shape.replicas
            write_part(folder, self.place.rank, shards, model_tensors(self.loaded.model), self.loaded.dtype)
        give_back()

    def send(self, meeting: Meeting) -> bool:
        """Broadcast the weights to engines, from rank 0; whether all of them took part, as far as this rank knows."""
        self._weights_moved = False
        tensors = model_tensors(self.loaded.model)
        sent = True
        if self.place.rank == 0:
            sent = HERE.send(meeting, tensors, self.loaded.dtype)
        else:
            HERE.attend(tensors, self.loaded.dtype)
        give_back()
        return sent

    def lend(self) -> tuple[str, list[tuple[str, Any]]]:
        """Of this rank's device: handles of the weights, whole, which stay as they are until the next ``learn``.

        Raises:
            LearnerError: it computes on no CUDA device.
        """
        self._weights_moved = False
        device, handles, self._lent = lend(model_tensors(self.loaded.model), self.loaded.dtype)
        give_back()
        return device, handles

    def give_back(self) -> None:
        """Return cached device memory, before engines that share the device wake."""
        give_back()

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """This rank's share of each sum: they add up, modulo 2^64, to what one process would say."""
        present = published(self.loaded.model, aliases=True)
        return once_each(
            [name for name in dtypes if name in present],
            lambda name: (present.same(name), dtypes[name]),
            lambda name: self._share(present[name], torch_dtype(dtypes[name])),
        )

    def save(self, folder: Path, asynchronous: bool = False) -> list[SavedFile]:
        """Write this rank's part of a checkpoint; with ``asynchronous`` only begin to, and answer nothing yet."""
        counters = {"skipped_in_a_row": self.step.skipped_in_a_row}
        self.store.begin(folder, counters, asynchronous=asynchronous)
        return [] if asynchronous else self.store.finish()

    def is_saved(self) -> bool:
        """Whether a save that was begun is on the disk."""
        return self.store.is_written()

    def saved(self) -> list[SavedFile]:
        """The files of a save that was begun, waited for."""
        return self.store.finish()

    def check(self, folder: Path) -> None:
        """Look at a checkpoint before any rank loads it.

        Raises:
            CheckpointError: it is incomplete, or belongs to another model.
        """
        self.store.check(folder)

    def load(self, folder: Path) -> None:
        """Take over this rank's part of a checkpoint of any number of ranks, also of the learner of one process."""
        counters = self.store.load(folder)
        self.step.skipped_in_a_row = int(counters["skipped_in_a_row"])
        self._weights_moved = False

    def close(self) -> None:
        """Finish what is being written and leave the others."""
        self.store.finish()
        if dist.is_initialized():
            dist.destroy_process_group()

    def _old_logprobs(self, step: RankStep) -> list[list[FloatArray] | None]:
        """Before the first optimiser step, through the same passes as training will take."""
        if step.ratio_against != "learner" or len(step.minibatches) == 1:
            return [None] * len(step.minibatches)
        return [None if work is None else self._logprobs(work.rows, work.passes) for work in step.minibatches]

    def _merge_error(self) -> float:
        """Of all ranks' rows together."""
        squares = torch.tensor(merge_squares(self.loaded.model), dtype=torch.float64)
        dist.all_reduce(squares)  # of several copies of the model each adds the same to both
        return relative(*squares.tolist())

    def _counted(self, stats: Stats) -> Stats:
        return stats if self.place.rank == 0 else {}

    def _share(self, tensor: Tensor, dtype: torch.dtype) -> int:
        from torch.distributed.tensor import DTensor

        if not isinstance(tensor, DTensor):  # a buffer, which all ranks have
            return checksum(_as(tensor, self.loaded.dtype), dtype) if self.place.rank == 0 else 0
        if not self._speaks:
            return 0
        first, _ = own_rows(tensor)
        width = int(np.prod(tensor.shape[1:]))
        return checksum(_as(own_part(tensor), self.loaded.dtype), dtype, first=first * width)


def open_rank(
    place: RankPlace,
    model: schema.Model,
    settings: schema.Learner,
    temperature: float,
    objective: Objective,
    correction: Correction | None = None,
    reference: schema.Reference | None = None,
    *,
    device: torch.device,
    seed: int = 0,
) -> Rank:
    """Join the other ranks and read this one's part of the model. ``seed``: of an adapter's random start.

    Raises:
        ModelError: the model cannot be loaded, or not be cut over ranks.
        LearnerError: there is no device for this rank.
    """
    place.join(device)
    if device.type == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    return make_rank(place, model, settings, temperature, objective, correction, reference, device=device, seed=seed)


def make_rank(
    place: RankPlace,
    model: schema.Model,
    settings: schema.Learner,
    temperature: float,
    objective: Objective,
    correction: Correction | None = None,
    reference: schema.Reference | None = None,
    *,
    device: torch.device,
    seed: int = 0,
) -> Rank:
    """``open_rank``, by one that has joined the others already."""
    made: list[Sharding] = []

    def spread(loaded: LoadedModel) -> Inside:
        start = _with_adapter(loaded, model, seed)
        sharding = Sharding(loaded, place.shape.mesh(device), place.shape)
        made.append(sharding)
        give_memory(loaded.model, torch.device("cpu") if place.shape.cpu_offload else device)
        read_weights_of(model.path, loaded.model, loaded.dtype, trust_remote_code=model.trust_remote_code)
        check_buffers(model.path, loaded.model, loaded.dtype, trust_remote_code=model.trust_remote_code)
        begin_adapter(loaded.model, start, loaded.dtype)
        return sharding.inside

    loaded = load_model(
        model.path,
        dtype=model.dtype,
        device=device,
        trust_remote_code=model.trust_remote_code,
        attention_mode=model.attention,
        fp32_head=model.fp32_head,
        activation_checkpointing=model.activation_checkpointing,
        spread=spread,
    )
    return Rank(place, loaded, made[0], objective, settings, temperature, correction, reference)


def _with_adapter(loaded: LoadedModel, model: schema.Model, seed: int) -> dict[str, Tensor]:
    """Add the recipe's adapter, if it has one, before the model is cut; what it begins with.

    It is cut as its layers are: what is gathered with them needs no exchange of its own. Frozen weights stay in the
    model's type: they get no update that float32 would have to keep.
    """
    if model.lora.rank is None:
        return {}
    start = add_adapter(loaded.model, model.lora, name=model.path, seed=seed)
    loaded.adapter = True
    for parameter in loaded.model.parameters():
        if not parameter.requires_grad:
            parameter.data = parameter.data.to(loaded.dtype)
    return start


def _as(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """In the type that is published, which an engine rounds further."""
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _check_planned(step: RankStep, rank: int) -> None:
    """Before the first collective: what this rank got is what all of them make.

    Raises:
        LearnerError: the driver planned other passes for it, and the ranks would wait for each other for ever.
    """
    for number, (work, kinds) in enumerate(zip(step.minibatches, step.kinds, strict=True)):
        own = () if work is None else tuple(planned.backward for planned in work.passes)
        if own != kinds:
            raise LearnerError(
                f"rank {rank} was given {len(own)} passes in minibatch {number}, and all ranks make {len(kinds)}: the "
                "plan of passes is broken (dapo.learner.plan)"
            )
