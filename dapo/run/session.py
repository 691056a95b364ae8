"""Parts of a run of any method: its model, its learner, its loop, and the parts of its method."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch

from dapo.checkpoint.store import CheckpointStore
from dapo.config.deployment import Deployment
from dapo.config.schema import Recipe
from dapo.engines.pool import EnginePool
from dapo.learner.driver import LearnerDriver
from dapo.loop.method import Method
from dapo.loop.stopping import Deadline
from dapo.loop.trainer import Trainer
from dapo.metrics.phases import Phases
from dapo.models.load import find_device
from dapo.models.loaded import LoadedModel
from dapo.models.meter import meter_of
from dapo.observe.machine import FILE, append_machine, describe_machine
from dapo.observe.run_folder import RunFolder
from dapo.run.algorithm import make_schedule
from dapo.run.learners import make_learner
from dapo.run.places import Places
from dapo.system import memory_of
from dapo.types.batch import Prompt
from dapo.types.evidence import ClusterLost
from dapo.types.model import ModelFacts
from dapo.types.protocols import Engine, Learner, ProcessState, Recorder
from dapo.weights.exchange import WeightExchange


class Parts(Protocol):
    """Parts that a method of training adds to a session. One function of each method makes them, with the session."""

    @property
    def deployment(self) -> Deployment:
        """Return who runs where."""

    @property
    def engine(self) -> Engine | None:
        """Return the engine that samples; None: the method samples nothing."""

    @property
    def prompts(self) -> list[Prompt]:
        """Return what is trained on, for the run's table of prompts."""

    def saved_facts(self) -> dict[str, Any]:
        """Return what a checkpoint shall say of its run: ``recipe`` as it was given, and ``validation``."""

    def method(self, learner: Learner, recorder: Recorder, phases: Phases) -> Method:
        """Return what the loop calls in each step."""


P = TypeVar("P", bound=Parts)


@dataclass(slots=True)
class Session(Generic[P]):
    """The objects of one run, until ``close``."""

    recipe: Recipe  # as learner and loop read it
    parts: P
    loaded: LoadedModel | None  # of a learner or an engine of this process; None: both live elsewhere
    facts: ModelFacts
    tokenizer: Any
    exchange: WeightExchange  # through which the learner publishes
    folder: Path | None  # of the run
    say: Callable[[str], None]
    closing: ExitStack  # whatever is to be ended, the newest first
    places: Places | None = None  # of ranks and engines on a cluster
    started: LearnerDriver | None = None  # by ``learner``, most recently

    def learner(self, *, training: bool = True) -> Learner:
        """Start the learner; without ``training`` it is asked for nothing but its weights and log-probabilities."""
        learner = make_learner(
            self.recipe,
            self.parts.deployment,
            self.facts,
            self.loaded,
            exchange=self.exchange,
            run=self.folder,
            training=training,
            say=self.say,
            places=self.places,
        )
        self.closing.callback(learner.close)
        self.started = learner
        return learner

    def trainer(self, recorder: Recorder, checkpoints: CheckpointStore, deadline: Deadline | None = None) -> Trainer:
        """Return the loop over a learner that is started here.

        Args:
            recorder: hears of every step.
            checkpoints: where steps are saved.
            deadline: of ``trainer.max_hours``; None: begun here.
        """
        phases = Phases(recorder.span, meter=meter_of(None if self.loaded is None else self.loaded.device))
        trainer = Trainer(
            self.parts.method(self.learner(), recorder, phases),
            checkpoints=checkpoints,
            recorder=recorder,
            recipe=self.recipe,
            schedule=make_schedule(self.recipe),
            phases=phases,
            fingerprint=dict(self.facts.fingerprint),
            facts=self.parts.saved_facts(),
            deadline=deadline,
        )
        if self.places is not None:
            self.places.tell(trainer.stopping.lose)
        return trainer

    def lost(self) -> ClusterLost | None:
        """Return how the cluster of the run was lost, if it was."""
        return None if self.places is None else self.places.lost()

    def close(self) -> None:
        """End all parts, also those after one that cannot be ended."""
        self.closing.close()


def record_machine(folder: RunFolder, session: Session[Any], step: int) -> None:
    """Add this process to ``RUN/machine.jsonl``: at a run's start and at each resume, ``step`` being the last done."""
    places = session.places
    device = find_device(session.recipe.model.device if places is None else "auto")
    hosts = {} if places is None else places.where()  # on a cluster the devices are elsewhere, there may be none here
    engine = "none" if session.parts.engine is None else session.recipe.rollout.engine
    machine = describe_machine(step, engine, session.recipe.run.threads, _accelerators(device), hosts)
    append_machine(folder.path / FILE, machine)


def processes_of(session: Session[Any], restarts: int = 0) -> Callable[[], list[ProcessState]] | None:
    """Return a function that lists the processes of a run; None: the run has one process.

    ``restarts``: how often the learner was started again.
    """
    learner = session.started if session.parts.deployment.learner_hosts else None
    engine = session.parts.engine
    if learner is None and not isinstance(engine, EnginePool):
        return None

    def found() -> list[ProcessState]:
        here = os.uname().nodename
        processes = [ProcessState("driver", "driver", here, os.getpid(), memory_mib=memory_of(os.getpid()))]
        if learner is not None:
            processes += [replace(rank, restarts=restarts) for rank in learner.processes()]
        if isinstance(engine, EnginePool):
            processes += engine.processes()
        return processes

    return found


def _accelerators(device: torch.device) -> list[str]:
    """Return the name and memory of a CUDA device, with CUDA's version; [] for a CPU."""
    if device.type != "cuda":
        return []
    properties = torch.cuda.get_device_properties(device)
    return [f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"]
