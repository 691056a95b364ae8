"""A complete run in seconds: a random model of a few thousand parameters and a reward it sometimes meets by luck."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from dapo.models.tiny import make_tiny_model

RECIPE = """
preset: dapo
run: {{dir: {folder}, name: run, seed: 3}}
model: {{path: {folder}/model}}
data:
  train: [{{task: signed_sum, seed: 1, size: 64}}]
  validation: [{{task: signed_sum, name: held_out, seed: 2, size: 6}}]
rewards:
  - {{name: accuracy, kind: regex, pattern: '=1( |$)'}}
  - {{name: short, kind: regex, pattern: '^.{{0,40}}$', weight: 0.1}}
algorithm: {{overlong_filtering: false}}
rollout: {{prompts_per_step: 4, group_size: 4, max_response_tokens: 24}}
learner: {{learning_rate: 1.0e-2, minibatch_prompts: 2, warmup: 2}}
validation: {{every: 3, samples: 2}}
trainer: {{steps: 6}}
checkpoint: {{every: 2, keep: 2}}
"""


def write_recipe(folder: Path, extra: str = "", **model: int) -> Path:
    """The model and the recipe in ``folder``; ``extra`` is YAML appended to it, ``model`` the model's sizes."""
    make_tiny_model(folder / "model", "llama", seed=0, **model)
    path = folder / "recipe.yaml"
    path.write_text(RECIPE.format(folder=folder) + extra)
    return path


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "dapo", *map(str, arguments)]


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"}


def dapo(*arguments: str | Path, cwd: Path | None = None, expect: int | None = 0) -> subprocess.CompletedProcess[str]:
    """Run the command line in a process of its own."""
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(), cwd=cwd, timeout=240, check=False
    )
    if expect is not None:
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done
