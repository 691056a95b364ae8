"""The recipe's sections ``launch``, ``cluster`` and ``slurm``: where a run's parts live, and the job that starts it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Patience, Positive, Section


class Launch(Section, resume="free"):
    backend: Literal["local", "ray"] = "local"
    """Where processes of engines and ranks are. ``local``: on this machine. ``ray``: on a Ray cluster, also a single
    engine; a learner of one rank only where engines work at the same time."""


class Cluster(Section, resume="free"):
    address: str | None = None
    """With ``launch.backend: ray``: ``HOST:PORT`` of the Ray cluster that this machine belongs to. Null: the one in the
    environment variable ``RAY_ADDRESS``; without it a cluster of this machine is started, and ended with the run."""
    nodes: Annotated[int, Field(gt=0, le=10_000)] | None = None
    """With ``launch.backend: ray``: machines that the cluster must have before anything is placed; those that are not
    there yet are waited for. Null: as many as there are. `dapo launch` sets it to ``slurm.nodes``."""
    gpus_per_node: Annotated[int, Field(ge=0, le=1024)] | None = None
    """With ``launch.backend: ray``: devices that each of its machines must have. Null: as many as there are."""
    colocate: bool | None = None
    """With ``launch.backend: ray``: an engine shares processors and devices with as many ranks as it has devices, since
    they work in turns. Null: unless ``rollout.max_staleness`` lets them work at the same time."""
    cpus_per_host: Annotated[float, Field(gt=0, le=1024)] | None = None
    """With ``launch.backend: ray``: CPUs that a rank or an engine asks the cluster for (a rank and an engine that
    share: together). Null: ``run.threads``. Less than 1 lets several of them share a core."""
    start_timeout: Patience = 600.0
    """Seconds that an engine may take to start: imports, the model, for vLLM the compilation. On a Ray cluster also
    those until machines that others use are free, and until those of ``nodes`` have come."""
    engine_timeout: Patience = 300.0
    """Seconds after which an engine of a pool that does not come back from a turn is killed, and counts as lost. Longer
    than a turn of ``rollout.turn_steps`` and longer than loading weights."""
    max_engine_restarts: Annotated[int, Field(ge=0, le=10_000)] = 10
    """Engines of a pool that are started again in a run, together; after a further loss the others go on. When none is
    left the run is saved and stops."""
    max_learner_restarts: Annotated[int, Field(ge=0, le=1000)] = 3
    """How often one command starts a lost learner again, from the last checkpoint: one over ranks, or one next to which
    engines work (``rollout.max_staleness``)."""


class Slurm(Section, resume="free"):
    nodes: Annotated[int, Field(gt=0, le=10_000)] = 1
    """Machines of the job. Above 1 the job starts a Ray cluster over them, and runs with ``launch.backend: ray``."""
    options: dict[str, str | int | bool] = Field(default_factory=dict)
    """Options of sbatch by their long names, passed on as they are, such as ``{partition: gpu, account: lab, time:
    '4:00:00', mem: 0, exclusive: true}``. Each machine has one task. Without options for GPUs or cores `dapo launch`
    asks for what ranks and engines use."""
    setup: list[str] = Field(default_factory=list)
    """Lines of shell at the beginning of the job, on its first machine, such as ``module load cuda``. What they set in
    the environment reaches the others. ``dapo launch`` refuses lines with an open quote, here-document or block."""
    container: str | None = None
    """A command that runs another one in a container, such as ``apptainer exec --nv /images/dapo.sif``: plain words in
    one text, split at spaces. Signals must reach the command that it runs."""
    signal_seconds: Positive = 600
    """Seconds before the end of the time limit at which the run is asked to save. Longer than what the learner
    does in a step and a checkpoint together."""
    requeue: bool = True
    """Put the job back into the queue when its time is up, and go on from the last checkpoint when it starts again."""
