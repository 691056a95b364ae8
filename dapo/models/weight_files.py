"""Weights as files: written by one process or by all ranks, read one tensor at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo.errors import EngineError
from dapo.models.adapter import published
from dapo.models.slices import own_part

WEIGHTS_FILE = "model.safetensors"
PART = "rank-{rank:05d}-of-{ranks:05d}.safetensors"
_TRIES = 10  # at making a folder, each of which another trainer's end may undo


def model_tensors(model: Any) -> Mapping[str, Tensor]:
    """Parameters and persistent buffers by name; one that the model holds under two names (a tied head) only once.

    Told by the object and not by its address: a sharded parameter has none. An adapter is merged into the weights that
    it belongs to, one by one as they are asked for.
    """
    return published(model)


def write_weights(folder: Path, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """``folder/WEIGHTS_FILE``, whole or not at all; made if missing.

    Raises:
        OSError: It cannot be written.
    """
    _write(folder / WEIGHTS_FILE, {name: tensor.detach() for name, tensor in tensors})


def write_part(
    folder: Path, rank: int, ranks: int, tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None
) -> None:
    """Write this rank's slices as a file beside those of the others: together they are a set. One rank alone writes
    ``folder/WEIGHTS_FILE``.

    No rank waits for another, and none holds more than it has. What is not cut over ranks is written by rank 0.

    Args:
        folder: of the set; made if missing.
        rank: the number of this one.
        ranks: how many write.
        tensors: by name.
        dtype: of floating-point numbers in the file; None: as they are.

    Raises:
        EngineError: it cannot be written.
    """
    own = {}
    for name, tensor in tensors.items():
        part = own_part(tensor)
        if rank == 0 or (isinstance(tensor, DTensor) and part.numel()):
            own[name] = part.to(dtype) if dtype is not None and part.is_floating_point() else part
    try:
        _write(folder / (WEIGHTS_FILE if ranks == 1 else PART.format(rank=rank, ranks=ranks)), own)
    except OSError as error:
        raise _not_written(folder, error) from error


def _write(file: Path, tensors: Mapping[str, Tensor]) -> None:
    _make_folder(file.parent)
    unfinished = file.with_name(f"{file.name}.part")
    try:
        save_file({name: tensor.contiguous().cpu() for name, tensor in tensors.items()}, unfinished)
    except SafetensorError as error:  # how a full disk is told
        raise OSError(f"{unfinished}: {error}") from error
    unfinished.rename(file)


def _make_folder(folder: Path) -> None:
    """Also where a trainer that ends removes the folder around it, which is empty before this one is in it."""
    for _ in range(_TRIES - 1):
        with suppress(FileNotFoundError):
            folder.mkdir(parents=True, exist_ok=True)
            return
    folder.mkdir(parents=True, exist_ok=True)


def _not_written(folder: Path, error: OSError) -> EngineError:
    return EngineError(
        f"the weights could not be written to {folder} ({error}); free space, or name another folder that trainer and "
        "server both see in `rollout.server.weights_dir`"
    )


def read_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that ``write_weights`` wrote, or all ranks by ``write_part``, one at a time.

    Raises:
        FileNotFoundError: at once, not with the first tensor; a rank's part may be what is missing.
    """
    paths = _files_in(folder)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        with opened(paths) as places:
            for name, files in places.items():
                parts = [file.get_tensor(name) for file in files]
                yield name, parts[0] if len(parts) == 1 else torch.cat(parts)

    return tensors()


def read_shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shape of each tensor that ``read_weights`` yields; only the files' headers are read.

    Raises:
        FileNotFoundError: no such folder, or a part of it is missing.
    """
    with opened(_files_in(folder)) as places:
        shapes = {name: [list(file.get_slice(name).get_shape()) for file in files] for name, files in places.items()}
    return {
        name: [sum(part[0] for part in parts), *parts[0][1:]] if len(parts) > 1 else parts[0]
        for name, parts in shapes.items()
    }


@contextmanager
def opened(paths: Sequence[Path]) -> Iterator[dict[str, list[Any]]]:
    """Open safetensors files; give by tensor those that hold it or a slice of it, in the order of ``paths``."""
    with ExitStack() as stack:
        places: dict[str, list[Any]] = {}
        for path in paths:
            file = stack.enter_context(safe_open(path, framework="pt"))
            for name in file.keys():  # noqa: SIM118 - not a mapping
                places.setdefault(name, []).append(file)
        yield places


def _files_in(folder: Path) -> list[Path]:
    whole = folder / WEIGHTS_FILE
    parts = sorted(folder.glob("rank-*-of-*.safetensors"))
    if whole.is_file():
        return [whole]
    if not parts:
        raise FileNotFoundError(f"{whole} is not there, or cannot be seen from this machine")
    ranks = int(parts[0].stem.rpartition("-")[2])
    wanted = [folder / PART.format(rank=rank, ranks=ranks) for rank in range(ranks)]
    if missing := [path.name for path in wanted if not path.is_file()]:
        raise FileNotFoundError(
            f"{folder} lacks {', '.join(missing)}: that rank of the learner has not published, or cannot be seen from "
            "this machine"
        )
    return wanted
