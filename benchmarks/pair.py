"""The speed of a quickstart step at another revision and here, step by step in turn.

    make bench-pair BASE=REVISION
    python benchmarks/pair.py --base REVISION [--steps 12] [--restarts 5] [--side everything] [--out FILE]

Two processes train the same steps to the bit, one with the package of REVISION (in a temporary git worktree), one with
this working tree. They take turns: step n there, step n here, then the other way round, so that whatever else the
machine does, or a processor that slows down, meets both. What is said is the ratio here / there, pair by pair.

Two processes of one revision differ from each other too, by some per cent for as long as they live (where memory
fell, which core they got). So both are started anew ``--restarts`` times, and the interval draws
restarts, then steps in them.
"""

from __future__ import annotations

import argparse
import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median

import numpy as np
from golden import HERE, tree_of
from machine import describe_machine, refuse_changes

from dapo.models.builtin import ensure_builtin_model
from dapo.observe.metrics import read_metrics

UNCOUNTED = 2  # the first steps build caches
WAITING = {"time/step", "time/other", "time/tokens_per_second", "time/trained_tokens_per_second"}
"""They hold the other side's turns."""
CHILD = """
import json, sys
from pathlib import Path
import recording
name, model, work, steps = sys.argv[1:]
changes = [*recording.SIDES[name], f"model.path={model}", "validation.every=1000"]
side = recording.Side(name, changes, Path(work), int(steps))
print("ready", flush=True)
for line in sys.stdin:
    print(json.dumps(side.run(1)), flush=True)
side.recorder.close()
print(side.folder.metrics, flush=True)
"""


class Child:
    """One revision's run, stepped from outside."""

    def __init__(self, tree: Path, side: str, model: Path, work: Path, steps: int) -> None:
        paths = os.pathsep.join([str(tree), str(tree / "benchmarks")])
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-c", CHILD, side, str(model), str(work), str(steps)],
            cwd=tree,
            env=os.environ | {"PYTHONPATH": paths, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the child ended with {self._process.wait()}; its words are above")
        return line.strip()

    def step(self) -> tuple[float, float]:
        """Wall-clock and CPU seconds of the next step."""
        assert self._process.stdin is not None
        self._process.stdin.write("step\n")
        self._process.stdin.flush()
        wall, cpu = json.loads(self._answer())
        return wall, cpu

    def close(self) -> list[dict[str, float]]:
        """The rows of its metrics."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        rows = read_metrics(Path(self._answer()))
        self._process.wait()
        return rows


def interval(ratios_RS: Sequence[Sequence[float]]) -> tuple[float, float, float]:
    """The median of the ratios (restarts, steps), and the 2.5 and 97.5 % points of its bootstrap over both."""
    rng = np.random.default_rng(1)
    ratios = np.asarray(ratios_RS)
    restarts, steps = ratios.shape
    chosen = rng.integers(restarts, size=(4000, restarts, 1))
    drawn = np.median(ratios[chosen, rng.integers(steps, size=(4000, restarts, steps))], axis=(1, 2))
    low, high = np.quantile(drawn, [0.025, 0.975])
    return float(np.median(ratios)), float(low), float(high)


Pair = tuple[float, float]
"""What took so long there, and here."""


def report(base: str, pairs_RS: Mapping[str, Sequence[Sequence[Pair]]], shared: int) -> str:
    """A table in Markdown: a line for wall clock, CPU and each phase. ``shared``: metrics equal to the digit."""
    first = next(iter(pairs_RS.values()))
    machine = describe_machine()
    versions = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    lines = [
        f"# A quickstart step: {base} and this working tree",
        "",
        f"{machine['cpu']}, {versions}, commit {machine['commit']}, {machine['date']}: `{machine['command']}`",
        "",
        f"{len(first[0])} steps on each side, in turn, in each of {len(first)} pairs of processes; {shared} metrics of",
        "every step are equal to the digit. Milliseconds are medians; the ratio here / there is the median over all",
        "steps, with the 95 % interval of its bootstrap over processes and steps.",
        "",
        "| | there, ms | here, ms | ratio | by process |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, restarts in pairs_RS.items():
        there, here = (1000 * median(pair[n] for pairs in restarts for pair in pairs) for n in (0, 1))
        if all(a > 0 for pairs in restarts for a, _ in pairs):
            ratios = [[b / a for a, b in pairs] for pairs in restarts]
            middle, low, high = interval(ratios)
            each = " ".join(f"{median(of):.2f}" for of in ratios)
            lines.append(f"| {name} | {there:.1f} | {here:.1f} | {middle:.3f} [{low:.3f}, {high:.3f}] | {each} |")
    return "\n".join(lines) + "\n"


def run_pair(
    trees: tuple[Path, Path], side: str, steps: int, model: Path, work: Path
) -> tuple[dict[str, list[Pair]], int]:
    """Both processes from start to end: pairs by kind, without the first steps; metrics equal to the digit."""
    sides = [Child(tree, side, model, work / name, steps) for tree, name in zip(trees, ("base", "here"), strict=True)]
    timed = []
    for step in range(steps):
        order = (0, 1) if step % 2 else (1, 0)
        taken = {n: sides[n].step() for n in order}
        timed.append((taken[0], taken[1]))
    rows = [child.close() for child in sides]
    counted = timed[UNCOUNTED:]
    pairs = {kind: [(there[n], here[n]) for there, here in counted] for n, kind in enumerate(("wall", "CPU"))}
    there, here = (side_rows[-len(counted) :] for side_rows in rows)
    phases = [key for key in here[-1] if key.startswith("time/") and key in there[-1]]
    for key in sorted(set(phases) - WAITING):
        pairs[key] = [(a.get(key, 0.0), b.get(key, 0.0)) for a, b in zip(there, here, strict=True)]
    shared = {key for key in here[-1] if key in there[-1] and not key.startswith(("time/", "memory/", "speed/"))}
    return pairs, sum(all(a.get(key) == b.get(key) for a, b in zip(there, here, strict=True)) for key in shared)


def measure(base: str, side: str, steps: int, restarts: int) -> str:
    with tree_of(base) as tree, tempfile.TemporaryDirectory(prefix="pair-") as folder:
        model = ensure_builtin_model("builtin/signed-sum", HERE / "runs" / ".models")
        found = [run_pair((tree, HERE), side, steps, model, Path(folder) / str(n)) for n in range(restarts)]
    kinds = [kind for kind in found[0][0] if all(kind in pairs for pairs, _ in found)]
    return report(base, {kind: [pairs[kind] for pairs, _ in found] for kind in kinds}, min(n for _, n in found))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="git revision to compare this working tree with")
    parser.add_argument("--steps", type=int, default=12, help="of each pair of processes; two more than are counted")
    parser.add_argument("--restarts", type=int, default=5, help="pairs of processes")
    parser.add_argument("--side", default="everything", choices=["nothing", "rollouts", "everything"])
    parser.add_argument("--out", type=Path, help="a file for the table, which is printed in any case")
    arguments = parser.parse_args()
    if arguments.out:
        refuse_changes(arguments.out)
    table = measure(arguments.base, arguments.side, arguments.steps, arguments.restarts)
    print(table, end="")
    if arguments.out:
        arguments.out.write_text(table)


if __name__ == "__main__":
    main()
