"""A Ray actor that holds one host, in its own process with a guard, as on the driver's machine.

So a host on a cluster prints into a file of its own, is ended with all that it started, and says how it ended, by the
very code that does so without Ray (``dapo.processes.local``). It ends with its actor: when Ray kills that, when the
driver's job ends, or when the raylet of the machine is gone.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dapo.processes.large_messages import Parts, packed
from dapo.processes.local import ProcessHost, ProcessTransport
from dapo.processes.shared_folders import Content, SharedFolders
from dapo.processes.transport import HostLost, HostSpec
from dapo.system import end_with_parent

_PASSED_ON = ("NCCL_", "GLOO_", "TORCH", "PYTORCH_", "HF_", "TRANSFORMERS_", "TOKENIZERS_", "VLLM_", "OMP_", "MKL_")
"""Variables of the driver's environment that hosts on other machines are given, by their first letters."""


def own_paths() -> list[str]:
    """Return where the driver finds modules that are not installed with its Python; hosts elsewhere find them there."""
    own = {os.path.realpath(prefix) for prefix in (sys.prefix, sys.base_prefix)}
    found = []
    for path in sys.path:
        real = os.path.realpath(path or os.curdir)
        if not any(real == prefix or real.startswith(prefix + os.sep) for prefix in own):
            found.append(os.path.abspath(path or os.curdir))
    return list(dict.fromkeys(found))


def passed_on() -> dict[str, str]:
    """Return the environment of an actor: it finds this package, and its libraries behave as the driver's."""
    passed = {name: value for name, value in os.environ.items() if name.startswith(_PASSED_ON)}
    return {**passed, "PYTHONPATH": os.pathsep.join(own_paths())}


def carried(parts: Parts) -> Parts:
    """Return a message as Ray carries it. What arrives can be written to: Ray's own arrays could not."""
    return [bytearray(part) for part in parts]


@dataclass(frozen=True, slots=True)
class StartRequest:
    """First message to an actor."""

    name: str
    make: Parts  # packed (make, args) of the host's spec, which the actor does not unpack
    environment: Mapping[str, str]
    folder: str  # where the driver works, and relative paths begin
    output: str | None  # folder for what the host prints; its parent, the run's folder, has to be there


def start_request(spec: HostSpec, *, devices: str | None, output: str | None) -> StartRequest:
    """Return the request that starts a host. What cannot travel is refused here.

    Args:
        spec: of the host.
        devices: of its machine that it may see, as ``CUDA_VISIBLE_DEVICES`` has them; None: those that Ray gives it.
        output: folder for what it prints.
    """
    environment = {"PYTHONPATH": os.pathsep.join(own_paths()), **spec.environment}
    if devices is not None:
        environment["CUDA_VISIBLE_DEVICES"] = devices
    return StartRequest(spec.name, carried(packed((spec.make, spec.args))), environment, str(Path.cwd()), output)


@dataclass(frozen=True, slots=True)
class StartedProcess:
    """Answer to a start request."""

    process: int  # of the host
    machine: str


@dataclass(frozen=True, slots=True)
class CallWithFiles:
    """A call before which files have to be on the host's machine."""

    content: Parts
    folders: tuple[str, ...]  # of each part
    parts: tuple[Any, ...]  # references, in whose place the actor finds what they stand for


class HostActor:
    """The actor. ``ask`` is called by one thread, ``end`` by another one."""

    def __init__(self) -> None:
        self._transport: ProcessTransport | None = None
        self._host: ProcessHost | None = None
        self._folders = SharedFolders()
        end_with_parent()  # Ray's workers may outlive the raylet that started them

    def open(self, request: StartRequest) -> tuple[str, StartedProcess | None]:
        """Start the host; ("", who it is), or why there is none."""
        machine = socket.gethostname()
        try:
            os.chdir(request.folder)
            output = None if request.output is None else Path(request.output)
            if output is not None and not output.parent.is_dir():
                raise FileNotFoundError(output.parent)
        except OSError as error:
            return (
                f"{request.name} cannot work on {machine}: {error}. Machines of a cluster have to see the driver's "
                "working directory and the run's folder under the same paths: use a file system that they share",
                None,
            )
        try:
            self._transport = ProcessTransport(output)
            self._host = self._transport.open(request.name, request.make, request.environment)
            self._transport.answer(self._host.begun)
        except (HostLost, OSError) as error:
            return f"{request.name} did not start on {machine}: {error}", None
        return "", StartedProcess(self._host.process, machine)

    def ask(self, message: Parts) -> tuple[str, Parts]:
        """Call the host and return its answer, or how the host was lost."""
        assert self._transport is not None
        assert self._host is not None
        try:
            return "", carried(self._transport.answer(self._host.line.put(message)))
        except HostLost as error:
            return f"{error} (on {socket.gethostname()})", []

    def ask_with(self, message: Parts, folders: Sequence[str], *parts: Mapping[str, Content]) -> tuple[str, Parts]:
        """``ask``, once each part's files are in its folder."""
        by_folder: dict[str, list[Mapping[str, Content]]] = {}
        for folder, part in zip(folders, parts, strict=True):
            by_folder.setdefault(folder, []).append(part)
        try:
            for folder, own in by_folder.items():
                self._folders.lay_out(folder, own)
        except OSError as error:
            return f"weights that came through the object store do not fit on {socket.gethostname()}: {error}", []
        return self.ask(message)

    def collect(self, folder: str) -> tuple[str, dict[str, Content]]:
        """Return and delete the files of a folder of this machine; or return why they cannot be had."""
        try:
            return "", self._folders.collect(folder)
        except OSError as error:
            return f"{error} (on {socket.gethostname()})", {}

    def end(self, myself: bool) -> None:
        """Kill the host, frozen or not; returns when it is gone. ``myself``: end the actor as well, as a cluster
        without a head ends none."""
        if self._transport is not None:
            self._transport.close()
        self._folders.leave()
        if myself:
            os._exit(0)
