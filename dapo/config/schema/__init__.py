"""The recipe: every setting of a run, with its meaning where it stands. Imports no torch.

A section whose name another class has ends in ``Section``.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dapo.config.schema.algorithm import (
    AlgorithmSection,
    DynamicSampling,
    EntropyControlSection,
    OverlongPunishment,
    ReferenceSection,
    RewardScaling,
    Selection,
    TeacherSection,
)
from dapo.config.schema.data import (
    Curriculum,
    Data,
    DataSource,
    Reward,
    SandboxSection,
    Sft,
    SftSource,
    Shot,
    ThinkingSection,
    TrainSource,
)
from dapo.config.schema.environment import EnvironmentSection
from dapo.config.schema.kinds import Clip
from dapo.config.schema.launch import Cluster, Launch, Slurm
from dapo.config.schema.learner import LearnerSection, Lora, Model
from dapo.config.schema.rollout import Embedded, Rollout, Server, Vllm
from dapo.config.schema.run import (
    Checkpoint,
    EarlyStop,
    Logging,
    RunSection,
    TrackerSettings,
    TrainerSection,
    Validation,
)
from dapo.config.section import FIXED, Hook, Section

__all__ = [
    "AlgorithmSection",
    "Checkpoint",
    "Clip",
    "Cluster",
    "Curriculum",
    "Data",
    "DataSource",
    "DynamicSampling",
    "EarlyStop",
    "Embedded",
    "EntropyControlSection",
    "EnvironmentSection",
    "Launch",
    "LearnerSection",
    "Logging",
    "Lora",
    "Model",
    "OverlongPunishment",
    "Recipe",
    "ReferenceSection",
    "Reward",
    "RewardScaling",
    "Rollout",
    "RunSection",
    "SandboxSection",
    "Selection",
    "Server",
    "Sft",
    "SftSource",
    "Shot",
    "Slurm",
    "TeacherSection",
    "ThinkingSection",
    "TrackerSettings",
    "TrainSource",
    "TrainerSection",
    "Validation",
    "Vllm",
]


class Recipe(Section):
    preset: Annotated[
        Literal[
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
            "distillation",
        ],
        FIXED,
    ] = "dapo"
    """Named starting point; what the file sets lies on top."""
    run: RunSection = RunSection()
    """The run's folder, seed and processes."""
    model: Model
    """What is trained."""
    data: Data
    """What it is trained on."""
    rewards: list[Reward] = Field(default_factory=lambda: [Reward()])
    """How responses are scored. ``[]`` scores nothing: ``algorithm.teacher`` is then all that trains."""
    scorer: Hook | None = None
    """Your own scorer instead of ``rewards``, ``package.module:Class``, called with the run's context
    (docs/extending.md)."""
    sandbox: SandboxSection = SandboxSection()
    """What runs programs that the model wrote."""
    rollout: Rollout = Rollout()
    """How responses are made."""
    environment: EnvironmentSection = EnvironmentSection()
    """Who answers the model between its turns."""
    algorithm: AlgorithmSection = AlgorithmSection()
    """DAPO and its relatives."""
    learner: LearnerSection = LearnerSection()
    """The optimiser."""
    validation: Validation = Validation()
    """Evaluation during training."""
    trainer: TrainerSection = TrainerSection()
    """The loop."""
    sft: Sft = Sft()
    """A supervised start (``dapo sft``)."""
    checkpoint: Checkpoint = Checkpoint()
    """Saved states of the run."""
    logging: Logging = Logging()
    """What is recorded."""
    launch: Launch = Launch()
    """Where the run's processes are."""
    cluster: Cluster = Cluster()
    """Parts of a run in processes of their own."""
    slurm: Slurm = Slurm()
    """The job of ``dapo launch``."""
