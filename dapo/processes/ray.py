"""Hosts on a Ray cluster: one that this program joins, or one of this machine that it starts and ends itself.

The only module that imports ray. A host is an actor (``dapo.processes.ray_actor``) in a bundle of one placement group.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayError
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from dapo.errors import ClusterError
from dapo.processes.host_threads import Line, LineCall
from dapo.processes.large_messages import Parts, packed
from dapo.processes.packed import PackedTransport
from dapo.processes.placement import Node, Place, Plan, late, misfit, too_small
from dapo.processes.ray_actor import (
    CallWithFiles,
    HostActor,
    StartedProcess,
    StartRequest,
    carried,
    passed_on,
    start_request,
)
from dapo.processes.ray_head import FOLDER, OwnCluster
from dapo.processes.transport import HostLost, HostSpec, Shipment
from dapo.processes.watch import Life, lost_said, unreachable
from dapo.types.batch import Ticket

log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds for hosts to be gone once they were killed
_MOMENT = 0.1  # seconds
_OBJECT_STORE = 512 << 20  # bytes of shared memory; what is larger goes through the disk
_LOOK = 5.0  # seconds between two looks at the machines while a plan waits for room
_NO_MACHINE = "its node has died"  # in Ray's words
_LEAVING: list[threading.Thread] = []  # clusters whose heads stand still
_FREE = Place(-1, 0.0, 0.0)  # of a host that no plan speaks of: anywhere


class RayCluster:
    """A cluster that this process is a driver of.

    Args:
        address: ``HOST:PORT`` of a cluster that this machine belongs to; or one that this program started and that
            ends with it. Not looked at where the caller's program works on a cluster already.

    Attributes:
        address: of its head.
        lost: done, once it is: nothing starts on it any more, and what was started may live on.

    Raises:
        ClusterError: it cannot be reached, or this program waits for one that it has left.
    """

    def __init__(self, address: str | OwnCluster) -> None:
        self._group: Any = None
        self.plan = Plan((), {})
        self._devices: Mapping[int, Sequence[str]] = {}
        self._transports: list[RayTransport] = []
        self._closing = contextlib.ExitStack()
        named, folder = (address, None) if isinstance(address, str) else (address.address, address.folder)
        life: Life | None = None
        joins = not ray.is_initialized()  # else the caller's program did, which goes on with it
        try:
            if not isinstance(address, str):
                self._closing.callback(address.close)
            _check_left()
            self._closing.callback(lambda: _leave(life, joins))
            if joins:
                _join(named, folder)
            life = self._life = _look()
            self.address, self.lost = life.address, life.lost
        except BaseException as error:
            self._closing.close()
            if isinstance(error, Exception) and not isinstance(error, ClusterError):
                raise ClusterError(unreachable(named, _brief(error))) from error
            raise

    @property
    def here(self) -> str:
        """How this machine is reached from the others."""
        return str(ray.util.get_node_ip_address())

    @property
    def one_machine(self) -> bool:
        """Whether it has no machine but the driver's."""
        return len(self.nodes()) == 1

    def nodes(self) -> list[Node]:
        """Its living machines. As for whatever asks the head: a ClusterError where it is lost."""
        return [
            Node(
                str(node["NodeManagerHostname"]),
                float(node["Resources"].get("CPU", 0.0)),
                float(node["Resources"].get("GPU", 0.0)),
            )
            for node in self._life.asked(ray.nodes)
            if node["Alive"]
        ]

    def place(self, plan: Plan, patience: float) -> None:
        """Take what the plan says.

        Raises:
            ClusterError: the machines do not have it; or others have it for longer than ``patience`` seconds.
        """
        self._life.asked(lambda: self._place(plan, patience))

    def _place(self, plan: Plan, patience: float) -> None:
        self._check_size(plan)
        bundles = [bundle.resources for bundle in plan.bundles]
        self._group, until = placement_group(bundles, strategy="PACK"), time.monotonic() + patience
        try:
            while not self._group.wait(min(_LOOK, max(0.0, until - time.monotonic()))):
                self._check_size(plan)  # a machine may be gone of whose end the cluster had not heard
                if time.monotonic() >= until:
                    free = ray.available_resources()
                    raise ClusterError(late(plan, free.get("CPU", 0.0), free.get("GPU", 0.0), patience, self.address))
        except ClusterError:
            remove_placement_group(self._group)
            self._group = None
            raise
        machines = placement_group_table(self._group)["bundles_to_node_id"]
        self.plan = plan.granted([machines[number] for number in range(len(bundles))])
        self._devices = _devices_of(self.plan, self._group)

    def _check_size(self, plan: Plan) -> None:
        if why := misfit(plan, self.nodes()):
            raise ClusterError(too_small(why, self.address))

    def transport(self, output: Path | None) -> RayTransport:
        """For hosts in the places of the plan; what they print goes to files of the folder ``output``."""
        transport = RayTransport(self.plan.places, self._group, output, self._devices)
        self.lost.add_done_callback(lambda lost: transport.lose(lost_said(lost.result())))
        self._transports.append(transport)
        return transport

    def where(self) -> dict[str, str]:
        """Return the machine of each host that has started, by the host's name."""
        return {name: machine for one in self._transports for name, machine in one.where().items()}

    def close(self) -> None:
        """Kill what is left of this run, give back what it took, and end the cluster if it is our own."""
        for transport in self._transports:
            transport.close()
        self._transports.clear()
        with contextlib.suppress(RayError, RuntimeError, OSError):
            if self._group is not None and ray.is_initialized():
                self._life.asked(partial(remove_placement_group, self._group))
        self._group = None
        self._closing.close()


class RayHost:
    """A host's actor."""

    def __init__(self, request: StartRequest, place: Place, group: Any, told: threading.Condition) -> None:
        self.name = request.name
        self.started: StartedProcess | None = None
        self.placed = False  # on a machine
        inside = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=place.bundle)
        actor = ray.remote(
            num_cpus=place.cpus,
            num_gpus=place.gpus,
            scheduling_strategy=inside if place.bundle >= 0 else None,
            concurrency_groups={"control": 1},
            max_restarts=0,
            max_task_retries=0,
            runtime_env={"env_vars": passed_on()},
        )(HostActor)
        self._make: Callable[[], Any] = actor.remote
        self._actor: Any = None
        self._killed = False
        self.line = Line(request.name, self, told)
        self.line.put(request)

    def ask(self, message: StartRequest | CallWithFiles | Parts) -> Parts:
        """In the line's thread: ask, and wait for the answer."""
        answer: Parts = []
        try:
            if isinstance(message, CallWithFiles):
                lost, answer = ray.get(self._actor.ask_with.remote(message.content, message.folders, *message.parts))
            elif isinstance(message, StartRequest):
                lost, self.started = self._start_process(message)
                if self.started is not None:
                    log.info("%s is process %d on %s", self.name, self.started.process, self.started.machine)
            else:
                lost, answer = ray.get(self._actor.ask.remote(carried(message)))
        except Exception as error:  # its actor or its machine is gone, or the cluster
            raise HostLost(self.gone(error)) from None
        if lost:
            raise HostLost(lost)
        return answer

    def _start_process(self, request: StartRequest) -> tuple[str, StartedProcess | None]:
        """Have an actor made that starts the host. Ray may have put it on a machine of whose end it had not heard: it
        is made anew then, and waits for a place."""
        while True:
            self._actor, self.placed = self._make(), False
            if self._killed:  # perhaps by somebody who saw none, or the old one
                self._kill()
            try:
                ray.get(self._actor.__ray_ready__.remote())
                self.placed = True
                return ray.get(self._actor.open.remote(request))  # type: ignore[no-any-return]
            except ActorDiedError as error:
                if self._killed or _NO_MACHINE not in str(error):
                    raise

    def left(self) -> None:
        """Do nothing: the transport kills the actor."""

    def collect(self, folder: str) -> tuple[Any, Any]:
        """Have the files of a folder of its machine put into the object store: what went wrong, and they, to come."""
        return tuple(self._actor.collect.options(num_returns=2).remote(folder))  # type: ignore[return-value]

    def let_go(self, *, alone: bool) -> Any:
        """Ask the actor to kill the host, ``alone``: and itself; the call, None where there is nothing to wait for."""
        if self._killed:
            return None
        self._killed = True
        self.line.lose(f"{self.name} was killed by the driver")
        with contextlib.suppress(Exception):
            return self._actor.end.options(concurrency_group="control").remote(alone) if self.started else None
        return None

    def reap(self, patience: float) -> None:
        """Kill the actor."""
        self._kill()
        self.line.join(patience)

    def _kill(self) -> None:
        if self._actor is not None:
            with contextlib.suppress(Exception):
                ray.kill(self._actor)

    def gone(self, error: Exception) -> str:
        """How, in words."""
        process = "not started yet"
        if self.started is not None:
            process = f"process {self.started.process} on {self.started.machine}"
        return f"{self.name} ({process}) went with its Ray actor: {_brief(error)}"


class RayTransport(PackedTransport[RayHost]):
    """Keeps ``dapo.processes.transport.Transport``. What a host has started is killed before its actor is.

    Args:
        places: of hosts, by their names; any other host may be anywhere and takes nothing.
        group: the placement group of those places.
        output: folder for what hosts print, on a file system that their machines share; None: it is dropped.
        devices: names of a bundle's devices on its machine, by the bundle's number, where hosts share several.
    """

    def __init__(
        self,
        places: Mapping[str, Place],
        group: Any,
        output: Path | None = None,
        devices: Mapping[int, Sequence[str]] | None = None,
    ) -> None:
        super().__init__()
        self._places, self._group, self._devices = places, group, devices or {}
        self._output = None if output is None else str(output.absolute())
        self._lost = ""  # how the cluster was

    def lose(self, why: str) -> None:
        """Nothing is placed any more, so who waits for a place is lost. Called in another thread; those that have one
        are reached without the head."""
        with self._told:
            self._lost = why
            for host in self._hosts:
                if not host.placed:
                    host.line.lose(f"{host.name} did not start: {why}")

    def start(self, spec: HostSpec) -> RayHost:
        """Ask for the actor; Ray starts it when its place is free.

        Raises:
            ClusterError: the cluster is lost.
        """
        place = self._places.get(spec.name, _FREE)
        request = start_request(spec, devices=self._visible(place), output=self._output)
        host = RayHost(request, place, self._group, self._told)
        with self._told:
            if self._lost:
                raise ClusterError(self._lost)
            self._hosts.append(host)
        host.line.start()
        return host

    def _visible(self, place: Place) -> str | None:
        """Return the devices that a host may see: Ray's choice, some of its bundle's, or none of its machine's."""
        return None if place.gpus else ",".join(self._devices[place.bundle][number] for number in place.shared)

    def has_place(self, host: RayHost) -> bool:
        """Whether Ray has made its actor."""
        return host.placed

    def call(self, host: RayHost, method: str, *args: Any) -> LineCall:
        """Queue a call, pickled now: later changes of its arguments have no effect. A ticket's files are sent first."""
        shipped = [arg.cargo for arg in args if isinstance(arg, Ticket) and isinstance(arg.cargo, Shipment)]
        if not shipped:
            return super().call(host, method, *args)
        bare = tuple(replace(arg, cargo=None) if isinstance(arg, Ticket) else arg for arg in args)
        parts = [(one.folder, part) for one in shipped for part in one.parts]
        folders, references = zip(*parts, strict=True)
        return host.line.put(CallWithFiles(carried(packed((method, bare))), folders, references))

    def collect(self, hosts: Sequence[RayHost], folder: str) -> tuple[Any, ...]:
        """Take the files of a folder from the machines of ``hosts``; references to them.

        Raises:
            HostLost: a host is gone.
            ClusterError: they cannot be taken.
        """
        asked = [host.collect(folder) for host in hosts]
        for host, (went_wrong, _) in zip(hosts, asked, strict=True):
            try:
                told = ray.get(went_wrong)
            except Exception as error:
                raise HostLost(host.gone(error)) from None
            if told:
                raise ClusterError(f"weights in {folder} cannot go into the object store of the Ray cluster: {told}")
        return tuple(content for _, content in asked)

    def where(self) -> dict[str, str]:
        """Return the machine of each host that has started."""
        return {host.name: host.started.machine for host in self._hosts if host.started is not None}

    def _end(self, hosts: Sequence[RayHost]) -> None:
        mine = [host for host in hosts if host in self._hosts]
        ending = [call for host in mine if (call := host.let_go(alone=bool(self._lost))) is not None]
        if ending:
            with contextlib.suppress(Exception):
                ray.wait(ending, num_returns=len(ending), timeout=_PATIENCE)
        for host in mine:
            host.reap(0.0 if self._lost else _PATIENCE)  # whoever asks a head that is gone is not waited for
            self._hosts.remove(host)


def _devices_of(plan: Plan, group: Any) -> dict[int, list[str]]:
    """Return the names of each bundle's devices on its machine, where hosts share several of them.

    A task that takes all of a bundle's devices asks Ray: hosts cannot, as those that share ask for none.
    """
    shared = sorted({place.bundle for place in plan.places.values() if place.shared})
    asked = [
        ray.remote(_own_devices)
        .options(
            num_cpus=0,
            num_gpus=plan.bundles[number].gpus,
            scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number),
            runtime_env={"env_vars": passed_on()},
        )
        .remote()
        for number in shared
    ]
    return dict(zip(shared, ray.get(asked), strict=True))


def _own_devices() -> list[str]:
    """Return the names of the devices that Ray gave to this task."""
    return [str(device) for device in ray.get_gpu_ids()]


def _check_left() -> None:
    """Refuse a second cluster while Ray still leaves the first one: it is on one at a time."""
    for leaving in _LEAVING:
        leaving.join(_PATIENCE)
        if leaving.is_alive():
            raise ClusterError(
                "this program still waits for an answer of a Ray cluster whose head hangs, and Ray joins no other one "
                "before: give the command in a new program"
            )


def be_head(descriptor: int) -> None:
    """Start a cluster of this machine in a process of its own, and be its head until the connection ends.

    Args:
        descriptor: of the socket that takes the cluster's address.
    """
    connection = socket.socket(fileno=descriptor)
    connection.set_inheritable(False)
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        object_store_memory=_OBJECT_STORE,
        _temp_dir=os.environ[FOLDER],
    )
    connection.sendall(json.dumps(str(ray.get_runtime_context().gcs_address)).encode() + b"\n")
    while connection.recv(4096):
        pass


def _join(address: str, folder: str | None) -> None:
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(
            address=address,
            log_to_driver=False,
            configure_logging=False,
            logging_level=logging.ERROR,
            **({} if folder is None else {"_temp_dir": folder}),
        )
    finally:  # Ray answers SIGTERM by ending the program, without a save
        if before is not None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _leave(life: Life | None, joined: bool) -> None:
    """Leave the cluster. Ray waits for a last answer of the head, without a limit if the head hangs."""
    leaving = threading.Thread(target=ray.shutdown, daemon=True)
    if joined:
        leaving.start()
        while leaving.is_alive() and not (life is not None and life.lost.done()):
            leaving.join(_MOMENT)
        leaving.join(_PATIENCE)
        if leaving.is_alive():
            atexit.unregister(ray.shutdown)  # it would wait as well
            _LEAVING.append(leaving)
    if life is not None:
        life.close()


def _brief(error: Exception) -> str:
    """Return the first words of a long message."""
    if isinstance(error, ActorUnavailableError):  # "temporarily", in Ray's words: it is given up
        return "its connection ended, as it does when its machine is lost"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = " ".join(line for line in lines if ":" not in line[:16])[:240] or type(error).__name__
    return said.rstrip(". ")


def _look() -> Life:
    """Return the watch of the cluster that was joined."""
    context = ray.get_runtime_context()
    me = context.get_node_id()
    (here,) = [node for node in ray.nodes() if node["NodeID"] == me]
    return Life(str(context.gcs_address), f"{here['NodeManagerAddress']}:{here['NodeManagerPort']}")


# What `import ray` puts before everything else are old copies of packages that may be installed: behind them.
_OLD = [path for path in sys.path if path.startswith(os.path.dirname(ray.__file__) + os.sep)]
sys.path[:] = [path for path in sys.path if path not in _OLD] + _OLD
