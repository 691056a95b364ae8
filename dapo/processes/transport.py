"""Objects in other processes: started, asked and ended by a driver that knows nothing else of where they live.

A pool of engines and a group of ranks stand on this; processes of one machine, threads, Ray and the driver's own
process are ways to keep it. No torch here, and no way in particular.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dapo.errors import ClusterError, DapoError


class HostLost(DapoError, RuntimeError):
    """A host is gone: it was killed, ended by itself, or cannot be reached. The message names it and says how."""


@dataclass(frozen=True, slots=True)
class HostSpec:
    """Object to make as a host. A spec may be pickled: ``make`` is found by its name, and ``args`` are pickled."""

    name: str  # unique among the living hosts of a transport, such as "engine-1": for messages and files
    make: Callable[..., Any]  # called where the host lives; what it returns is the object that calls ask
    args: tuple[Any, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)  # on top of the driver's, before anything is imported


Host = Any
"""A started host, to be handed back to its transport and not looked into."""

SHARED_FOLDER = "dapo-carried-"
"""How folders begin through which a transport carries files; see ``Transport.collect``."""


@dataclass(frozen=True, slots=True)
class Shipment:
    """Files of a folder that have to be on the machine of the host that gets this; see ``Transport.collect``.

    As the ``cargo`` of a ticket that is an argument of a call, the transport lays them out before the call.

    >>> Shipment("/dev/shm/dapo/000005", parts=("object 17",)).folder
    '/dev/shm/dapo/000005'
    """

    folder: str
    parts: tuple[Any, ...]  # what the transport knows them by


Call = Any
"""A question to a host, answered or not, to be handed back to its transport and not looked into."""


class Transport(Protocol):
    """Starts hosts and asks them. Used by one thread.

    A host answers its calls one after another, in the order in which they were made; different hosts may work at the
    same time. What travels is the receiver's from then on: do not write to an argument after ``call`` or to an answer
    after it was given.
    """

    def start(self, spec: HostSpec) -> Host:
        """Start a host and return it at once: its object may not be made yet. If ``make`` raises, every ``get`` raises
        the same.

        Raises:
            ClusterError, OSError: the cluster or the machine starts nothing more.
        """

    def call(self, host: Host, method: str, *args: Any) -> Call:
        """Ask, and do not wait: neither for the answer nor for a host that does not read."""

    def wait(self, calls: Sequence[Call], *, every: bool = False, timeout: float | None = None) -> list[int]:
        """Return the indices of the calls that ``get`` would answer (or refuse) at once, rising.

        Waits until there is one (with ``every``: until all are), at most ``timeout`` seconds; then what there is,
        perhaps nothing. Where hosts live in the driver's process, waiting is what makes them work: at least one call is
        then answered, whatever ``timeout``.
        """

    def get(self, call: Call) -> Any:
        """Return the answer, after waiting for it.

        Raises:
            HostLost: the host was lost before it answered.
            Exception: what the method raised. The host lives on.
        """

    def put(self, value: Any) -> Any:
        """Something large that many calls will be given: an argument in whose place each host finds ``value``."""

    def kill(self, host: Host) -> None:
        """End a host at once, also a frozen one, with every process that it started. Its open calls raise HostLost, and
        so do later ones. Killing twice does nothing."""

    def close(self) -> None:
        """Kill every host that is left. May be called twice."""

    def has_place(self, host: Host) -> bool:
        """Return whether a machine has a place for a host, which may wait for one; a host that is slow to start has
        one."""
        return True

    def collect(self, hosts: Sequence[Host], folder: str) -> tuple[Any, ...]:
        """Take the files of a folder from the machines of ``hosts``, past the driver; return the parts of a
        ``Shipment``.

        Raises:
            HostLost: a host is gone.
            ClusterError: they cannot be taken, or no files travel between these hosts.
        """
        raise ClusterError("no files travel between these hosts")
