"""Errors whose cause is the machine: told as that, and not as a defect of the model that was being loaded."""

from __future__ import annotations

import errno

import torch

from dapo.errors import ModelError


def raise_for_machine(error: BaseException, doing: str) -> None:
    """Name a cause that lies with the machine and not with the model; returns if it does not.

    Raises:
        ModelError: threads, memory or open files ran out.
    """
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError):
        what = f"the device has too little memory ({first_line(error)}): free it, or take a smaller model or type"
    elif isinstance(error, MemoryError) or "can't allocate memory" in text or "Cannot allocate memory" in text:
        what = "this machine has too little memory: end other programs, or take a smaller model or type"
    elif "can't start new thread" in text or "Resource temporarily unavailable" in text:
        what = (
            "this machine starts no more threads: end other programs, or raise the limit (`ulimit -u`, a container's)"
        )
    elif isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        what = "too many files are open: raise the limit (`ulimit -n`)"
    else:
        return
    raise ModelError(f"{doing} failed, and not because of the model: {what}") from error


def first_line(error: Exception) -> str:
    """The beginning of what an error says, in at most 300 characters."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]
