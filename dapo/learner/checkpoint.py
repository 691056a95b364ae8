"""A worker's part of the learner's checkpoint: safetensors files of slices, which one after another are the tensors.

learner/
    rank-00000-of-00002.safetensors  slices of the first rank, and all that is not cut over ranks
    rank-00001-of-00002.safetensors  of ranks that hold copies of the model, those of the first copy write
    state.json                       the model's fingerprint, counters and the number of those files (rank 0)
    adapter_config.json              of an adapter, whose tensors alone are in the files (rank 0)

A learner of one process writes one such file. Any number of ranks reads what any other number wrote. No rank waits for
another, and reading runs no code.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo.errors import CheckpointError
from dapo.learner.optimizer import Optimizer
from dapo.learner.reference_policy import Reference
from dapo.learner.tensor_files import TensorFiles, write_tensors
from dapo.models import adapter
from dapo.models.loaded import LoadedModel
from dapo.models.slices import own_part, own_rows
from dapo.models.weight_files import PART, model_tensors
from dapo.types.batch import SavedFile
from dapo.types.model import check_fingerprint

STATE = "state.json"
MODEL, OPTIMIZER, REFERENCE = "model/", "optimizer/", "reference/"
"""How names of tensors begin, by what they belong to. Only a reference that is refreshed is saved."""
MASTER = f"{OPTIMIZER}master/"
_MOST_SHARDS = 99_999


@dataclass(frozen=True, slots=True)
class Contents:
    """The files of a checkpoint, by name, before they are written."""

    tensors: Mapping[str, Mapping[str, Tensor]]
    texts: Mapping[str, str]

    def copied(self) -> Contents:
        """Return the same with tensors of its own, in the processor's memory, which training does not change."""
        return Contents(
            {
                name: {key: tensor.detach().to("cpu", copy=True) for key, tensor in own.items()}
                for name, own in self.tensors.items()
            },
            self.texts,
        )

    def write(self, folder: Path) -> list[SavedFile]:
        """Write the files to the disk. The caller makes the folder appear atomically."""
        folder.mkdir(parents=True, exist_ok=True)
        files = [write_tensors(folder / name, own) for name, own in self.tensors.items()]
        for name, text in self.texts.items():
            with (folder / name).open("wb") as file:
                file.write(text.encode())
                file.flush()
                os.fsync(file.fileno())
            files.append(SavedFile(name, len(text.encode()), zlib.crc32(text.encode())))
        return files


class CheckpointPart:
    """Writes and reads one worker's part.

    Args:
        loaded: the model, whole or cut over ranks.
        optimizer: over the model's parameters.
        reference: where it is refreshed, and so a checkpoint's own.
        rank: the worker's number.
        shards: the number of workers over which one copy of the model is cut.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        optimizer: Optimizer,
        reference: Reference | None = None,
        *,
        rank: int = 0,
        shards: int = 1,
    ) -> None:
        self._loaded, self._optimizer, self._reference = loaded, optimizer, reference
        self._rank, self._shards = rank, shards
        # A collective call, so it is made here, where all ranks are; frozen weights do not change.
        self._base = _base_sums(loaded)
        self._writer: ThreadPoolExecutor | None = None
        self._under_way: Future[list[SavedFile]] | None = None

    def begin(self, folder: Path, counters: Mapping[str, Any], *, asynchronous: bool) -> None:
        """Write this worker's tensors into ``folder``; ``asynchronous``: copy them now, write while it trains."""
        self.finish()
        contents = self._contents(counters)
        if asynchronous:
            if self._writer is None:
                self._writer = ThreadPoolExecutor(1, "checkpoint")
            self._under_way = self._writer.submit(contents.copied().write, folder)
        else:
            self._under_way = Future()
            self._under_way.set_result(contents.write(folder))

    def is_written(self) -> bool:
        """Return whether ``finish`` would not wait."""
        return self._under_way is None or self._under_way.done()

    def finish(self) -> list[SavedFile]:
        """Return what this worker wrote, once all of it is on the disk; [] if nothing was begun."""
        under_way, self._under_way = self._under_way, None
        return [] if under_way is None else under_way.result()

    def close(self) -> None:
        """Wait until what was begun is on the disk."""
        if self._writer is not None:
            self._writer.shutdown()

    def check(self, folder: Path) -> None:
        """Raise CheckpointError for a checkpoint that ``load`` could not take over whole."""
        state = _read_state(folder)
        with _open_tensors(folder, state) as files:
            there = files.shapes
            if self._reference is not None and not any(name.startswith(REFERENCE) for name in there):
                raise CheckpointError(
                    f"{folder} holds no reference, and algorithm.reference.refresh_every needs the one that this run "
                    "had: resume with the setting that the checkpoint was saved with"
                )
            _check_model(folder, state, there, self._loaded, self._base)
            sources = _Sources(self._loaded, there)
            for name, tensor in self._in_place().items():
                _check_shape(folder, there, sources.of(name), tuple(tensor.shape))
            moments = self._moments(there)
            _check_optimizer(folder, there, moments)
            for name, tensor in moments.items():
                _check_shape(folder, there, name, tuple(tensor.shape))

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what ``check`` found whole; returns the counters."""
        self.finish()
        state = _read_state(folder)
        with _open_tensors(folder, state) as files:
            there = files.shapes
            moments = self._moments(there)
            _read(files, self._in_place() | moments, _Sources(self._loaded, there))
        self._optimizer.load({name.removeprefix(OPTIMIZER): tensor for name, tensor in moments.items()})
        counters: dict[str, Any] = state["counters"]
        return counters

    def _contents(self, counters: Mapping[str, Any]) -> Contents:
        """Return this worker's files: slices of what is cut; whole tensors and texts are rank 0's."""
        if self._rank >= self._shards:  # it holds what another rank writes: a copy of the model
            return Contents({}, {})
        own = {}
        tensors = self._in_place() | {OPTIMIZER + name: tensor for name, tensor in self._optimizer.state().items()}
        for name, tensor in tensors.items():
            part = own_part(tensor)
            if self._rank == 0 or (isinstance(tensor, DTensor) and part.numel()):
                own[name] = part
        texts = {}
        if self._rank == 0:
            state = {"fingerprint": self._loaded.fingerprint, "counters": dict(counters), "shards": self._shards}
            if self._loaded.adapter:
                state["base"] = self._base
                texts[adapter.CONFIG] = adapter.adapter_config(self._loaded.model)
            texts[STATE] = json.dumps(state, indent=1)
        return Contents({PART.format(rank=self._rank, ranks=self._shards): own}, texts)

    def _in_place(self) -> dict[str, Tensor]:
        """Return the tensors that are read where they are: weights, their float32 copies, and the reference."""
        tensors = {MODEL + name: tensor for name, tensor in _trained(self._loaded).items()}
        if self._reference is not None:
            tensors |= {REFERENCE + name: tensor for name, tensor in self._reference.state().items()}
        return tensors | {MASTER + name: tensor for name, tensor in self._optimizer.copies().items()}

    def _moments(self, there: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return an unfilled tensor for each that the optimizer takes over, by the name in the checkpoint."""
        saved = {name.removeprefix(OPTIMIZER).partition("/")[2] for name in there if _is_moment(name)}
        names = [name for name in self._optimizer.masters if name in saved]
        return {OPTIMIZER + key: tensor for name in names for key, tensor in self._optimizer.unfilled(name).items()}


def load_weights(folder: Path, loaded: LoadedModel) -> None:
    """Restore the weights alone, in a model that is not cut.

    Raises:
        CheckpointError: a file is missing or damaged, or the checkpoint belongs to another model; nothing is changed.
    """
    state = _read_state(folder)
    with _open_tensors(folder, state) as files:
        _check_model(folder, state, files.shapes, loaded, _base_sums(loaded))
        weights = {MODEL + name: tensor for name, tensor in _trained(loaded).items()}
        _read(files, weights, _Sources(loaded, files.shapes))


# ---------------------------------------------------------------------- reading


class _Sources:
    """Index of a checkpoint's files that says where to read each tensor from.

    A process that holds a bfloat16 model whole keeps float32 copies of its weights beside them. Ranks keep the weights
    themselves in float32. So either takes the other's float32 numbers.
    """

    def __init__(self, loaded: LoadedModel, there: Mapping[str, tuple[int, ...]]) -> None:
        names = [name for name, parameter in loaded.model.named_parameters() if parameter.requires_grad]
        weights = {MASTER + name: MODEL + (adapter.file_name(name) if loaded.adapter else name) for name in names}
        self._copies = {weight: copy for copy, weight in weights.items() if copy in there}
        self._weights = {copy: weight for copy, weight in weights.items() if copy not in there}

    def of(self, name: str) -> str:
        """Return the name in the checkpoint."""
        return self._copies.get(name) or self._weights.get(name) or name


@torch.no_grad()
def _read(files: TensorFiles, wanted: Mapping[str, Tensor], sources: _Sources) -> None:
    """Fill each of ``wanted`` with this worker's rows of it."""
    for name, tensor in wanted.items():
        source = sources.of(name)
        if isinstance(tensor, DTensor):
            first, rows = own_rows(tensor)
            own_part(tensor).copy_(files.rows(source, first, rows))
        else:
            tensor.copy_(files.whole(source))


def _open_tensors(folder: Path, state: Mapping[str, Any]) -> TensorFiles:
    """Open the files of all ranks; CheckpointError where one is missing or damaged."""
    shards = state["shards"]
    try:
        return TensorFiles([folder / PART.format(rank=rank, ranks=shards) for rank in range(shards)])
    except OSError as error:
        raise _incomplete(folder, error) from error


def _read_state(folder: Path) -> dict[str, Any]:
    """Read fingerprint, counters and the number of files; CheckpointError where they are missing or damaged."""
    try:
        state: Any = json.loads((folder / STATE).read_text(encoding="utf-8"))
        parts = ("counters", "fingerprint")
        if not isinstance(state, dict) or not all(isinstance(state.get(part), dict) for part in parts):
            raise ValueError(f"{STATE} does not hold fingerprint and counters")
        shards = state.get("shards")
        if type(shards) is not int or not 1 <= shards <= _MOST_SHARDS:
            raise ValueError(f"{STATE} gives shards as {shards!r}, expected a number from 1 to {_MOST_SHARDS}")
    except (OSError, ValueError, RecursionError) as error:
        raise _incomplete(folder, error) from error
    return state


# ---------------------------------------------------------------------- refusing


def _check_model(
    folder: Path,
    state: Mapping[str, Any],
    there: Mapping[str, tuple[int, ...]],
    loaded: LoadedModel,
    base: Mapping[str, int],
) -> None:
    """Raise CheckpointError for a checkpoint of another model, or of an adapter that means nothing here.

    Args:
        folder: the checkpoint.
        state: from ``_read_state``.
        there: the shapes of its tensors.
        loaded: the model that is to take it over.
        base: from ``_base_sums``.
    """
    check_fingerprint(state["fingerprint"], loaded.fingerprint, folder)
    if loaded.adapter:
        _check_scaling(folder, loaded)
        _check_base(folder, state, loaded, base)
    saved = {name.removeprefix(MODEL): shape for name, shape in there.items() if name.startswith(MODEL)}
    present = {name: tuple(tensor.shape) for name, tensor in _trained(loaded).items()}
    unequal = sorted(set(saved) ^ set(present)) or [name for name in present if saved[name] != present[name]]
    if unequal:
        raise CheckpointError(
            f"{folder} and the model {loaded.name!r} differ in {len(unequal)} tensors "
            f"({', '.join(unequal[:3])}); resume with the model that the run began with"
        )


def _check_scaling(folder: Path, loaded: LoadedModel) -> None:
    """Raise CheckpointError for an adapter whose product was multiplied by something else."""
    try:
        saved = adapter.scaling_settings((folder / adapter.CONFIG).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _incomplete(folder, error) from error
    here = adapter.scaling_settings(adapter.adapter_config(loaded.model))
    if saved != here:
        raise CheckpointError(
            f"{folder} holds an adapter with {saved}, and the recipe's model.lora gives {here}: resume with the "
            "settings that the run began with"
        )


def _check_base(folder: Path, state: Mapping[str, Any], loaded: LoadedModel, here: Mapping[str, int]) -> None:
    """Raise CheckpointError for an adapter of other frozen weights: by itself it means nothing."""
    other = sorted(name for name, value in state.get("base", here).items() if here.get(name, value) != value)
    if other:
        raise CheckpointError(
            f"{folder} holds an adapter of other weights than {loaded.name!r} has now ({', '.join(other)} differ): put "
            "the model back that the run began with"
        )


def _check_optimizer(folder: Path, there: Mapping[str, Any], moments: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError for moments in a form that this optimizer does not keep."""
    other = [name for name in there if _is_moment(name) and name not in moments]
    kinds = {name.removeprefix(OPTIMIZER).partition("/")[0] for name in other}
    if moments and kinds:
        raise CheckpointError(
            f"{folder} holds moments of another optimizer ({', '.join(sorted(kinds))}): resume with the "
            "learner.optimizer that the run began with"
        )


def _is_moment(name: str) -> bool:
    return name.startswith(OPTIMIZER) and not name.startswith(MASTER)


def _check_shape(folder: Path, there: Mapping[str, tuple[int, ...]], name: str, expected: tuple[int, ...]) -> None:
    if there.get(name) != expected:
        found = f"has shape {list(there[name])}" if name in there else "is missing"
        raise _incomplete(folder, f"{name} {found}, expected shape {list(expected)}")


def _incomplete(folder: Path, error: object) -> CheckpointError:
    return CheckpointError(f"{folder} is not a complete learner checkpoint ({error}); resume from another one")


def _base_sums(loaded: LoadedModel) -> dict[str, int]:
    """Return checksums of frozen weights that an adapter was trained on; {} without an adapter."""
    return adapter.base_sums(loaded.model) if loaded.adapter else {}


def _trained(loaded: LoadedModel) -> Mapping[str, Tensor]:
    """Return the very tensors that a checkpoint holds: of a frozen model the adapter's alone."""
    return adapter.adapter_tensors(loaded.model) if loaded.adapter else model_tensors(loaded.model)
