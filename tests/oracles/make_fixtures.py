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

    @property
    def name(self) -> str:
        return f"{self.package}-{self.version}"


COMMON = ("torch", "numpy", "transformers")
VERL_NEEDS = (*COMMON, "ray", "tensordict", "omegaconf", "codetiming", "orjson", "packaging", "pandas")
SKYRL_NEEDS = (
    *(*COMMON, "ray", "tensordict", "omegaconf", "loguru", "jaxtyping", "pandas"),
    *("torchdata", "datasets", "aiohttp", "func_timeout"),
)
PEERS = (
    Peer("verl", "0.9.1", "ask_verl.py", VERL_NEEDS),
    Peer("verl", "0.5.0", "ask_verl.py", VERL_NEEDS),  # the last line with token means per micro-batch
    Peer("trl", "1.16.0", "ask_trl.py", (*COMMON, "accelerate", "datasets")),
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
    if (home / "complete").exists():
        return python
    shutil.rmtree(home, ignore_errors=True)
    print(f"installing {peer.name} into {home}", flush=True)
    subprocess.run([peer.python, "-m", "venv", home], check=True)
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    beside = ["skyrl-gym"] if peer.package == "skyrl" else []
    subprocess.run([*install, "--no-deps", f"{peer.package}=={peer.version}", *beside], check=True)
    subprocess.run([*install, "-c", ROOT / "constraints" / "cpu.txt", *peer.needs], check=True)
    (home / "complete").touch()
    return python


def ask(peer: Peer, python: Path) -> dict:
    env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    result = subprocess.run([python, HERE / peer.ask], stdout=subprocess.PIPE, env=env, check=True, text=True)
    return json.loads(result.stdout.splitlines()[-1])  # peers log to standard output as they please


def write(answers: dict, path: Path) -> None:
    """One case a line, so that a changed answer shows as one changed line."""
    head = [f"{json.dumps(key)}: {json.dumps(answers[key])}" for key in ("package", "version")]
    batches = ",\n".join(f"{json.dumps(name)}: {json.dumps(batch)}" for name, batch in BATCHES.items())
    cases = ",\n".join(json.dumps(case) for case in answers["cases"])
    parts = [*head, f'"batches": {{\n{batches}\n}}', f'"cases": [\n{cases}\n]']
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
        answers = ask(peer, environment(peer, environments))
        write(answers, into / f"{peer.name}.json")
        print(f"{peer.name}: {len(answers['cases'])} answers", flush=True)
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
