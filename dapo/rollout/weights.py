"""How new weights reach an engine that has weights of its own: in the process, or through a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dapo.contracts.types import TensorSum
from dapo.errors import EngineError
from dapo.models.checksum import checksum, dtype_name

WEIGHTS_FILE = "model.safetensors"


@torch.no_grad()
def copy_weights(model: Any, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Copy named tensors into ``model``, in place.

    Raises:
        EngineError: A name or shape that the model does not have, or a parameter for which nothing came. (A tied
            tensor needs to come under one of its names only.)
    """
    own = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers())
    came: set[int] = set()
    for name, tensor in tensors:
        target = own.get(name)
        if target is None or target.shape != tensor.shape:
            have = "no tensor of that name" if target is None else f"shape {tuple(target.shape)}"
            raise EngineError(
                f"published tensor {name!r} has shape {tuple(tensor.shape)}; the engine's model has {have}: learner "
                "and engine must be loaded from the same checkpoint"
            )
        target.copy_(tensor)
        came.add(id(target))
    missing = [name for name, parameter in model.named_parameters() if id(parameter) not in came]
    if missing:
        raise EngineError(
            f"{len(missing)} of the engine's weights were not published ({', '.join(missing[:3])}...); they would stay "
            "old: a weight source must name every parameter"
        )


def tensor_sums(model: Any) -> Mapping[str, TensorSum]:
    """Checksums of all parameters and persistent buffers, under every name that they have."""
    return {name: TensorSum(dtype_name(x.dtype), checksum(x)) for name, x in model.state_dict().items()}


def write_weights(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """``folder/WEIGHTS_FILE``, whole or not at all; made if missing.

    Raises:
        OSError: It cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f"{WEIGHTS_FILE}.part"
    try:
        save_file({name: tensor.detach().contiguous().cpu() for name, tensor in tensors}, unfinished)
    except SafetensorError as error:  # how a full disk is told
        raise OSError(f"{unfinished}: {error}") from error
    unfinished.rename(folder / WEIGHTS_FILE)


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """What ``write_weights`` wrote, one tensor at a time.

    Raises:
        FileNotFoundError: at once, not with the first tensor.
    """
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there, or cannot be seen from this machine")
    return _tensors(path)


def _tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - not a mapping
            yield name, file.get_tensor(name)
