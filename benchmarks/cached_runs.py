"""Runs of the quickstart's recipe, each in a process of its own and made once: what is kept of it lies in a folder."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dapo

RECIPE = Path(__file__).resolve().parents[1] / "dapo/recipes/quickstart.yaml"
Curve = dict[str, Any]
"""What is kept of a run: JSON."""
Rows = list[dict[str, Any]]
"""Its metrics, a dict a line."""


def measured_run(model: Path, seed: int, steps: int, problems: int, every: int) -> list[str]:
    """Overrides of a run from ``model`` that is evaluated on ``problems`` every few steps, and leaves nothing else."""
    held_out = [{"task": "signed_sum", "name": "held_out", "seed": 2, "size": problems}]
    return [
        f"model.path={model}",
        f"run.seed={seed}",
        f"trainer.steps={steps}",
        f"data.validation={json.dumps(held_out)}",
        f"validation.every={every}",
        "validation.samples=2",
        "validation.greedy=false",
        "checkpoint.every=0",
        "logging.rollouts=none",
        "logging.console=quiet",
    ]


def cached_run(overrides: list[str], work: Path, may_run: bool, curve_of: Callable[[Rows], Curve]) -> Curve | None:
    """The curve of one run, from WORK if this code made it there; None where it is not and none may be started."""
    digest = hashlib.sha256(json.dumps(overrides).encode() + RECIPE.read_bytes())
    for path in sorted(Path(dapo.__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    file = work / f"{digest.hexdigest()[:16]}.json"
    if file.exists():
        curve: Curve = json.loads(file.read_text())
        return curve
    if not may_run:
        return None
    work.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=work))
    try:
        curve = curve_of(train(overrides, folder))
    finally:
        shutil.rmtree(folder)
    file.write_text(json.dumps(curve))
    return curve


def train(overrides: list[str], folder: Path) -> Rows:
    """Run ``dapo train`` and read its metrics."""
    command = [sys.executable, "-m", "dapo", "train", str(RECIPE), f"run.dir={folder}", "run.name=run", *overrides]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
