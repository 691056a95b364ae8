"""The recipe's section ``slurm``: the job that ``dapo launch`` submits. Training itself reads nothing of it."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from dapo.config.section import Parallel, Positive, Section


class Slurm(Section):
    nodes: Annotated[int, Field(gt=0, le=10_000)] = 1
    """Machines of the job. Above 1 the job starts a Ray cluster over them, and runs with ``launch.backend: ray``."""
    partition: str | None = None
    """``--partition``; null: the cluster's own default, here and below."""
    account: str | None = None
    """``--account``."""
    qos: str | None = None
    """``--qos``."""
    constraint: str | None = None
    """``--constraint``: features that each machine must have."""
    time: str | None = None
    """``--time``, as Slurm writes it: ``MINUTES``, ``HH:MM:SS``, ``D-HH`` or ``D-HH:MM:SS``. Put it in quotes."""
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] | None = None
    """``--gpus-per-node``; null: not asked for."""
    cpus_per_node: Parallel | None = None
    """``--cpus-per-task`` of the one task of each machine. Many clusters give a single core where it is null."""
    setup: list[str] = Field(default_factory=list)
    """Lines of shell at the beginning of the job, on its first machine, such as ``module load cuda``. What they set in
    the environment reaches the others. ``dapo launch`` refuses lines with an open quote, here-document or block."""
    container: str | None = None
    """A command that runs another one in a container, such as ``apptainer exec --nv /images/dapo.sif``: plain words in
    one text, split at spaces. Signals must reach the command that it runs."""
    signal_seconds: Positive = 600
    """Seconds before the end of the time limit at which the run is asked to finish its step and save. Longer than a
    step, an evaluation and a checkpoint together."""
    requeue: bool = True
    """Put the job back into the queue when its time is up, and go on from the last checkpoint when it starts again."""
    extra: list[str] = Field(default_factory=list)
    """Further options of sbatch, one each: ``--mem=0``, ``--exclusive``."""
