"""Route ``broadcast``: a process group of the learner's first process and the engines, over NCCL or gloo.

Each publish has keys of its own in a store that the driver keeps. Receivers say that they are there, the sender waits
for all of them and says what will come, and then each tensor is broadcast. If one of them is gone, the publish is
called off, so no process waits for a peer that will not come. The group itself stays as long as its members do.
"""

from __future__ import annotations

import datetime
import json
import logging
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor

from dapo.errors import DapoError, EngineError
from dapo.models.adapter import Published
from dapo.models.rendezvous import find, serve
from dapo.types.batch import Route, Ticket
from dapo.types.protocols import Handle
from dapo.weights.folder import PassingRoute
from dapo.weights.route import Readers, Senders, Source
from dapo.weights.sets import WeightSets

log = logging.getLogger(__name__)

_CALLED_OFF = b"no"


@dataclass(frozen=True, slots=True)
class BroadcastGroup:
    """Meeting point of the sender and the receivers of a broadcast: a store that the driver keeps.

    >>> BroadcastGroup("store://node-1:4711/run", "dapo-weights-1f", number=5, receivers=2, seconds=600.0).key
    'dapo-weights-1f/5'
    """

    address: str  # of that store; see ``dapo.models.rendezvous``
    name: str  # of these very processes, in their present incarnations
    number: int  # of the publish
    receivers: int
    seconds: float  # that one waits for the others

    @property
    def key(self) -> str:
        """Return a key unlike that of any other publish."""
        return f"{self.name}/{self.number}"


class Broadcast(PassingRoute):
    """Weights by collective operations, to all engines at once. An engine that comes later gets them by ``folder``."""

    name: ClassVar[Route] = "broadcast"

    def __init__(self, sets: WeightSets | None, host: str, seconds: float) -> None:
        super().__init__(sets, host, seconds)
        self._seconds = seconds
        self._store, self._address = serve(host)
        self._sending: Handle[bool] | None = None
        self._group: BroadcastGroup | None = None
        self._readers: Readers = ()
        self._publishes = 0

    def send(self, workers: Senders, names: tuple[str, ...], version: int, readers: Readers = ()) -> Ticket:
        workers.ask("give_back")  # the engines wake while the broadcast goes on
        self._publishes += 1
        group = self._group
        if group is None or readers != self._readers:
            name = f"dapo-weights-{secrets.token_hex(4)}"
            group = BroadcastGroup(self._address, name, 0, len(readers), self._seconds)
        self._readers = readers
        self._group = replace(group, number=self._publishes)
        self._sending = workers.each("send", [(self.name, self._group)] * workers.ranks, all)
        return Ticket(version, self.name, self._group.key, names, self._group)

    @staticmethod
    def part(source: Source, *args: Any) -> bool:
        """Send from rank 0; return whether all receivers took part, as far as this process knows."""
        (group,) = args
        if source.rank == 0:
            return HERE.send(group, source.tensors(), source.dtype)
        HERE.attend(source.tensors(), source.dtype)
        return True

    @staticmethod
    def receive(ticket: Ticket, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        return HERE.receive(ticket, device)

    def settle(self) -> bool:
        sending, self._sending = self._sending, None
        reached = sending is None or sending.result()
        if not reached:
            self._group = None  # those that are left form a group of their own
        return reached

    def call_off(self) -> None:
        if self._sending is not None and self._group is not None:
            call_off(self._store, self._group)

    def look(self) -> None:
        if self._sending is not None and self._group is not None and self._sending.done():
            try:
                self._sending.result()
            except DapoError:  # raised anew by whatever is asked next
                send_home(self._store, self._group)


class Broadcaster:
    """One process's end. There is one in a process (``HERE``): a learner's, or an engine's."""

    def __init__(self) -> None:
        self._group: Any = None  # the last one; whoever joins another leaves it
        self._name = ""

    @torch.no_grad()
    def send(self, members: BroadcastGroup, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> bool:
        """Broadcast from here, in ``dtype``; whether every receiver took part.

        Iterating is collective: every rank of a learner does it to the end, also when receivers have left, and the
        first one sends. What it sends is whole before it goes out: a gather and a broadcast under way at once may wait
        for each other.

        Args:
            members: sender and receivers.
            tensors: by name; sharded ones are gathered one by one.
            dtype: of floating-point numbers as they travel.
        """
        group = self._opened(members, tensors, dtype)
        try:
            for tensor in tensors.values():
                complete = whole(tensor, dtype)
                if group is not None:
                    try:
                        _broadcast(group, _bytes(complete))
                    except RuntimeError as error:  # a peer is gone: torch says so in many ways
                        log.warning("an engine left in the middle of a broadcast of weights (%s)", _first(error))
                        group = None
                        self.leave()
        except BaseException:  # another rank is gone: receivers shall not wait for what will not come
            group = None
            self.leave()
            raise
        return group is not None

    @torch.no_grad()
    def attend(self, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> None:
        """Take part in gathering, on a rank that does not send."""
        for tensor in tensors.values():
            whole(tensor, dtype)

    def receive(self, ticket: Ticket, device: torch.device) -> Iterator[tuple[str, Tensor]]:
        """Return the tensors of a ticket, one after another, on ``device`` if they come by NCCL. All have to be taken.

        Raises:
            EngineError: the publish was called off, or ended in the middle: what came is not whole.
        """
        members: BroadcastGroup = ticket.cargo
        try:
            store = _store(members)
            number = store.add(f"{members.key}/count", 1)
            store.set(f"{members.key}/here/{number}", b"")
            said = bytes(store.get(f"{members.key}/begin"))
        except RuntimeError as error:  # the place to meet at may be gone as well
            raise _off(ticket, f"its sender did not come within {members.seconds:g} s") from error
        if said == _CALLED_OFF:
            raise _off(ticket, "it was called off")
        backend, layout = json.loads(said)
        if backend == "gloo":
            device = torch.device("cpu")
        elif device.type != "cuda":
            raise _off(ticket, f"the learner sends by {backend}, and this engine computes on {device}")
        return self._received(ticket, store, backend, layout, device)

    def leave(self) -> None:
        """Leave the group, if there is one; the others hear of it."""
        self._group, self._name = None, ""

    def _received(
        self, ticket: Ticket, store: Any, backend: str, layout: list[Any], device: torch.device
    ) -> Iterator[tuple[str, Tensor]]:
        members: BroadcastGroup = ticket.cargo
        taken = False
        try:
            if self._name != members.name:
                self._join(store, members, store.add(f"{members.name}/ranks", 1), backend)
            for name, dtype, shape in layout:
                tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
                _broadcast(self._group, _bytes(tensor))
                yield name, tensor
            taken = True
        except RuntimeError as error:
            raise _off(ticket, f"it ended in the middle ({_first(error)})") from error
        finally:
            if not taken:  # also where whoever takes the tensors refuses one: the sender shall hear of it
                self.leave()

    def _opened(self, members: BroadcastGroup, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Any:
        """Return the group once all are there; None: they will not come."""
        store = _store(members)
        device = _like(tensors, next(iter(tensors))).device
        backend = "nccl" if device.type == "cuda" else "gloo"
        try:
            store.wait([f"{members.key}/here/{number + 1}" for number in range(members.receivers)])
            there = not store.check([f"{members.key}/off"])
        except RuntimeError:
            there = False
        if not there:
            store.set(f"{members.key}/begin", _CALLED_OFF)
            return None
        store.set(f"{members.key}/begin", json.dumps([backend, _layout(tensors, dtype)]))
        try:
            if self._name != members.name:
                self._join(store, members, 0, backend)
        except RuntimeError as error:
            log.warning("the engines and the learner's first process form no group (%s)", _first(error))
            return None
        return self._group

    def _join(self, store: Any, members: BroadcastGroup, rank: int, backend: str) -> None:
        self.leave()
        patience, size = datetime.timedelta(seconds=members.seconds), members.receivers + 1
        place = dist.PrefixStore(members.name, store)  # type: ignore[attr-defined]
        if backend == "nccl":
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = patience
            group: Any = dist.ProcessGroupNCCL(place, rank, size, options)
        else:
            group = dist.ProcessGroupGloo(place, rank, size, patience)
        self._group, self._name = group, members.name


HERE = Broadcaster()
"""This process's end."""


def call_off(store: Any, members: BroadcastGroup) -> None:
    """Release, by the driver, the processes that wait for this publish. Without effect on one that is under way."""
    store.set(f"{members.key}/off", b"")
    for number in range(members.receivers):
        store.set(f"{members.key}/here/{number + 1}", b"")


def send_home(store: Any, members: BroadcastGroup) -> None:
    """By the driver, once the sender is gone: ``call_off``, also for receivers who wait for what it would say."""
    call_off(store, members)
    if not store.check([f"{members.key}/begin"]):
        store.set(f"{members.key}/begin", _CALLED_OFF)


def _layout(tensors: Mapping[str, Tensor], dtype: torch.dtype) -> list[Any]:
    """Name, type and shape of each tensor as it travels."""
    like = {name: _like(tensors, name) for name in tensors}
    return [
        (name, str(dtype if tensor.is_floating_point() else tensor.dtype).removeprefix("torch."), list(tensor.shape))
        for name, tensor in like.items()
    ]


def _like(tensors: Mapping[str, Tensor], name: str) -> Tensor:
    """Return a tensor of that type and shape. The one asked for may be merged, by all ranks of a learner together."""
    return tensors.like(name) if isinstance(tensors, Published) else tensors[name]


def whole(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a tensor as it leaves its process: gathered, contiguous, in ``dtype`` if it has floating-point numbers."""
    full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    full = full.detach()
    full = full.to(dtype) if full.is_floating_point() else full
    if full.device.type == "cuda":
        torch.cuda.current_stream(full.device).synchronize()
    return full.contiguous()


def _bytes(tensor: Tensor) -> Tensor:
    """Return the same memory, as every backend takes it."""
    return tensor.reshape(-1).view(torch.uint8)


def _broadcast(group: Any, content: Tensor) -> None:
    if not content.numel():
        return
    options = dist.BroadcastOptions()  # type: ignore[attr-defined]
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([content], options).wait()
    if content.device.type == "cuda":
        torch.cuda.current_stream(content.device).synchronize()


def _store(members: BroadcastGroup) -> Any:
    return find(members.address, datetime.timedelta(seconds=members.seconds))


def _off(ticket: Ticket, why: str) -> EngineError:
    return EngineError(f"the weights of version {ticket.version} did not come by broadcast: {why}")


def _first(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
