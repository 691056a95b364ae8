"""What ``machine.jsonl`` is told of a session: the device that the model lies on, the engine, this package."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from dapo.models.load import find_device
from dapo.observe.machine import FILE, append_machine, describe_machine
from dapo.observe.run_folder import RunFolder
from dapo.run.session import Session
from dapo.system import memory_of
from dapo.types.protocols import HasProcesses, ProcessState


def record_machine(folder: RunFolder, session: Session[Any], step: int) -> None:
    """Add this process to ``RUN/machine.jsonl``: at a run's start and at each resume, ``step`` being the last done."""
    places = session.places
    device = find_device(session.recipe.model.device if places is None else "auto")
    hosts = {} if places is None else places.where()  # on a cluster the devices are elsewhere, there may be none here
    engine = "none" if session.parts.engine is None else session.recipe.rollout.engine
    machine = describe_machine(step, engine, accelerators(device), hosts)
    append_machine(folder.path / FILE, machine)


def processes_of(session: Session[Any]) -> Callable[[], list[ProcessState]] | None:
    """Return a function that lists the processes of a run; None: the run has one process."""
    deployment, engine = session.parts.deployment, session.parts.engine
    places = session.places
    where = {} if places is None else places.where()
    here = os.uname().nodename
    learner = [ProcessState(name, "learner", where.get(name, here)) for name in deployment.learner_hosts]
    if not learner and not isinstance(engine, HasProcesses):
        return None

    def found() -> list[ProcessState]:
        driver = ProcessState("driver", "driver", here, os.getpid(), memory_mib=memory_of(os.getpid()))
        return [driver, *learner, *(engine.processes() if isinstance(engine, HasProcesses) else ())]

    return found


def accelerators(device: torch.device) -> list[str]:
    """The name and memory of a CUDA device, with CUDA's version; [] for a CPU."""
    if device.type != "cuda":
        return []
    properties = torch.cuda.get_device_properties(device)
    return [f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"]
