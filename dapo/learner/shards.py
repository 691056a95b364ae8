"""A rank's part of checkpoints: safetensors files of slices, which one after another are the tensors.

learner/
    rank-00000-of-00002.safetensors  slices of the first rank, and all that is not cut over ranks
    rank-00001-of-00002.safetensors  of ranks that hold copies of the model, those of the first copy write
    state.json                       the model's fingerprint, counters and the number of those files (rank 0)
    adapter_config.json              of an adapter, whose tensors alone are in the files (rank 0)

Any other number of ranks reads such a checkpoint, and so does the learner of one process (``dapo.learner.storage``),
whose own checkpoints are read here. No rank waits for another, and reading runs no code.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo.learner.optimizer import Optimizer
from dapo.learner.reference import Reference
from dapo.learner.sharding import Shape
from dapo.learner.storage import (
    MODEL,
    OPTIMIZER,
    REFERENCE,
    SHARDS,
    STATE,
    Contents,
    check_adapter,
    check_names,
    incomplete,
    no_reference,
    open_tensors,
    parameter_names,
    rank_file,
    read_state,
    trained,
)
from dapo.learner.tensor_files import TensorFiles
from dapo.models import adapter
from dapo.models.loaded import LoadedModel
from dapo.models.slices import own_part, own_rows
from dapo.types.batch import SavedFile
from dapo.types.model import check_fingerprint


class ShardStore:
    """Writes and reads one rank's part.

    Args:
        loaded: the model, cut over ranks.
        rank: this one's number.
        shape: how the ranks share the model.
        optimizer: over the model's parameters.
        reference: where it is refreshed, and so a checkpoint's own.
    """

    def __init__(
        self, loaded: LoadedModel, rank: int, shape: Shape, optimizer: Optimizer, reference: Reference | None = None
    ) -> None:
        self._loaded, self._rank, self._optimizer, self._reference = loaded, rank, optimizer, reference
        self._shards = shape.ranks // shape.replicas
        # A collective call, so it is made here, where all ranks are; frozen weights do not change.
        self._base = adapter.base_sums(loaded.model) if loaded.adapter else {}
        self._writer: ThreadPoolExecutor | None = None
        self._under_way: Future[list[SavedFile]] | None = None

    def begin(self, folder: Path, counters: Mapping[str, Any], *, asynchronous: bool) -> None:
        """Write this rank's tensors into ``folder``; ``asynchronous``: copy them now, write while training goes on."""
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
        """Return what this rank wrote, once all of it is on the disk; [] if nothing was begun."""
        under_way, self._under_way = self._under_way, None
        return [] if under_way is None else under_way.result()

    def check(self, folder: Path) -> None:
        """Raise CheckpointError for a checkpoint that ``load`` could not take over whole."""
        state = read_state(folder)
        check_fingerprint(state["fingerprint"], self._loaded.fingerprint, folder)
        if self._loaded.adapter:
            check_adapter(folder, state, self._loaded, self._base)
        with open_tensors(folder, state, self._loaded) as files:
            self._check_tensors(folder, files)

    def load(self, folder: Path) -> dict[str, Any]:
        """Take over what ``check`` found whole; returns the counters."""
        self.finish()
        state = read_state(folder)
        with open_tensors(folder, state, self._loaded) as files:
            wanted = self._wanted(files.shapes)
            _read(files, wanted, parameter_names(self._loaded))
        self._optimizer.load({n.removeprefix(OPTIMIZER): t for n, t in wanted.items() if n.startswith(OPTIMIZER)})
        counters: dict[str, Any] = state["counters"]
        return counters

    def _contents(self, counters: Mapping[str, Any]) -> Contents:
        """Return this rank's files: slices of what is cut; whole tensors and texts are rank 0's."""
        if self._rank >= self._shards:  # it holds what another rank writes: a copy of the model
            return Contents({}, {})
        own = {}
        for name, tensor in self._tensors().items():
            part = own_part(tensor)
            if self._rank == 0 or (isinstance(tensor, DTensor) and part.numel()):
                own[name] = part
        texts = {}
        if self._rank == 0:
            state = {"fingerprint": self._loaded.fingerprint, "counters": dict(counters), SHARDS: self._shards}
            if self._loaded.adapter:
                state["base"] = self._base
                texts[adapter.CONFIG] = adapter.adapter_config(self._loaded.model)
            texts[STATE] = json.dumps(state, indent=1)
        return Contents({rank_file(self._rank, self._shards): own}, texts)

    def _check_tensors(self, folder: Path, files: TensorFiles) -> None:
        """Raise CheckpointError if the tensors of a checkpoint are not those of this learner, by name and shape."""
        there = files.shapes
        if self._reference is not None and not any(name.startswith(REFERENCE) for name in there):
            raise no_reference(folder, "none was saved")
        check_names(
            {name.removeprefix(MODEL): shape for name, shape in there.items() if name.startswith(MODEL)},
            {name: tuple(tensor.shape) for name, tensor in trained(self._loaded).items()},
            folder,
            self._loaded.name,
        )
        if self._reference is not None:
            for name, tensor in self._reference.state().items():
                _check_shape(folder, there, REFERENCE + name, (tuple(tensor.shape),))
        for name, like in self._of_optimizer(there).items():
            _check_shape(folder, there, name, (tuple(like.shape), ()))

    def _tensors(self) -> dict[str, Tensor]:
        tensors = {MODEL + name: tensor for name, tensor in trained(self._loaded).items()}
        if self._reference is not None:
            tensors |= {REFERENCE + name: tensor for name, tensor in self._reference.state().items()}
        return tensors | {OPTIMIZER + name: tensor for name, tensor in self._optimizer.state().items()}

    def _wanted(self, there: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return the tensors to read into: the model's own, and new ones for the optimizer's."""
        wanted = {MODEL + name: tensor for name, tensor in trained(self._loaded).items()}
        if self._reference is not None:
            wanted |= {REFERENCE + name: tensor for name, tensor in self._reference.state().items()}
        for name, like in self._of_optimizer(there).items():
            wanted[name] = torch.zeros_like(like) if there[name] else torch.zeros(())
        return wanted

    def _of_optimizer(self, there: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
        """Return the parameter of each tensor that the optimizer takes over, by the tensor's name."""
        found = {}
        for name in there:
            kind, _, parameter = name.removeprefix(OPTIMIZER).partition("/")
            if name.startswith(OPTIMIZER) and kind != "master" and parameter in self._optimizer.parameters:
                found[name] = self._optimizer.parameters[parameter]
        return found


def _check_shape(
    folder: Path, there: Mapping[str, tuple[int, ...]], name: str, expected: tuple[tuple[int, ...], ...]
) -> None:
    if there.get(name) not in expected:
        found = f"has shape {list(there[name])}" if name in there else "is missing"
        raise incomplete(folder, f"{name} {found}, expected shape {list(expected[0])}")


@torch.no_grad()
def _read(files: TensorFiles, wanted: Mapping[str, Tensor], parameters: Mapping[str, str]) -> None:
    """Read this rank's rows of each tensor.

    One process keeps float32 copies of a bfloat16 model's weights; they are read instead of those weights.

    Args:
        files: of the checkpoint.
        wanted: to be filled, by name.
        parameters: the optimizer's name of each trained parameter.
    """
    for name, tensor in wanted.items():
        master = f"{OPTIMIZER}master/{parameters.get(name.removeprefix(MODEL))}"
        source = master if name.startswith(MODEL) and master in files.shapes else name
        if isinstance(tensor, DTensor):
            first, rows = own_rows(tensor)
            own_part(tensor).copy_(files.rows(source, first, rows))
        else:
            tensor.copy_(files.whole(source))
