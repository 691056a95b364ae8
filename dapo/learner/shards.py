"""A rank's part of checkpoints, by torch's distributed checkpoint: tensors by name, whoever holds them.

learner/
    .metadata            which tensor lies where (rank 0)
    __R_0.distcp         what rank R wrote
    state.json           the model's fingerprint and counters (rank 0)
    adapter_config.json  of an adapter, whose tensors alone are there then (rank 0)

A number of ranks means nothing to it: any other number reads it, and so does the learner of one process
(``dapo.learner.storage``), whose own checkpoints are read here.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo.contracts.model import check_fingerprint
from dapo.contracts.types import SavedFile
from dapo.learner import storage
from dapo.learner.optimizer import Optimizer
from dapo.learner.reference import Reference
from dapo.learner.storage import (
    STATE,
    check_adapter,
    check_names,
    incomplete,
    no_reference,
    parameter_names,
    read_state,
    trained,
    weights_file,
)
from dapo.models import adapter
from dapo.models.loaded import LoadedModel
from dapo.models.slices import own_part, own_rows

METADATA = ".metadata"
MODEL, OPTIMIZER, REFERENCE = "model/", "optimizer/", "reference/"


class ShardStore:
    """Writes and reads one rank's part. Every method is called by all ranks, in one order.

    Args:
        loaded: the model, cut over ranks.
        rank: this one's number.
        optimizer: over the model's parameters.
        reference: where it is refreshed, and so a checkpoint's own.
    """

    def __init__(
        self, loaded: LoadedModel, rank: int, optimizer: Optimizer, reference: Reference | None = None
    ) -> None:
        self._loaded, self._rank, self._optimizer, self._reference = loaded, rank, optimizer, reference
        # Gathered here, where all ranks come by; frozen weights stay what they are.
        self._base = adapter.base_sums(loaded.model) if loaded.adapter else {}
        self._group: Any = None  # of saves beside training: on that of training they would wait for each other for ever
        self._under_way: tuple[Path, dict[str, Any], Future[Any] | None] | None = None

    def begin(self, folder: Path, counters: Mapping[str, Any], *, asynchronous: bool) -> None:
        """Write this rank's tensors into ``folder``; ``asynchronous``: copy them now, write while training goes on."""
        from torch.distributed.checkpoint.filesystem import FileSystemWriter
        from torch.distributed.checkpoint.state_dict_saver import async_save, save

        self.finish()
        folder.mkdir(parents=True, exist_ok=True)
        tensors = self._tensors()
        writing: Any = None
        if asynchronous:
            if self._group is None:
                self._group = dist.new_group(backend="gloo")
            writing = async_save(tensors, storage_writer=FileSystemWriter(folder), process_group=self._group)
        else:
            save(tensors, storage_writer=FileSystemWriter(folder))
        self._under_way = (folder, dict(counters), writing)

    def is_written(self) -> bool:
        """Whether ``finish`` would not wait."""
        return self._under_way is None or self._under_way[2] is None or self._under_way[2].done()

    def finish(self) -> list[SavedFile]:
        """What this rank wrote, once all of it is on the disk; [] where nothing was begun."""
        if self._under_way is None:
            return []
        folder, counters, writing = self._under_way
        self._under_way = None
        if writing is not None:
            writing.result()
        own = sorted(path.name for path in folder.glob(f"__{self._rank}_*.distcp"))
        if self._rank == 0:
            state = {"fingerprint": self._loaded.fingerprint, "counters": counters, "sharded": True}
            own += [METADATA, STATE]
            if self._loaded.adapter:
                state["base"] = self._base
                (folder / adapter.CONFIG).write_text(adapter.adapter_config(self._loaded.model), encoding="utf-8")
                own.append(adapter.CONFIG)
            (folder / STATE).write_text(json.dumps(state, indent=1), encoding="utf-8")
        for name in own:
            _flush(folder / name)
        return [_described(folder, name) for name in own]

    def check(self, folder: Path) -> None:
        """Raise CheckpointError for a checkpoint that ``load`` could not take over whole."""
        state = read_state(folder)
        check_fingerprint(state["fingerprint"], self._loaded.fingerprint, folder)
        if self._loaded.adapter:
            check_adapter(folder, state, self._loaded, self._base)
        there = self._there(folder, state)
        names = [name.removeprefix(MODEL) for name in there if name.startswith(MODEL)]
        check_names(
            {name: there[MODEL + name] for name in names},
            {name: tuple(tensor.shape) for name, tensor in trained(self._loaded).items()},
            folder,
            self._loaded.name,
        )

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what ``check`` found whole; returns the counters."""
        from torch.distributed.checkpoint.filesystem import FileSystemReader
        from torch.distributed.checkpoint.state_dict_loader import load

        self.finish()
        state = read_state(folder)
        there = self._there(folder, state)
        wanted = self._wanted(there)
        if state.get("sharded"):
            load(wanted, storage_reader=FileSystemReader(folder))
        else:
            _read_local(folder, wanted, there, self._loaded)
        self._optimizer.load({n.removeprefix(OPTIMIZER): t for n, t in wanted.items() if n.startswith(OPTIMIZER)})
        counters: dict[str, Any] = state["counters"]
        return counters

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {MODEL + name: tensor for name, tensor in trained(self._loaded).items()}
        if self._reference is not None:
            tensors |= {REFERENCE + name: tensor for name, tensor in self._reference.state().items()}
        return tensors | {OPTIMIZER + name: tensor for name, tensor in self._optimizer.state().items()}

    def _there(self, folder: Path, state: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
        """Shape of each tensor of a checkpoint, under our names.

        Raises:
            CheckpointError: a file is missing or was cut off, or the reference that this learner needs is not there.
        """
        if state.get("sharded"):
            found = {name: tuple(entry.size) for name, entry in sharded_tensors(folder).items()}
        else:
            found = _local_shapes(folder, self._loaded)
        if self._reference is not None and not any(name.startswith(REFERENCE) for name in found):
            raise no_reference(folder, "none was saved")
        return found

    def _wanted(self, there: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """The tensors to read into: the model's own, and new ones for the optimiser's."""
        wanted = {MODEL + name: tensor for name, tensor in trained(self._loaded).items()}
        if self._reference is not None:
            wanted |= {REFERENCE + name: tensor for name, tensor in self._reference.state().items()}
        for name, shape in there.items():
            kind, _, parameter = name.removeprefix(OPTIMIZER).partition("/")
            if not name.startswith(OPTIMIZER) or kind == "master" or parameter not in self._optimizer.parameters:
                continue
            like = self._optimizer.parameters[parameter]
            wanted[name] = torch.zeros_like(like) if shape else torch.zeros(())
        return wanted


def sharded_tensors(folder: Path) -> dict[str, Any]:
    """Size and type of each tensor of a sharded checkpoint; only its description is read.

    Raises:
        CheckpointError: a file is missing or was cut off.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader

    try:
        described = FileSystemReader(folder).read_metadata()
        ends: dict[str, int] = {}
        for place in described.storage_data.values():
            ends[place.relative_path] = max(ends.get(place.relative_path, 0), place.offset + place.length)
        for name, end in ends.items():
            if (size := (folder / name).stat().st_size) < end:
                raise OSError(f"{name} has {size} bytes of {end}")
    except Exception as error:  # unpickling a damaged description raises anything
        raise incomplete(folder, error) from error
    return dict(described.state_dict_metadata)


def read_sharded(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Model and optimiser of a sharded checkpoint, whole: for the learner of one process.

    Raises:
        CheckpointError: a file is missing or damaged.
    """
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    there = sharded_tensors(folder)
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in there.items()}
    try:
        load(tensors, storage_reader=FileSystemReader(folder), no_dist=True)
    except Exception as error:
        raise incomplete(folder, error) from error
    parts = [
        {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        for prefix in (MODEL, OPTIMIZER)
    ]
    return parts[0], parts[1]


def read_sharded_reference(folder: Path) -> dict[str, Tensor]:
    """The reference of a sharded checkpoint, whole."""
    from torch.distributed.checkpoint.filesystem import FileSystemReader
    from torch.distributed.checkpoint.state_dict_loader import load

    there = {name: one for name, one in sharded_tensors(folder).items() if name.startswith(REFERENCE)}
    if not there:
        raise FileNotFoundError("none was saved")
    tensors = {name: torch.empty(entry.size, dtype=entry.properties.dtype) for name, entry in there.items()}
    load(tensors, storage_reader=FileSystemReader(folder), no_dist=True)
    return {name.removeprefix(REFERENCE): tensor for name, tensor in tensors.items()}


def _local_files(loaded: LoadedModel) -> dict[str, str]:
    """Of a checkpoint of the learner of one process: which file holds what."""
    return {MODEL: weights_file(loaded), OPTIMIZER: storage.OPTIMIZER, REFERENCE: storage.REFERENCE}


def _local_shapes(folder: Path, loaded: LoadedModel) -> dict[str, tuple[int, ...]]:
    from safetensors import safe_open

    found: dict[str, tuple[int, ...]] = {}
    for prefix, file_name in _local_files(loaded).items():
        if prefix == REFERENCE and not (folder / file_name).exists():
            continue
        try:
            with safe_open(folder / file_name, framework="pt") as file:
                found |= {prefix + name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        except Exception as error:  # safetensors raises its own, OSError and ValueError
            raise incomplete(folder, error) from error
    return found


@torch.no_grad()
def _read_local(folder: Path, wanted: Mapping[str, Tensor], there: Mapping[str, Any], loaded: LoadedModel) -> None:
    """This rank's rows of each tensor. float32 copies of a bfloat16 model come before its weights."""
    from safetensors import safe_open

    parameters = parameter_names(loaded)
    with ExitStack() as stack:
        files = {
            prefix: stack.enter_context(safe_open(folder / name, framework="pt"))
            for prefix, name in _local_files(loaded).items()
            if (folder / name).exists()
        }
        for name, tensor in wanted.items():
            master = f"{OPTIMIZER}master/{parameters.get(name.removeprefix(MODEL))}"
            source = master if name.startswith(MODEL) and master in there else name
            prefix = next(prefix for prefix in files if source.startswith(prefix))
            own = source.removeprefix(prefix)
            if isinstance(tensor, DTensor):
                first, rows = own_rows(tensor)
                own_part(tensor).copy_(files[prefix].get_slice(own)[first : first + rows])
            else:
                tensor.copy_(files[prefix].get_tensor(own))


def _described(folder: Path, name: str) -> SavedFile:
    crc = 0
    with (folder / name).open("rb") as file:
        while block := file.read(1 << 22):
            crc = zlib.crc32(block, crc)
    return SavedFile(name, (folder / name).stat().st_size, crc)


def _flush(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
