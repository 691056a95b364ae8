"""One process of a learner: it trains its rows, hands out weights, and writes its part of a checkpoint.

A learner of one process is a worker that holds the whole model. Of several processes each is a worker that holds slices
of it (``Sharding``), and a rank of the process group. A worker decides nothing that others would have to know: passes
and names of folders come with the calls, and every worker gets the same calls in the same order.
"""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo.algorithms.objective import Objective
from dapo.errors import LearnerError
from dapo.learner.balance import attention_of
from dapo.learner.checkpoint import CheckpointPart
from dapo.learner.forward import FILLER, ForwardPasses
from dapo.learner.plan import Pass, RankStep
from dapo.learner.sharding import Shape, Sharding
from dapo.learner.step import Correction, PolicyStep, step_counts
from dapo.learner.step_metrics import Rated, TokenRecord
from dapo.learner.teacher import Teacher
from dapo.metrics.stats import Stats, merge, stat
from dapo.models.adapter import (
    adapter_parts,
    add_adapter,
    apart,
    begin_adapter,
    merge_squares,
    published,
    relative,
)
from dapo.models.agreement import own_rounding
from dapo.models.checksum import checksum, once_each
from dapo.models.context import join_unit
from dapo.models.facts import facts_of
from dapo.models.load import Inside, load_model, torch_dtype
from dapo.models.loaded import LoadedModel
from dapo.models.meter import give_back, reserved
from dapo.models.read import check_buffers, give_memory, read_weights_of
from dapo.models.rendezvous import SCHEME, find
from dapo.models.slices import own_part, own_rows
from dapo.models.weight_files import model_tensors
from dapo.types.batch import FloatArray, Of, Route, Row, SavedFile, TokenRow, TokenTrace
from dapo.weights.route import Source
from dapo.weights.routes import ROUTES

if TYPE_CHECKING:  # the schema needs pydantic, and who brings settings of its own does not
    from dapo.config import schema


@dataclass(frozen=True, slots=True)
class WorkerFacts:
    """Facts of a worker by which the driver plans its work."""

    microbatch_tokens: int
    packed: bool
    zero_advantage_is_free: bool
    attention: float  # price of a pair of tokens in attention; see dapo.learner.balance
    names: tuple[str, ...]  # of what is published
    notes: tuple[str, ...]  # what a person should know of the model
    process: int
    whole_responses: bool = False  # a pass needs all parts of a response
    machine: str = ""
    context_parallel: int = 1  # neighbouring ranks that share each row: all of them get the same rows
    padded: tuple[Of, ...] = ()  # teachers whose rows cannot be packed


class Worker:
    """Calls that a driver makes to one process of a learner (``dapo.learner.driver``), which computes with ``step``."""

    def __init__(self, step: PolicyStep) -> None:
        self.step, self.loaded, self.settings = step, step.loaded, step.settings
        sharding = step.sharding
        self.rank, self._shards = (0, 1) if sharding is None else (sharding.rank, sharding.shards)
        sharded = sharding is not None
        loaded = step.loaded
        self._source = Source(loaded.model, self._tensors, self.rank, self._shards, loaded.dtype, sharded)
        self._checkpoint = CheckpointPart(
            self.loaded,
            step.optimizer,
            step.reference if step.reference is not None and step.reference.refreshed else None,
            rank=self.rank,
            shards=self._shards,
        )
        self._weights_moved = False  # since the last publish

    def describe(self) -> WorkerFacts:
        return WorkerFacts(
            microbatch_tokens=self.settings.microbatch_tokens,
            packed=self.loaded.packed,
            zero_advantage_is_free=self.step.objective.zero_advantage_is_free,
            attention=attention_of(facts_of(self.loaded)),
            names=tuple(self._tensors()),
            notes=(*self.loaded.notes, *(note for one in self.step.teachers.values() for note in one.loaded.notes)),
            process=os.getpid(),
            whole_responses=self.step.whole_responses,
            machine=os.uname().nodename,
            context_parallel=1 if self.loaded.unit is None else self.loaded.unit.size,
            padded=tuple(name for name, teacher in self.step.teachers.items() if not teacher.loaded.packed),
        )

    def learn(self, step: RankStep) -> tuple[Stats, list[list[TokenTrace]]]:
        """Take an optimiser step for each minibatch, on the gradient of sum(weight x correction x L).

        A minibatch without any loss token moves nothing, neither weights nor moments, and counts in
        ``train/empty_steps``.

        Returns:
            This worker's share of the statistics, where rank 0 counts the steps, and of each minibatch's traces. Of
            workers that share rows the first one speaks of them.

        Raises:
            LearnerError: More than ``max_skipped_steps`` steps in a row had a gradient that is not finite.
        """
        _check_planned(step, self.rank)
        self._source.lent = []
        self.step.entropy_coefficient = step.entropy_coefficient
        olds: OldLogprobs | None = None
        if step.ratio_against == "learner":
            olds = OldLogprobs(step, self._old_logprobs(step), shared=self.step.sharding is not None)
        stats: list[Stats] = []
        traces: list[list[TokenTrace]] = []
        for number, work in enumerate(step.minibatches):
            if work is None:
                stats.append(self._counted(step_counts(empty=True)))
                continue
            record = TokenRecord(step.version, step.ratio_against == "learner", self._weights_moved)
            old = None if olds is None else olds.of(number, work.rows)
            passes = self.step.minibatch(work, record, ratio_against=step.ratio_against, old_logprobs=old)
            if self._speaks_of_rows:
                stats += [passes, record.stats()]
            traces.append(record.traces() if self._speaks_of_rows else [])
            if olds is not None:
                olds.keep(record.rated)
            updated = self.step.optimizer_step(work.learning_rate)
            self._weights_moved |= updated["train/skipped_steps"].value == 0
            stats.append(self._counted(updated))
        if step.refresh_reference and self.step.reference is not None:
            self.step.reference.refresh()
        if self.step.experts is not None:
            stats.append(self._counted(self.step.experts.finish(shared=self.step.sharding is not None)))
        if self.loaded.adapter and not self.loaded.sends_adapter and step.minibatches:
            stats.append(self._counted(stat("train/merge_error", self._merge_error())))
        return merge([*stats, reserved()]), traces

    def logprobs(self, rows: Sequence[TokenRow], passes: Sequence[Pass], of: Of = "policy") -> list[FloatArray]:
        """Return the log-probability of every response token under the present weights, in the order of ``rows``.

        Of workers that share rows only the first one answers with them.

        Raises:
            LearnerError: of a reference or a teacher, where there is none.
        """
        with self.step.under(of) as model:
            found = _logprobs(model, rows, passes)
        give_back()
        return found if self._speaks_of_rows else []

    def rounding(self, rows: Sequence[TokenRow]) -> FloatArray | None:
        """Return how far rounding moves the tokens of ``rows`` in the model's own forward pass (``own_rounding``).

        None for weights that lie in slices on several ranks.
        """
        found = None if self.step.sharding is not None else own_rounding(self.loaded, rows, self.step.temperature)
        give_back()
        return found

    def send(self, route: Route, *args: Any) -> Any:
        """Do this worker's part of a publish (``WeightRoute.part``), and return what the driver's part wants of it.

        Raises:
            EngineError: weights cannot be written.
            LearnerError: they are not where the route finds them.
        """
        self._weights_moved = False
        answer = ROUTES[route].part(self._source, *args)
        give_back()
        return answer

    def give_back(self) -> None:
        """Return cached device memory, before engines that share the device wake."""
        give_back()

    def checksums(self, dtypes: Mapping[str, str]) -> dict[str, int]:
        """Return this worker's share of each sum: they add up, modulo 2^64, to the sum of the whole tensor."""
        model = self.loaded.model
        present = apart(model) if self.loaded.sends_adapter else published(model, aliases=True)
        return once_each(
            [name for name in dtypes if name in present],
            lambda name: (present.same(name), dtypes[name]),
            lambda name: self._share(present[name], torch_dtype(dtypes[name])),
        )

    def save(self, folder: Path, asynchronous: bool = False) -> list[SavedFile]:
        """Write this worker's part of a checkpoint; with ``asynchronous`` only begin to, and answer nothing yet."""
        counters = {"skipped_in_a_row": self.step.skipped_in_a_row}
        self._checkpoint.begin(folder, counters, asynchronous=asynchronous)
        return [] if asynchronous else self._checkpoint.finish()

    def is_saved(self) -> bool:
        """Return whether a save that was begun is on the disk."""
        return self._checkpoint.is_written()

    def saved(self) -> list[SavedFile]:
        """Return the files of a save that was begun, waited for."""
        return self._checkpoint.finish()

    def check(self, folder: Path) -> None:
        """Look at a checkpoint before any worker loads it.

        Raises:
            CheckpointError: it is incomplete, or belongs to another model.
        """
        self._checkpoint.check(folder)

    def load(self, folder: Path) -> None:
        """Take over this worker's part of a checkpoint of any number of workers, in place: an engine that shares the
        weights sees them at the next publish.
        """
        counters = self._checkpoint.load(folder)
        self.step.skipped_in_a_row = int(counters["skipped_in_a_row"])
        self._weights_moved = False

    def close(self) -> None:
        """Finish what is being written and leave the others."""
        self._checkpoint.close()
        if self.step.sharding is not None and dist.is_initialized():
            dist.destroy_process_group()

    def _tensors(self) -> Mapping[str, Tensor]:
        """Return what is published, by name."""
        return adapter_parts(self.loaded.model) if self.loaded.sends_adapter else model_tensors(self.loaded.model)

    @property
    def _speaks_of_rows(self) -> bool:
        """Whether no other worker that has the same rows comes before it."""
        return self.loaded.unit is None or self.loaded.unit.place == 0

    def _old_logprobs(self, step: RankStep) -> list[list[FloatArray] | None]:
        """Return the log-probabilities of each minibatch's rows before the first step.

        The minibatches are those of the first epoch. The passes are those of training: as long as the weights have not
        moved, the ratio is exactly 1 in any number format. With one minibatch they are the detached current ones, and
        no pass of their own is needed.
        """
        first = step.minibatches[: len(step.minibatches) // step.epochs]
        if len(first) == 1:
            return [None]
        return [None if work is None else _logprobs(self.step, work.rows, work.passes, learning=True) for work in first]

    def _merge_error(self) -> float:
        """Return that of the rows of all ranks together."""
        squares = torch.tensor(merge_squares(self.loaded.model), dtype=torch.float64)
        if self.step.sharding is not None:
            dist.all_reduce(squares)  # of several copies of the model each adds the same to both
        return relative(*squares.tolist())

    def _counted(self, stats: Stats) -> Stats:
        return stats if self.rank == 0 else {}

    def _share(self, tensor: Tensor, dtype: torch.dtype) -> int:
        """Return the checksum of this worker's part, rounded as it is published and then to ``dtype``."""
        part = own_part(tensor)
        if self._source.sharded and part.is_floating_point():
            part = part.to(self._source.dtype)
        if not isinstance(tensor, DTensor):  # a whole model's, or a buffer, which all ranks have
            return checksum(part, dtype) if self.rank == 0 else 0
        first, _ = own_rows(tensor)
        return checksum(part, dtype, first=first * int(np.prod(tensor.shape[1:]))) if self.rank < self._shards else 0


def _logprobs(
    model: ForwardPasses, rows: Sequence[TokenRow], passes: Sequence[Pass], *, learning: bool = False
) -> list[FloatArray]:
    found: dict[int, FloatArray] = {}
    for planned in passes:
        if planned.rows:
            logprobs = model.logprobs([rows[n] for n in planned.rows], learning=learning)
            found.update(zip(planned.rows, logprobs, strict=True))
        else:
            model.logprobs([FILLER])
    model.release()
    return [found[number] for number in range(len(rows))]


# ---------------------------------------------------------------------- one of several


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Rank and group of one worker among all workers; it can be pickled."""

    rank: int
    shape: Shape
    rendezvous: str  # where they find each other: file://PATH of a new file, or store://HOST:PORT/KEY
    timeout: float  # seconds that one may be waited for

    def join(self, device: torch.device) -> torch.device:
        """Meet the others and return this rank's device: on CUDA, the one of its number on its machine.

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
            device = torch.device("cuda", local)
            backend = "cpu:gloo,cuda:nccl"
        patience = datetime.timedelta(seconds=self.timeout)
        where: dict[str, Any] = {"init_method": self.rendezvous}
        if self.rendezvous.startswith(SCHEME):  # the driver's, which is there before any rank and lives longer
            where = {"store": find(self.rendezvous, patience)}
        dist.init_process_group(backend, rank=self.rank, world_size=self.shape.ranks, timeout=patience, **where)
        return device


def make_worker(
    place: RankPlace,
    model: schema.Model,
    settings: schema.LearnerSection,
    temperature: float,
    objective: Objective,
    correction: Correction | None = None,
    reference: schema.ReferenceSection | None = None,
    *,
    device: torch.device,
    seed: int = 0,
    teachers: Mapping[Of, schema.Model] | None = None,
    offload: bool = False,
) -> Worker:
    """Read this rank's part of the model and of its teachers; the rank has joined the others.

    ``seed``: of an adapter's random start. ``offload``: teachers stay in the processor's memory.

    Raises:
        ModelError: a model cannot be loaded, or not be cut over ranks.
    """
    loaded, sharding = _part(place, place.shape, model, device, seed)
    own = {}
    for name, theirs in (teachers or {}).items():
        shape = replace(place.shape, cpu_offload=offload and device.type != "cpu")
        other, cut = _part(place, shape, theirs, device, seed, frozen=True)
        own[name] = Teacher(other, settings, temperature, cut)
    step = PolicyStep(loaded, objective, settings, temperature, correction, reference, sharding, teachers=own)
    return Worker(step)


def _part(
    place: RankPlace, shape: Shape, model: schema.Model, device: torch.device, seed: int, *, frozen: bool = False
) -> tuple[LoadedModel, Sharding]:
    """Read this rank's part of a model; one that is ``frozen`` keeps the type that it computes in."""
    made: list[Sharding] = []

    def spread(loaded: LoadedModel) -> Inside:
        if frozen:
            loaded.model.requires_grad_(False)
        start = _with_adapter(loaded, model, seed)
        for parameter in loaded.model.parameters():
            if not parameter.requires_grad:
                parameter.data = parameter.data.to(loaded.dtype)
        sharding = Sharding(loaded, shape.mesh(device), shape)
        made.append(sharding)
        loaded.unit = join_unit(shape.context_parallel, place.timeout)
        give_memory(loaded.model, torch.device("cpu") if shape.cpu_offload else device)
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
    return loaded, made[0]


def _with_adapter(loaded: LoadedModel, model: schema.Model, seed: int) -> dict[str, Tensor]:
    """Add the recipe's adapter, if it has one, before the model is cut; what it begins with.

    It is cut as its layers are: what is gathered with them needs no exchange of its own. Frozen weights stay in the
    model's type: they get no update that float32 would have to keep.
    """
    if model.lora.rank is None:
        return {}
    start = add_adapter(loaded.model, model.lora, name=model.path, seed=seed)
    loaded.adapter = True
    return start


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


class OldLogprobs:
    """Old log-probabilities of a training step's rows, frozen before the first update of the first epoch.

    Later epochs draw their minibatches anew. A rank may get rows that another rank had before, so ranks exchange what
    they found. With one minibatch every epoch deals the same rows to the same ranks.

    Args:
        step: the training step.
        first: for each minibatch of the first epoch, what was computed in advance; None: nothing was.
        shared: whether other ranks have rows of the step.
    """

    def __init__(self, step: RankStep, first: Sequence[list[FloatArray] | None], *, shared: bool) -> None:
        self._first = first
        self._freezes = step.epochs > 1
        self._to_exchange = shared and len(first) > 1
        self._frozen: dict[tuple[int, int, int], FloatArray] = {}

    def of(self, number: int, rows: Sequence[Row]) -> list[FloatArray] | None:
        """Return those of ``rows`` in minibatch ``number``; None: they are the detached current ones.

        All ranks ask for the same minibatches in one order.
        """
        if number < len(self._first):
            return self._first[number]
        if self._to_exchange:
            self._exchange()
        return [self._frozen[row.group, row.sample, row.part] for row in rows]

    def keep(self, rated: Sequence[Rated]) -> None:
        """Keep what the ratios of a minibatch ran against."""
        if self._freezes:
            self._frozen |= {(r.row.group, r.row.sample, r.row.part): r.old_logprobs for r in rated}

    def _exchange(self) -> None:
        parts: list[dict[tuple[int, int, int], FloatArray]] = [{} for _ in range(dist.get_world_size())]
        dist.all_gather_object(parts, self._frozen)
        for part in parts:
            self._frozen |= part
        self._to_exchange = False
