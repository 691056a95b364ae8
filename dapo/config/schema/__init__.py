"""The recipe: every setting of a run, with its meaning where it stands. Imports no torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from dapo.config.schema.algorithm import (
    Advantage,
    Algorithm,
    Clip,
    Correction,
    DynamicSampling,
    EntropyControl,
    Loss,
    OverlongPunishment,
    Reference,
    RewardScaling,
)
from dapo.config.schema.data import Curriculum, Data, DataSource, Reward, Sft, SftSource, Shot, Thinking
from dapo.config.schema.launch import Cluster, Launch, Slurm
from dapo.config.schema.learner import Learner, Lora, Model
from dapo.config.schema.rollout import Embedded, Rollout, Server, Vllm
from dapo.config.schema.run import Checkpoint, EarlyStop, Logging, Run, Trainer, Validation
from dapo.config.section import Section

__all__ = [
    "Advantage",
    "Algorithm",
    "Checkpoint",
    "Clip",
    "Cluster",
    "Correction",
    "Curriculum",
    "Data",
    "DataSource",
    "DynamicSampling",
    "EarlyStop",
    "Embedded",
    "EntropyControl",
    "Launch",
    "Learner",
    "Logging",
    "Lora",
    "Loss",
    "Model",
    "OverlongPunishment",
    "Recipe",
    "Reference",
    "Reward",
    "RewardScaling",
    "Rollout",
    "Run",
    "Server",
    "Sft",
    "SftSource",
    "Shot",
    "Slurm",
    "Thinking",
    "Trainer",
    "Validation",
    "Vllm",
]


class Recipe(Section):
    preset: Literal[
        "dapo",
        "dapo-paper",
        "dapo-verl",
        "grpo",
        "grpo-paper",
        "grpo-trl",
        "grpo-verl",
        "dr-grpo",
        "gspo",
        "cispo",
        "sapo",
        "clip-cov",
        "kl-cov",
        "gdpo",
        "scalerl-loss",
    ] = "dapo"
    """Named starting point; what the file sets lies on top."""
    run: Run = Run()
    """Where the run lives."""
    model: Model
    """What is trained."""
    data: Data
    """What it is trained on."""
    rewards: list[Reward] = Field(default_factory=lambda: [Reward()], min_length=1)
    """How responses are scored."""
    rollout: Rollout = Rollout()
    """How responses are made."""
    algorithm: Algorithm = Algorithm()
    """DAPO and its relatives."""
    learner: Learner = Learner()
    """The optimiser."""
    validation: Validation = Validation()
    """Evaluation during training."""
    trainer: Trainer = Trainer()
    """The loop."""
    sft: Sft = Sft()
    """A supervised start (``dapo sft``)."""
    checkpoint: Checkpoint = Checkpoint()
    """Saving."""
    logging: Logging = Logging()
    """What is recorded."""
    launch: Launch = Launch()
    """Where the run's parts live."""
    cluster: Cluster = Cluster()
    """Parts of a run in processes of their own."""
    slurm: Slurm = Slurm()
    """The job of ``dapo launch``."""
