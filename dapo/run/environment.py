"""What ``machine.jsonl`` is told of a session: the device that the model lies on, the engine, this package."""

from __future__ import annotations

import torch

from dapo.models.load import find_device
from dapo.observe.machine import FILE, append_machine, describe_machine
from dapo.observe.run_folder import RunFolder
from dapo.run.session import Session
from dapo.run.sft import SftSession


def record_machine(folder: RunFolder, session: Session | SftSession, step: int) -> None:
    """Add this process to ``RUN/machine.jsonl``: at a run's start and at each resume, ``step`` being the last done."""
    places = None if isinstance(session, SftSession) else session.places
    device = find_device(session.recipe.model.device if places is None else "auto")
    hosts = {} if places is None else places.where()  # on a cluster the devices are elsewhere, there may be none here
    engine = "none" if isinstance(session, SftSession) else session.recipe.rollout.engine
    machine = describe_machine(step, engine, accelerators(device), hosts)
    append_machine(folder.path / FILE, machine)


def accelerators(device: torch.device) -> list[str]:
    """The name and memory of a CUDA device, with CUDA's version; [] for a CPU."""
    if device.type != "cuda":
        return []
    properties = torch.cuda.get_device_properties(device)
    return [f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB, CUDA {torch.version.cuda}"]
