"""A complete run in seconds: a random model of a few thousand parameters and a reward it sometimes meets by luck."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from dapo.cli.main import main
from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import read_metrics, unknown_keys
from dapo.observe.rollouts import read_rollouts

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
algorithm: {{overlong_filtering: false, reward_scaling: {{source_max: 1.1}}}}
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


@dataclass(frozen=True)
class Done:
    """What a command said, and the exit code with which it ended."""

    returncode: int
    stdout: str
    stderr: str


def dapo(*arguments: str | Path, cwd: Path | None = None, expect: int | None = 0, own_process: bool = False) -> Done:
    """Run the command line, as a person would from ``cwd``. Whatever a run logged has a line in the glossary.

    In this process, where torch is imported already, unless it has to be one of its own.
    """
    done = (_in_own_process if own_process else _here)(list(map(str, arguments)), cwd)
    if expect is not None:
        assert done.returncode == expect, f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for argument in arguments:
        assert_metrics_are_defined((cwd or Path()) / argument)
    return done


def _in_own_process(arguments: list[str], cwd: Path | None) -> Done:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, env=environment(), cwd=cwd, check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def _here(arguments: list[str], cwd: Path | None) -> Done:
    out, err = io.StringIO(), io.StringIO()
    with _as_if_started_in(cwd or Path.cwd()), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return Done(code, out.getvalue(), err.getvalue())


@contextlib.contextmanager
def _as_if_started_in(folder: Path) -> Iterator[None]:
    """The working directory, and modules of it that nobody finds afterwards."""
    paths = list(sys.path)
    try:
        with contextlib.chdir(folder):
            yield
    finally:
        sys.path[:] = paths
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if file is not None and Path(file).parent == folder:
                del sys.modules[name]


def assert_metrics_are_defined(path: Path) -> None:
    """Of the runs that lie in the folder ``path``, or beside the recipe ``path``."""
    folder = path.parent if path.is_file() else path
    for file in sorted({*folder.glob("metrics.jsonl"), *folder.glob("*/metrics.jsonl")}):
        assert (unknown := unknown_keys({key for row in read_metrics(file) for key in row})) == [], (
            f"{file}: no line in dapo/metrics/glossary.py for {unknown}"
        )


def groups_by_fate(run: Path) -> dict[int, list[str]]:
    """Each group's dispositions over the steps of a run, in order; a carried one has several.

    Of a step that could not be completed, those that it had discarded are in the table of where it stopped alone.
    """
    fates: dict[int, list[str]] = {}
    for file in sorted((run / "rollouts").iterdir()):
        for group, fate in _fates_in(file).items():
            fates.setdefault(group, []).append(fate)
    for file in sorted((run / "stopped").glob("*.parquet")):
        for group, fate in _fates_in(file).items():
            if fate == "discarded":
                fates.setdefault(group, []).append(fate)
    return fates


def _fates_in(file: Path) -> dict[int, str]:
    return {row["group"]: row["disposition"] for row in read_rollouts(file).to_pylist()}


def assert_every_token_has_a_fate(rows: list[dict[str, float]]) -> None:
    """What was generated is what became of it and what is held, to the token; ``rows`` of training steps."""
    for row in rows:
        fates = ("trained", "filled", "rejected", "discarded", "expired")
        spent = sum(row[f"total/cost/{fate}_tokens"] for fate in fates)
        assert row["counters/generated_tokens"] == spent + row["cost/held_tokens"]


def assert_none_lost_or_doubled(run: Path, steps: int) -> None:
    """Every dispatched group has one end, trained ones are as many as they should be, and no step is missing."""
    rows = read_metrics(run / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(steps + 1))
    fates = groups_by_fate(run)
    ends = Counter(fate for all_of_it in fates.values() for fate in all_of_it if fate != "carried")
    assert ends["trained"] == 4 * steps
    assert all(sum(fate != "carried" for fate in of_one) <= 1 for of_one in fates.values())
    last = rows[-1]
    waiting = sum(of_one[-1] == "carried" for of_one in fates.values())
    assert waiting == last["groups/waiting"]
    assert len(fates) + last["groups/unfinished"] == last["total/groups/dispatched"]
    assert max(fates) < last["total/groups/dispatched"]
