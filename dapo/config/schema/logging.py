"""The recipe's section ``logging``: what is recorded and shown."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.section import Positive, Section, Whole

Tracker = Annotated[str, Field(pattern=r"^(tensorboard|wandb|mlflow|trackio|[A-Za-z_][\w.]*:[A-Za-z_]\w*)$")]


class Logging(Section):
    rollouts: Literal["all", "kept", "sample", "none"] = "all"
    """Which groups go to ``rollouts/*.parquet``."""
    rollouts_sample: Positive = 8
    """For ``sample``: groups per step."""
    tokens: Whole = 3
    """Trained groups per step that are recorded token by token in ``tokens/*.parquet``, beside one that did not train,
    all from those that ``rollouts`` records; 0: none."""
    spans: bool = True
    """Write ``spans.jsonl``: when each phase of a step began and ended."""
    console: Literal["auto", "live", "plain", "quiet"] = "auto"
    """``auto``: live in a terminal, plain lines elsewhere."""
    samples_every: Whole = 10
    """Steps between samples shown on the console; 0: never."""
    tensorboard: bool = False
    """Write TensorBoard events into the run folder (extra ``track``)."""
    wandb: str | None = None
    """Weights & Biases project (extra ``track``)."""
    trackers: list[Tracker] = Field(default_factory=list)
    """Where numbers go as well: ``tensorboard``, ``wandb``, ``mlflow``, ``trackio``, or ``package.module:Class``, a
    ``dapo.Callback`` of yours (docs/python.md)."""
    project: str | None = None
    """Name of the project (wandb, trackio) or experiment (mlflow) for ``trackers``; None: ``dapo``."""
