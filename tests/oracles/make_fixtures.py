"""Ask other trainers the same questions and write down what they answer.

    python tests/oracles/make_fixtures.py [--into FOLDER] [--environments FOLDER] [PEER ...]

Each peer is installed into an environment of its own (kept in ``build/oracles`` for the next time); one JSON file per
peer and version holds package, version, inputs, settings and answers. Our tests compare against the committed files
and need no peer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from questions import BATCHES

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Peer:
    package: str
    version: str
    ask: str  # the script that runs inside the peer's environment
    needs: tuple[str, ...]  # what its functions import; its own list would pull in engines that need a GPU
    python: str = sys.executable
    steps: str | None = None  # the script that makes whole training steps there
    variables: tuple[tuple[str, str], ...] = ()  # of its environment

    @property
    def name(self) -> str:
        return f"{self.package}-{self.version}"


COMMON = ("torch", "numpy", "transformers")
VERL_NEEDS = (*COMMON, "ray", "tensordict", "omegaconf", "codetiming", "orjson", "packaging", "pandas")
# of its actor and its PPO trainer
VERL_STEPS_NEED = (
    "peft",
    "psutil",
    "pillow",
    "torchdata",
    "hydra-core",
    "cachetools",
    "datasets",
    "pydantic",
    "fastapi",
    "uvicorn",
)
# Its engine for CUDA devices runs on the platform of verl_cpu.py; a worker reads its place from the environment.
VERL_ON_A_CPU = (
    *(("VERL_PLATFORM", "cpu"), ("VERL_USE_EXTERNAL_MODULES", "verl_cpu"), ("VERL_ENGINE_DEVICE", "cuda")),
    *(("WORLD_SIZE", "1"), ("RANK", "0"), ("LOCAL_RANK", "0"), ("LOCAL_WORLD_SIZE", "1")),
    *(("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")),
)
SKYRL_NEEDS = (
    *(*COMMON, "ray", "tensordict", "omegaconf", "loguru", "jaxtyping", "pandas"),
    *("torchdata", "datasets", "aiohttp", "func_timeout"),
)
PEERS = (
    Peer(
        "verl",
        "0.9.1",
        "ask_verl.py",
        (*VERL_NEEDS, *VERL_STEPS_NEED),
        steps="ask_verl_steps.py",
        variables=VERL_ON_A_CPU,
    ),
    Peer("verl", "0.5.0", "ask_verl.py", VERL_NEEDS),  # the last line with token means per micro-batch
    Peer("trl", "1.16.0", "ask_trl.py", (*COMMON, "accelerate", "datasets"), steps="ask_trl_steps.py"),
    Peer("skyrl", "0.3.0", "ask_skyrl.py", SKYRL_NEEDS, python="python3.12"),
)


def runs(python: str) -> bool:
    """A name on the path is not enough: it may be a version manager's placeholder for a Python that is not there."""
    return (
        shutil.which(python) is not None and subprocess.run([python, "--version"], capture_output=True).returncode == 0
    )


def environment(peer: Peer, folder: Path) -> Path:
    """The Python of the peer's environment, made if it is not there."""
    home = folder / peer.name
    python = home / "bin" / "python"
    complete = home / "complete"
    if complete.exists() and complete.read_text().split() == list(peer.needs):
        return python
    shutil.rmtree(home, ignore_errors=True)
    print(f"installing {peer.name} into {home}", flush=True)
    subprocess.run([peer.python, "-m", "venv", home], check=True)
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    beside = ["skyrl-gym"] if peer.package == "skyrl" else []
    subprocess.run([*install, "--no-deps", f"{peer.package}=={peer.version}", *beside], check=True)
    subprocess.run([*install, "-c", ROOT / "constraints" / "cpu.txt", *peer.needs], check=True)
    complete.write_text("\n".join(peer.needs) + "\n")
    return python


def ask(script: str, python: Path, variables: Iterable[tuple[str, str]] = ()) -> dict:
    # no peer's hub, trackers or statistics of use are called
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1"} | dict(variables)
    result = subprocess.run([python, HERE / script], stdout=subprocess.PIPE, env=env, check=True, text=True)
    return json.loads(result.stdout.splitlines()[-1])  # peers log to standard output as they please


def write(answers: dict, path: Path) -> None:
    """One case a line, so that a changed answer shows as one changed line."""
    head = [f"{json.dumps(key)}: {json.dumps(answers[key])}" for key in ("package", "version")]
    batches = ",\n".join(f"{json.dumps(name)}: {json.dumps(batch)}" for name, batch in BATCHES.items())
    cases = ",\n".join(json.dumps(case) for case in answers["cases"])
    parts = [*head, f'"batches": {{\n{batches}\n}}', f'"cases": [\n{cases}\n]']
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def write_steps(answers: dict, path: Path) -> None:
    """Rollouts and answers, a rollout batch or a case a line."""
    head = [f"{json.dumps(key)}: {json.dumps(answers[key])}" for key in ("package", "version")]
    worlds = ",\n".join(
        f"{json.dumps(name)}: [\n" + ",\n".join(json.dumps(step) for step in steps) + "\n]"
        for name, steps in answers["worlds"].items()
    )
    cases = ",\n".join(json.dumps(case) for case in answers["cases"])
    parts = [*head, f'"worlds": {{\n{worlds}\n}}', f'"cases": [\n{cases}\n]']
    path.write_text("{\n" + ",\n".join(parts) + "\n}\n")


def make_fixtures(into: Path, environments: Path, names: list[str]) -> list[str]:
    """Write the fixture of every peer named (all by default). Returns the peers that could not be asked."""
    into.mkdir(parents=True, exist_ok=True)
    missing = []
    for peer in PEERS:
        if names and peer.name not in names:
            continue
        if not runs(peer.python):
            print(f"skipped {peer.name}: it needs {peer.python}, which is not installed here")
            missing.append(peer.name)
            continue
        python = environment(peer, environments)
        answers = ask(peer.ask, python)
        write(answers, into / f"{peer.name}.json")
        print(f"{peer.name}: {len(answers['cases'])} answers", flush=True)
        if peer.steps:
            answers = ask(peer.steps, python, peer.variables)
            write_steps(answers, into / f"steps-{peer.name}.json")
            print(f"{peer.name}: {len(answers['cases'])} whole runs", flush=True)
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("peers", nargs="*", metavar="PEER", help=f"of {', '.join(peer.name for peer in PEERS)}")
    parser.add_argument("--into", type=Path, default=HERE / "fixtures")
    parser.add_argument("--environments", type=Path, default=ROOT / "build" / "oracles")
    options = parser.parse_args()
    unknown = set(options.peers) - {peer.name for peer in PEERS}
    if unknown:
        parser.error(f"unknown peers {sorted(unknown)}")
    make_fixtures(options.into, options.environments, options.peers)


if __name__ == "__main__":
    main()
