"""Ranks that fail as a test wants it, once for each file that says so."""

from __future__ import annotations

from pathlib import Path

import torch

from dapo.run.learners import start_rank


def start(flags: Path, *args):
    """``start_rank``, by ranks that raise in the step after version N where ``flags`` holds a file ``rank-N``."""
    rank = start_rank(*args)
    learn = rank.learn

    def learned(step):
        flag = flags / f"{rank.place.rank}-{step.version}"
        if flag.exists():
            flag.unlink()
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return learn(step)

    rank.learn = learned
    return rank


def start_without_fillers(*args):
    """``start_rank``, by ranks whose empty passes go forward and not back: the bug that hung others' trainers."""
    rank = start_rank(*args)
    empty_pass = rank.step.empty_pass
    rank.step.empty_pass = lambda *, backward=True: empty_pass(backward=False)
    return rank
