"""The recipe's section ``run``: where it lives, and on how much of the machine."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Parallel, Section


class Run(Section):
    dir: str = "runs"
    """Folder that holds run folders."""
    name: str = "run"
    """The run's folder is ``dir/name``. Without a name it is that of the recipe's file, with a number where such a run
    exists: ``mine``, ``mine-2``..."""
    stage: Literal["train", "sft"] = "train"
    """What the run does: training by reward, or, as ``dapo sft`` sets it, imitation of the section ``sft``."""
    seed: int = 1
    """Every random number of the run derives from it."""
    threads: Parallel = 1
    """Threads for computing. More than one only on an otherwise idle machine."""
    reward_workers: Parallel | None = None
    """Processes for rewards; patterns mostly need none. None: one less than there are cores, at most 8."""
    reward_memory_mib: Annotated[int, Field(ge=256, le=1 << 30)] | None = 4096
    """Memory limit of each such process in MiB (RLIMIT_DATA: what it can write to; Linux only); None: none."""
    if_exists: Literal["refuse", "backup"] = "refuse"
    """An existing run folder of that name: refuse to start, or move it aside to ``name.1`` (``name.2``...)."""
