"""Machines of a Ray cluster: raylets of this one, each behind a guard of its own."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ray_processes import command_of, descendants

from dapo.processes.guarded import GuardedProcess

CPUS = len(os.sched_getaffinity(0))
"""Of each machine, as Ray counts them: a bundle of so many takes all of it."""
_NODE = "from ray.scripts.scripts import main; main()"


@dataclass
class Machine:
    """One that has joined a cluster."""

    guarded: GuardedProcess
    said: TextIO

    @property
    def processes(self) -> list[int]:
        """All that run on it."""
        return descendants(self.guarded.pid)

    @property
    def raylet(self) -> int:
        (found,) = [one for one in self.processes if Path(command_of(one).partition(" ")[0]).name == "raylet"]
        return found

    def close(self) -> None:
        """End all of it."""
        self.guarded.kill()
        while self.guarded.exit_code(60) is None:
            pass
        self.guarded.connection.close()
        self.said.close()


def join(address: str, cpus: int = CPUS, gpus: int = 0) -> Machine:
    """A further machine of the cluster at ``address``, once it is one. Ray gives up on its own raylet after half a
    minute, which is too little on a busy machine: it is then asked again. Ray believes the numbers that it is told."""
    command = ["start", f"--address={address}", f"--num-cpus={cpus}", f"--num-gpus={gpus}"]
    command += ["--block", "--disable-usage-stats"]
    while True:
        reading, writing = os.pipe()
        guarded = GuardedProcess(
            lambda _: [sys.executable, "-u", "-c", _NODE, *command], writing, {"RAY_worker_niceness": "0"}
        )
        os.close(writing)
        machine = Machine(guarded, os.fdopen(reading, encoding="utf-8"))
        if any("Ray runtime started" in line for line in machine.said):
            return machine
        machine.close()
