"""Hosts in processes that ``warm`` forks: they need not import torch, which takes longer than most of what they do."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch
import warm

from dapo.processes import local
from dapo.processes.large_messages import Parts
from dapo.processes.local import ProcessHost, ProcessTransport
from dapo.processes.served import serve


class ForkedTransport(ProcessTransport):
    """``ProcessTransport`` without interpreters of their own and without guards."""

    def open(self, name: str, make: Parts, environment: Mapping[str, str]) -> ProcessHost:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(local, "_spawn", _Forked)
            return super().open(name, make, environment)


class _Forked:
    """Does what ``ProcessHost`` asks of a ``GuardedProcess``."""

    def __init__(self, environment: Mapping[str, str], output: Path | None) -> None:
        self.connection, theirs = socket.socketpair()
        with theirs:
            variables = {**os.environ, **environment}
            self._process = warm.start(_serve, theirs, variables, output=output)

    def exit_code(self, seconds: float) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def reap(self, seconds: float) -> None:
        self._process.join(seconds)


def _serve(connection: socket.socket, variables: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(variables)
    torch.set_num_threads(1)
    serve(connection)
