"""Ranks that fail as a test wants it, once for each file that says so."""

from __future__ import annotations

from pathlib import Path

import torch

from dapo.models import adapter
from dapo.run.learners import start_worker


def start(flags: Path, *args):
    """``start_worker``, by ranks that raise in the step after version N where ``flags`` holds a file ``rank-N``."""
    worker = start_worker(*args)
    learn = worker.learn

    def learned(step):
        flag = flags / f"{worker.rank}-{step.version}"
        if flag.exists():
            flag.unlink()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return learn(step)

    worker.learn = learned
    return worker


def start_with_an_old_merge(when: str, lora_rank: int, *args):
    """``start_worker``, by ranks of which the second one merges what A was at first.

    Args:
        when: "published": only what engines get; "always": what is compared with it, too.
        lora_rank: of the adapter: so many rows has A and nothing else.
        args: of ``start_worker``.
    """
    worker = start_worker(*args)
    gathered, first = adapter._gathered, {}

    def old(tensor):
        now = gathered(tensor)  # with the others, who know of nothing
        return first.setdefault(id(tensor), now) if len(now) == lora_rank else now

    def send(*args):
        adapter._gathered = old
        sent = send_now(*args)
        adapter._gathered = gathered
        return sent

    if worker.rank == 1 and when == "always":
        adapter._gathered = old
    elif worker.rank == 1:
        send_now, worker.send = worker.send, send
    return worker


def start_without_fillers(*args):
    """``start_worker``, by ranks whose empty passes go forward and not back: the bug that hung others' trainers."""
    worker = start_worker(*args)
    empty_pass = worker.step.empty_pass
    worker.step.empty_pass = lambda *, backward=True: empty_pass(backward=False)
    return worker
