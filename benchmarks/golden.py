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
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import torch
from safetensors.torch import load_file
from torch import Tensor

from dapo.models.builtin import ensure_builtin_model
from dapo.observe.metrics import read_metrics, without_clock

HERE = Path(__file__).resolve().parents[1]
RECIPE = "dapo/recipes/quickstart.yaml"


@dataclass(frozen=True, slots=True)
class Difference:
    """One key, column or tensor that is not the same on both sides.

    ``relative`` is the largest |here - base| / max(|here|, |base|); None where a side has no number. ``where`` is the
    first unequal place, ``base`` and ``here`` are the two values there as text.
    """

    name: str
    count: int
    of: int
    relative: float | None
    where: str
    base: str
    here: str

    @property
    def example(self) -> str:
        """The first unequal pair."""
        return f"{self.where}: {self.base} -> {self.here}"

    def __str__(self) -> str:
        size = "no number to compare" if self.relative is None else f"largest relative difference {self.relative:.3g}"
        return f"  {self.name}: {self.count} of {self.of}, {size} ({self.example})"


@dataclass(frozen=True, slots=True)
class Renamed:
    """Names that changed between the revisions on purpose."""

    names: Mapping[str, str | None] = field(default_factory=dict)
    """Name at the base to the name here; None: no longer there."""
    new: frozenset[str] = frozenset()
    """Names that only this side has."""

    def base(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the base's row under the names of here."""
        named = [(self.names.get(name, name), value) for name, value in row.items()]
        return {name: value for name, value in named if name is not None}

    def here(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return this side's row without the new names."""
        return {name: value for name, value in row.items() if name not in self.new}


SAME_NAMES = Renamed()


def compare_rows(
    base: Sequence[Mapping[str, Any]], here: Sequence[Mapping[str, Any]], renamed: Renamed = SAME_NAMES
) -> list[Difference]:
    """Keys of metrics.jsonl whose values differ in any step; a key or step of one side alone differs, too."""
    plain = ([renamed.base(row) for row in base], [renamed.here(row) for row in here])
    sides = [{row["step"]: without_clock(row) for row in rows} for rows in plain]
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
            found.append(Difference(name, len(unequal), len(pairs), _largest(sizes), f"step {step}", *words))
    return found


def relative_difference(a: Any, b: Any) -> float | None:
    """|b - a| / max(|a|, |b|); 0 for two zeros; None unless both are numbers."""
    if not (isinstance(a, int | float) and isinstance(b, int | float)):
        return None
    return abs(b - a) / max(abs(a), abs(b)) if a != b else 0.0


def compare_rollouts(base: Path, here: Path, renamed: Renamed = SAME_NAMES) -> list[Difference]:
    """Columns of rollouts/step_*.parquet that differ in any response of any step."""
    files = [{file.name: file for file in (run / "rollouts").glob("step_*.parquet")} for run in (base, here)]
    found = []
    if files[0].keys() != files[1].keys():
        found.append(_steps_missing(*files))
    unequal: dict[str, list[tuple[str, str, str]]] = {}
    rows = 0
    for name in sorted(files[0].keys() & files[1].keys()):
        tables = [pq.read_table(side[name]).to_pydict() for side in files]
        sides = (renamed.base(tables[0]), renamed.here(tables[1]))
        rows += max(len(column) for side in sides for column in side.values())
        for column in sorted(sides[0].keys() | sides[1].keys()):
            pairs = zip_longest(*(map(_said, side.get(column, [])) for side in sides), fillvalue="absent")
            for row, (a, b) in enumerate(pairs):
                if a != b:
                    unequal.setdefault(column, []).append((f"{name} row {row}", a, b))
    for column, places in unequal.items():
        found.append(Difference(f"rollouts: {column}", len(places), rows, None, *places[0]))
    return found


def _said(value: Any) -> str:
    """Return a cell as text; of turns without the seconds that an environment took."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        value = [{key: one for key, one in each.items() if key != "seconds"} for each in value]
    return repr(value)


def compare_weights(base: Path, here: Path) -> list[Difference]:
    """Tensors of the last checkpoint that differ in any bit."""
    (step, ours), (other, theirs) = (_last_weights(run) for run in (base, here))
    if step != other:
        return [Difference("last checkpoint", 1, 1, None, "checkpoints", step, other)]
    found = []
    for name in sorted(ours.keys() | theirs.keys()):
        a, b = ours.get(name), theirs.get(name)
        if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
            kinds = ["absent" if one is None else f"{one.dtype} {tuple(one.shape)}" for one in (a, b)]
            found.append(Difference(f"weights: {name}", 1, 1, None, step, *kinds))
        elif not torch.equal(_bytes(a), _bytes(b)):
            wide = a.double().flatten(), b.double().flatten()
            off = (wide[1] - wide[0]).abs()
            size = float(torch.maximum(wide[0].abs(), wide[1].abs()).max())
            values = [repr(float(side[int(off.argmax())])) for side in wide]
            count = int((wide[0] != wide[1]).sum())
            relative = float(off.max()) / size if size else 0.0
            found.append(Difference(f"weights: {name}", count, a.numel(), relative, f"{step}, largest", *values))
    return found


def _bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().reshape(-1).view(torch.uint8)


def _both(step: int, sides: Sequence[Mapping[int, Any]]) -> bool:
    return all(step in side for side in sides)


def _steps_missing(base: Mapping[Any, Any], here: Mapping[Any, Any]) -> Difference:
    apart = base.keys() ^ here.keys()
    counts = [f"{len(side)} steps" for side in (base, here)]
    return Difference(
        "steps of one side alone", len(apart), len(base.keys() | here.keys()), None, f"from {min(apart)}", *counts
    )


def _largest(sizes: Sequence[float | None]) -> float | None:
    numbers = [size for size in sizes if size is not None]
    return max(numbers, default=None)


def _last_weights(run: Path) -> tuple[str, dict[str, Tensor]]:
    """Return the name of the last checkpoint and the weights in it: whole files, or the slices of several ranks."""
    folder = max((run / "checkpoints").glob("step_*"))
    tensors: dict[str, Tensor] = {}
    for file in sorted((folder / "learner").glob("*model*.safetensors")):
        tensors |= load_file(file)
    slices: dict[str, list[Tensor]] = {}
    for file in sorted((folder / "learner").glob("rank-*.safetensors")):
        for name, tensor in load_file(file).items():
            slices.setdefault(name, []).append(tensor)
    tensors |= {
        name.removeprefix("model/"): torch.cat(parts) if len(parts) > 1 else parts[0]
        for name, parts in slices.items()
        if name.startswith("model/")
    }
    if not tensors:
        raise SystemExit(f"{folder}/learner holds no weights")
    return folder.name, tensors


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
    subprocess.run(command, cwd=tree, env=environment(tree), check=True)


def environment(tree: Path) -> dict[str, str]:
    """Return the environment in which Python finds the package of ``tree`` and nothing is downloaded."""
    return os.environ | {"PYTHONPATH": str(tree), "HF_HUB_OFFLINE": "1"}


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
