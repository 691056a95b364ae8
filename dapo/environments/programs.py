"""The tool ``python``: a program of the model runs in the sandbox, and the model reads what it printed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from dapo.sandbox.runs import Ran
from dapo.sandbox.select import SandboxSettings, make_sandbox

PYTHON = "python"
"""The tool's name in ``environment.tools``."""


@dataclass(frozen=True, slots=True)
class ProgramSettings:
    """The recipe's settings of the tool; they can be pickled for workers."""

    sandbox: SandboxSettings = field(default_factory=SandboxSettings)
    timeout: float = 5.0
    memory_mib: int = 512


def python_tool(settings: ProgramSettings) -> Callable[[str], str]:
    """Start a sandbox, and return a tool that runs programs in it.

    Raises:
        SandboxError: it cannot be had as the settings want it.
    """
    sandbox = make_sandbox(settings.sandbox)
    sandbox.start()

    def python(code: str) -> str:
        """Run a Python program and return what it prints. Each program starts anew; print what you want to read."""
        return told(sandbox.run(code, timeout=settings.timeout, memory_mib=settings.memory_mib), settings.timeout)

    return python


def told(ran: Ran, timeout: float) -> str:
    """Return what the model reads of a program: its output, then how it failed."""
    parts = [ran.output]
    if ran.cut:
        parts.append("[the output was cut]")
    if ran.exit_code is None:
        parts.append(f"error: the program did not end within {timeout:g} s")
    elif ran.exit_code:
        parts.append(ran.errors.strip() or f"error: the program ended with code {ran.exit_code}")
    return "\n".join(part.rstrip("\n") for part in parts if part) or "[no output]"
