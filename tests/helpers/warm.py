"""Processes of their own that need not import torch: forked from a server that has imported what a run needs."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")
# Imports only: a thread of the server would be missing in its children.
_CONTEXT.set_forkserver_preload(["dapo.cli.main", "dapo.run", "transformers.models.llama.modeling_llama"])
LIMIT = 240.0


def start(target: Callable[..., int | None], *arguments: Any, output: Path | None = None) -> ForkServerProcess:
    """Call a module's function as a program that exits with what it returns, and speaks into the file ``output``."""
    process = _CONTEXT.Process(target=_program, args=(output or Path(os.devnull), target, arguments), daemon=True)
    process.start()
    return process


def run(target: Callable[..., int | None], *arguments: Any, output: Path | None = None) -> int | None:
    """``start``, and wait for its exit code."""
    process = start(target, *arguments, output=output)
    process.join(LIMIT)
    process.kill()
    process.join()
    return process.exitcode


def _program(output: Path, target: Callable[..., int | None], arguments: tuple[Any, ...]) -> None:
    number = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (1, 2):
        os.dup2(number, stream)
    raise SystemExit(target(*arguments))
