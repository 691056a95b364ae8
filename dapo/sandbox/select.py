"""Choose a sandbox: the one of this machine, bubblewrap's, or a service.

A caller needs two lines: ``sandbox = make_sandbox(settings)`` and ``sandbox.run(program)``.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Literal

from dapo.sandbox.bubblewrap import BubblewrapSandbox
from dapo.sandbox.fork_server import LocalSandbox, Require
from dapo.sandbox.runs import Sandbox, SandboxError

Kind = Literal["local", "bubblewrap", "http"]


@dataclass(frozen=True, slots=True)
class SandboxSettings:
    """Settings of the sandbox from the recipe; they can be pickled for workers."""

    kind: Kind = "local"
    require: Require = "full"
    url: str | None = None
    api_key_variable: str | None = None


def make_sandbox(settings: SandboxSettings) -> Sandbox:
    """Return the sandbox that the settings describe; it starts with its first program, or at ``start``."""
    if settings.kind == "bubblewrap":
        return BubblewrapSandbox()
    if settings.kind == "http":
        from dapo.sandbox.over_http import ServiceSandbox  # takes HTTP and TLS along, which no worker of a reward needs

        assert settings.url is not None
        return ServiceSandbox(settings.url, settings.api_key_variable)
    return LocalSandbox(settings.require)


def try_sandbox(settings: SandboxSettings) -> str:
    """Start a sandbox, end it, and return the line that says what it is.

    Raises:
        SandboxError: it cannot be had as the settings want it.
    """
    if settings.kind == "local" and sys.platform != "linux" and settings.require != "none":
        raise SandboxError(
            f"sandbox.require is {settings.require}, and {sys.platform} has none of the facilities that the local "
            "sandbox uses: train on Linux, use sandbox.kind: http, or write `sandbox.require: none`, which runs "
            "programs of the model with your files and your network open"
        )
    sandbox = make_sandbox(settings)
    try:
        return sandbox.start()
    finally:
        sandbox.close()
