"""How weights reach an engine: a ticket says where they lie, in this process or in a folder."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import weakref
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from dapo.contracts.types import Ticket
from dapo.errors import EngineError
from dapo.models.adapter import published

WEIGHTS_FILE = "model.safetensors"
SETS = "dapo-"  # how the folder of every set of weights begins

_offered: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


def model_tensors(model: Any) -> Mapping[str, Tensor]:
    """Parameters and persistent buffers by name; one that the model holds under two names (a tied head) only once.

    Told by the object and not by its address: a sharded parameter has none. An adapter is merged into the weights that
    it belongs to, one by one as they are asked for.
    """
    return published(model)


# ---------------------------------------------------------------------- in this process


def offer(model: Any) -> str:
    """An address under which engines of this process find ``model``, for as long as somebody else holds it."""
    address = f"{os.getpid()}-{next(_numbers)}"
    _offered[address] = model
    return address


def offered(ticket: Ticket) -> Any:
    """The model of a ticket whose route is ``shared``.

    Raises:
        EngineError: it is gone, or was never in this process.
    """
    model = _offered.get(ticket.address)
    if model is None:
        raise EngineError(
            f"no model is offered at {ticket.address!r} in this process ({os.getpid()}): its learner is gone, or lives "
            "in another process and has to publish through a folder"
        )
    return model


def tensors_of(ticket: Ticket) -> Iterator[tuple[str, Tensor]]:
    """The weights of a ticket, under their names in the checkpoint.

    Raises:
        EngineError: a route that is not known here, a learner that is gone, or other tensors than the ticket names.
        FileNotFoundError: no such folder.
    """
    if ticket.route == "shared":
        tensors = model_tensors(offered(ticket))
        if set(tensors) != set(ticket.names):
            other = sorted(set(tensors) ^ set(ticket.names))
            raise EngineError(
                f"the ticket of version {ticket.version} and the tensors at {ticket.address!r} differ in {len(other)} "
                f"names ({', '.join(other[:3])}): publish again"
            )
        return iter(tensors.items())
    if ticket.route == "folder":
        return read_weights(Path(ticket.address))
    raise unknown_route(ticket, "shared", "folder")


def unknown_route(ticket: Ticket, *known: str) -> EngineError:
    """What to raise for a ticket that does not lead here."""
    return EngineError(
        f"the weights of version {ticket.version} come by route {ticket.route!r}; this engine takes "
        f"{' or '.join(map(repr, known))}: the learner has to be made with one of these"
    )


def check_named(ticket: Ticket, parameters: Iterable[str]) -> None:
    """Every parameter has to be named by the ticket (a tied one under one name).

    Raises:
        EngineError: one is missing; nothing was touched yet.
    """
    missing = sorted(set(parameters) - set(ticket.names))
    if missing:
        raise EngineError(
            f"{len(missing)} of the model's weights were not published ({', '.join(missing[:3])}...); they would "
            "stay old: a ticket must name every parameter"
        )


# ---------------------------------------------------------------------- through a folder


class WeightFolder:
    """Sets of weights below one folder, each in a folder of its own whose name no other set and no other trainer uses.

    Whoever reads a set deletes it when the next one has arrived; ``clear`` deletes what nobody came for.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._name = f"{SETS}{secrets.token_hex(4)}"
        self._sets: list[Path] = []

    def write(self, version: int, tensors: Iterable[tuple[str, Tensor]]) -> Path:
        """A new set.

        Raises:
            EngineError: it cannot be written; nothing of it is left.
        """
        # The number is of the set, not of the version: the same one may come twice.
        self._sets = [old for old in self._sets if old.exists()]
        folder = self._folder / f"{self._name}-{next(_numbers)}-v{version}"
        try:
            write_weights(folder, tensors)
        except OSError as error:
            shutil.rmtree(folder, ignore_errors=True)
            raise EngineError(
                f"the weights of version {version} could not be written to {folder} ({error}); make room, or "
                "name another folder that trainer and server both see in `rollout.server.weights_dir`"
            ) from error
        self._sets.append(folder)
        return folder

    def clear(self) -> None:
        """Delete the sets that are still there."""
        while self._sets:
            shutil.rmtree(self._sets.pop(), ignore_errors=True)


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
    path = _file_in(folder)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                yield name, file.get_tensor(name)

    return tensors()


def read_shapes(folder: Path) -> dict[str, list[int]]:
    """Of each tensor that ``write_weights`` wrote; only the file's header is read.

    Raises:
        FileNotFoundError: no such folder.
    """
    with safe_open(_file_in(folder), framework="pt") as file:
        return {name: list(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def _file_in(folder: Path) -> Path:
    path = folder / WEIGHTS_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not there, or cannot be seen from this machine")
    return path
