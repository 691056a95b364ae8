"""The recipe's sections ``run``, ``trainer``, ``validation``, ``checkpoint`` and ``logging``: the course of a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from dapo.config.section import ASK, FIXED, FREE, Above, Factor, Hook, Many, Parallel, Positive, Section, Tokens, Whole


class RunSection(Section, resume="fixed"):
    dir: str = "runs"
    """Folder that holds run folders."""
    name: str = "run"
    """The run's folder is ``dir/name``. Without a name it is that of the recipe's file, with a number where such a run
    exists: ``mine``, ``mine-2``..."""
    stage: Literal["train", "sft"] = "train"
    """What the run does: training by reward, or, as ``dapo sft`` sets it, imitation of the section ``sft``."""
    seed: int = 1
    """Every random number of the run derives from it; a built-in base model has its own (``model.builtin_seed``)."""
    threads: Annotated[Parallel, ASK] = 1
    """Threads for computing. More than one only on an otherwise idle machine."""
    reward_workers: Annotated[Parallel | None, FREE] = None
    """Processes for rewards; patterns mostly need none. null: one less than there are cores, at most 8."""
    reward_memory_mib: Annotated[Annotated[int, Field(ge=256, le=1 << 30)] | None, FREE] = 4096
    """Memory limit of each such process in MiB (RLIMIT_DATA: what it can write to; Linux only); null: none."""
    if_exists: Annotated[Literal["refuse", "backup"], FREE] = "refuse"
    """An existing run folder of that name: refuse to start, or move it aside to ``name.1`` (``name.2``...)."""


class EarlyStop(Section, resume="free"):
    metric: str | None = None
    """Metric, such as ``validation/accuracy``, that has to get better for the run to go on. null: no such rule."""
    best_is: Literal["auto", "highest", "lowest"] = "auto"
    """Which value of it is the best. ``auto``: as docs/metrics.md has the metric."""
    patience: Positive = 5
    """Lines with the metric (evaluations, where it comes from them) in a row without a better value that end the run.
    The evaluation before training counts as the first value."""
    min_change: Factor = 0.0
    """A value is better only if it is so by more than this."""


class TrainerSection(Section, resume="free"):
    steps: Whole = 100
    """Training steps (one rollout batch each)."""
    max_hours: Annotated[float, Field(gt=0, le=100_000)] | None = None
    """Hours from the start of the command by which it has saved and ended, with exit code 75; ``dapo train --resume``
    goes on, with as many hours again. No step is begun that would end later if it took as long as the longest of the
    last twenty; sampling and evaluations are left in their middle. null: no limit."""
    early_stop: EarlyStop = EarlyStop()
    """The end before ``steps`` where nothing gets better."""
    sync_check_tolerance: Above | None = None
    """Largest mean |sampler - learner| log-probability, nats, accepted right after a publish (engines with own
    weights). null: three times the healthy gap of this engine, and what few tokens may vary by, between 1e-5 and 0.05;
    or three times the rounding of the model's own forward pass in ``model.dtype``, at most 0.3."""


class Validation(Section, resume="free"):
    every: Whole = 10
    """Training steps between evaluations; 0: never. The first and last steps are evaluated too."""
    samples: Many = 4
    """k: sampled responses per problem."""
    greedy: bool = True
    """Also one greedy response per problem."""
    temperature: Annotated[float, Field(ge=0.001, le=100)] = 1.0
    """Of sampled evaluation."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Of sampled evaluation (the paper's run: 0.7)."""
    max_response_tokens: Tokens | None = None
    """null: as in training."""
    limit: Positive | None = None
    """Problems per data set; null: all."""


class Checkpoint(Section, resume="free"):
    every: Whole = 10
    """Training steps between checkpoints; 0: only at the end."""
    keep: Positive = 2
    """Newest checkpoints to keep."""
    seconds: Annotated[float, Field(gt=0, le=2_592_000)] | None = None
    """Also save at the first end of a step so many seconds after the last checkpoint; null: by steps alone."""
    best: str | None = None
    """Metric, such as ``validation/accuracy``: the best step by it is saved when it is recorded, and kept with the
    newest ones (``dapo export --best``). The evaluation before training does not count. null: only the newest."""
    best_is: Literal["auto", "highest", "lowest"] = "auto"
    """Which value of ``best`` is the best. ``auto``: as docs/metrics.md has the metric."""
    dir: Annotated[str | None, FIXED] = None
    """Folder, on another disk perhaps, that holds the run's checkpoints in a folder of its own; ``RUN/checkpoints`` is
    then a link to that. null: they lie in the run's folder."""
    asynchronous: bool = False
    """Write a checkpoint while the next steps are trained: its tensors are copied to the processor's memory first."""


TrackerName = Literal["tensorboard", "wandb", "mlflow", "trackio"]
TRACKERS: tuple[str, ...] = get_args(TrackerName)
WITH_PROJECTS = ("wandb", "mlflow", "trackio")


class TrackerSettings(Section, resume="free"):
    kind: TrackerName | Hook
    """``tensorboard`` (events in the run folder), ``wandb``, ``mlflow``, ``trackio``, or ``package.module:Class``, a
    ``dapo.Callback`` of yours (docs/python.md)."""
    project: str | None = None
    """Name of the project (wandb, trackio) or experiment (mlflow); null: ``dapo``."""

    @model_validator(mode="before")
    @classmethod
    def _by_name(cls, given: Any) -> Any:
        return {"kind": given} if isinstance(given, str) else given


class Logging(Section, resume="free"):
    rollouts: Literal["all", "kept", "none"] | Positive = "all"
    """Which groups go to ``rollouts/*.parquet``; a number: so many of each step, evenly spread over it."""
    tokens: Whole = 3
    """Trained groups per step that are recorded token by token in ``tokens/*.parquet``, and one that did not train,
    all from those that ``rollouts`` records; 0: none."""
    spans: bool = True
    """Write ``spans.jsonl``: when each phase of a step began and ended."""
    console: Literal["auto", "live", "plain", "quiet"] = "auto"
    """``auto``: live in a terminal, plain lines elsewhere."""
    samples_every: Whole = 10
    """Steps between samples shown on the console; 0: never."""
    trackers: list[TrackerSettings] = Field(default_factory=list)
    """Where numbers go as well (extra ``track``); ``[tensorboard, wandb]`` is short for ``[{kind: tensorboard}, {kind:
    wandb}]``."""
    also: Literal["nemo-rl"] | None = None
    """Names that trackers get in addition to dapo's: ``nemo-rl`` adds NeMo RL's three metrics of dynamic sampling, as
    ``train/filtered_reward`` and the like (docs/metrics.md has names and formulas)."""
