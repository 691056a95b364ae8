"""The sandbox as its callers see it: a program goes in; its output, exit code and seconds come out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from dapo.errors import DapoError

OUTPUT_BYTES = 64 * 1024
"""Where the output of a program is cut."""
DISK_MIB = 64
"""What a program may write in its own folder."""
PROCESSES = 32
"""Processes and threads of a program."""


class SandboxError(DapoError, RuntimeError):
    """A sandbox that cannot be had, or that was lost: nothing is known about the program."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Ran:
    """How one program ran."""

    output: str
    errors: str
    exit_code: int | None  # of a signal: its negative number; None: the time limit ended it
    seconds: float
    cut: bool = False  # output or errors were longer than the limit


class Sandbox(Protocol):
    """Run Python programs, one at a time."""

    def start(self) -> str:
        """Make the sandbox ready and return a line that says what it is.

        Raises:
            SandboxError: it cannot be had as the recipe wants it.
        """

    def run(
        self, program: str, stdin: str = "", *, timeout: float = 5.0, memory_mib: int = 512, output: int = OUTPUT_BYTES
    ) -> Ran:
        """Run a program to its end, or to the limit of its time.

        Args:
            program: a script's text.
            stdin: its input.
            timeout: seconds that it may take.
            memory_mib: address space of each of its processes.
            output: bytes that are kept of its output, and of its errors.

        Raises:
            SandboxError: it was not run, or how it ended is unknown.
        """

    def close(self) -> None:
        """End what belongs to the sandbox."""
