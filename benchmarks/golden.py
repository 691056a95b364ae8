"""The quickstart's numbers at another revision and here, on this machine, digit by digit.

    python benchmarks/golden.py --base REVISION [--steps 10] [--set KEY=VALUE ...] [--work FOLDER]

Two runs of dapo/recipes/quickstart.yaml from one base model: by the package and recipe of REVISION (in a temporary git
worktree), and by this working tree. Compared are all metrics but times and memory, what was generated and how it was
rewarded, and the weights of the last checkpoint. What differs is named with its largest relative difference; exit 1
then. A change of the numbers is not always wrong, but it has to be named and explained.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from safetensors.numpy import load_file

from dapo.models.builtin import ensure_builtin_model
from dapo.observe.metrics import read_metrics, without_clock

HERE = Path(__file__).resolve().parents[1]
RECIPE = "dapo/recipes/quickstart.yaml"


@dataclass(frozen=True, slots=True)
class Difference:
    """One key, column or tensor that is not the same on both sides.

    ``relative`` is the largest |here - base| / max(|here|, |base|); None where a side has no number.
    """

    name: str
    count: int
    of: int
    relative: float | None
    example: str

    def __str__(self) -> str:
        size = "no number to compare" if self.relative is None else f"largest relative difference {self.relative:.3g}"
        return f"  {self.name}: {self.count} of {self.of}, {size} ({self.example})"


def compare_rows(base: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Keys of metrics.jsonl whose values differ in any step; a key or step of one side alone differs, too."""
    sides = [{row["step"]: without_clock(dict(row)) for row in rows} for rows in (base, here)]
    steps = sorted(sides[0].keys() | sides[1].keys())
    names = sorted({key for side in sides for row in side.values() for key in row} - {"step"})
    found = []
    absent = object()
    if sides[0].keys() != sides[1].keys():
        found.append(_steps_missing(*sides))
    for name in names:
        pairs = [(step, *(side[step].get(name, absent) for side in sides)) for step in steps if _both(step, sides)]
        unequal = [(step, a, b) for step, a, b in pairs if a is not b and a != b]
        if unequal:
            sizes = [relative_difference(a, b) for _, a, b in unequal]
            step, a, b = unequal[0]
            words = ["absent" if value is absent else repr(value) for value in (a, b)]
            example = f"step {step}: {words[0]} -> {words[1]}"
            found.append(Difference(name, len(unequal), len(pairs), _largest(sizes), example))
    return found


def relative_difference(a: Any, b: Any) -> float | None:
    """|b - a| / max(|a|, |b|); 0 for two zeros; None unless both are numbers."""
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return None
    return abs(b - a) / max(abs(a), abs(b)) if a != b else 0.0


def compare_rollouts(base: Path, here: Path) -> list[Difference]:
    """Columns of rollouts/step_*.parquet that differ in any response of any step."""
    files = [{file.name: file for file in (run / "rollouts").glob("step_*.parquet")} for run in (base, here)]
    found = []
    if files[0].keys() != files[1].keys():
        found.append(_steps_missing(*files))
    unequal: dict[str, list[str]] = {}
    rows = 0
    for name in sorted(files[0].keys() & files[1].keys()):
        tables = [pq.read_table(side[name]) for side in files]
        rows += max(table.num_rows for table in tables)
        for column in sorted(set(tables[0].column_names) | set(tables[1].column_names)):
            values = [t[column].to_pylist() if column in t.column_names else [] for t in tables]
            length = max(map(len, values))
            padded = [[*side, *[None] * (length - len(side))] for side in values]
            ids = [f"{name} row {row}" for row, (a, b) in enumerate(zip(*padded, strict=True)) if repr(a) != repr(b)]
            if ids or len(values[0]) != len(values[1]):
                unequal.setdefault(column, []).extend(ids)
    for column, where in unequal.items():
        found.append(Difference(f"rollouts: {column}", len(where), rows, None, where[0] if where else "other rows"))
    return found


def compare_weights(base: Path, here: Path) -> list[Difference]:
    """Tensors of the last checkpoint that differ in any bit."""
    sides = [_last_weights(run) for run in (base, here)]
    found = []
    for name in sorted(sides[0].keys() | sides[1].keys()):
        a, b = (side.get(name) for side in sides)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            found.append(Difference(f"weights: {name}", 1, 1, None, "another shape, kind, or one side only"))
        elif a.tobytes() != b.tobytes():
            off = np.abs(b.astype(np.float64) - a)
            size = np.maximum(np.abs(a), np.abs(b)).max()
            relative = float(off.max() / size) if size else 0.0
            count = int(np.count_nonzero(a != b))
            found.append(Difference(f"weights: {name}", count, a.size, relative, "of the tensor's largest value"))
    return found


def _both(step: int, sides: Sequence[Mapping[int, Any]]) -> bool:
    return all(step in side for side in sides)


def _steps_missing(base: Mapping[Any, Any], here: Mapping[Any, Any]) -> Difference:
    apart = base.keys() ^ here.keys()
    words = f"base {len(base)}, here {len(here)}; first: {min(apart)}"
    return Difference("steps of one side alone", len(apart), len(base.keys() | here.keys()), None, words)


def _largest(sizes: Sequence[float | None]) -> float | None:
    numbers = [size for size in sizes if size is not None]
    return max(numbers, default=None)


def _last_weights(run: Path) -> dict[str, np.ndarray]:
    folder = max((run / "checkpoints").glob("step_*"))
    tensors: dict[str, np.ndarray] = {}
    for file in sorted((folder / "learner").glob("*model*.safetensors")):
        tensors |= load_file(file)
    if not tensors:
        raise SystemExit(f"{folder}/learner holds no weights")
    return tensors


@contextmanager
def tree_of(revision: str) -> Iterator[Path]:
    """A temporary worktree of another revision."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        tree = Path(folder) / "base"
        subprocess.run(["git", "worktree", "add", "-q", "--detach", str(tree), revision], cwd=HERE, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=HERE, check=True)


def train(tree: Path, run: Path, model: Path, steps: int, changes: Sequence[str]) -> None:
    """A quickstart of some steps with the package and recipe of ``tree``; every response is recorded."""
    settings = [f"run.dir={run.parent}", f"run.name={run.name}", "run.if_exists=backup", f"model.path={model}"]
    settings += [f"trainer.steps={steps}", f"checkpoint.every={steps}", "logging.console=quiet", *changes]
    command = [sys.executable, "-P", "-m", "dapo", "train", RECIPE, *settings]
    environment = os.environ | {"PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1"}
    subprocess.run(command, cwd=tree, env=environment, check=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default="HEAD", help="git revision to compare this working tree with")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="an override for both runs")
    parser.add_argument("--work", type=Path, default=HERE / "runs", help="keeps the two runs and the base model")
    arguments = parser.parse_args()
    work = arguments.work.resolve()
    model = ensure_builtin_model("builtin/signed-sum", work / ".models")
    base, here = work / "golden-base", work / "golden-here"
    with tree_of(arguments.base) as tree:
        train(tree, base, model, arguments.steps, arguments.set)
    train(HERE, here, model, arguments.steps, arguments.set)
    rows = [read_metrics(run / "metrics.jsonl") for run in (base, here)]
    print(f"{arguments.base} -> this working tree, {arguments.steps} steps; runs in {work}")
    found = compare_rows(*rows) + compare_rollouts(base, here) + compare_weights(base, here)
    keys = {key for row in rows[1] for key in without_clock(row)}
    print(
        f"{len(rows[1])} rows of {len(keys)} keys, rollouts and weights: {f'{len(found)} differ' if found else 'equal'}"
    )
    print(*found, sep="\n", end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
