"""What recording costs: quickstart steps with everything recorded against the same steps with as little as can be.

    python benchmarks/recording.py [--steps 91] [--block 3] [--work FOLDER]

All sides run in one process, in turn, a block of steps each: the same weights and the same tokens to the bit, which is
checked at the end. Sides differ in the recipe's ``logging`` section alone.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import contextlib
import gc
import json
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from machine import describe_machine, refuse_changes

from dapo.checkpoint.store import CheckpointStore
from dapo.config.load import load_recipe
from dapo.observe.callbacks import Callbacks
from dapo.observe.console import Console
from dapo.observe.metrics import read_metrics
from dapo.observe.recorder import RunRecorder
from dapo.observe.run_folder import RunFolder
from dapo.observe.status import StatusWriter
from dapo.observe.tokens import Pieces
from dapo.run.reinforcement import reward_session

HERE = Path(__file__).resolve().parent
NOTHING = ["logging.rollouts=none", "logging.tokens=0", "logging.spans=false"]
SIDES = {
    "nothing": NOTHING,
    "rollouts": ["logging.tokens=0", "logging.spans=false"],
    "everything": [],
}
"""``nothing`` still writes metrics and status: a run without them cannot be resumed, or told from a killed one."""


class Side:
    """One run, stepped by hand."""

    def __init__(self, name: str, changes: list[str], work: Path, steps: int) -> None:
        overrides = [f"run.dir={work}", f"run.name={name}", "logging.console=quiet", f"trainer.steps={steps}"]
        recipe = load_recipe(str(HERE.parent / "dapo/recipes/quickstart.yaml"), overrides + changes).recipe
        console = Console("quiet")
        self.folder = RunFolder.create(work, name)
        self.session = reward_session(recipe, console, self.folder.path)
        pieces = Pieces(self.session.tokenizer) if recipe.logging.tokens else None
        status = StatusWriter(self.folder.status, steps)
        trackers = Callbacks()
        self.recorder = RunRecorder(self.folder, console, recipe, pieces)
        self.recorder.open(trackers, status)
        self.trainer = self.session.trainer(self.recorder, CheckpointStore(self.folder.checkpoints))
        console.start(name, steps, 0)
        self.trainer.phases.take()
        self.trainer.begin()

    def run(self, steps: int) -> tuple[float, float]:
        """Wall-clock and CPU seconds of some steps, their files written."""
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(steps):
            self.trainer.train_step()
        self.recorder.tables.sync()
        return time.perf_counter() - wall, time.process_time() - cpu

    def close(self) -> dict[str, Any]:
        """Seconds by phase over the counted steps, and bytes on the disk."""
        self.recorder.close()
        rows = read_metrics(self.folder.metrics)
        seconds: dict[str, float] = defaultdict(float)
        for row in rows[2:]:  # ``report`` of a step stands in the next one's line; ``other`` holds the other sides
            for key, value in row.items():
                if key.startswith("time/") and "tokens" not in key and key not in ("time/other", "time/step"):
                    seconds[key.removeprefix("time/")] += value or 0.0
        files = ("rollouts", "tokens", "spans.jsonl", "status.json", "metrics.jsonl")
        size = {name: _bytes(self.folder.path / name) for name in files}
        return {"seconds": dict(seconds), "bytes": size, "steps": len(rows) - 2}

    def weights(self) -> dict[str, np.ndarray]:
        return {name: p.detach().numpy() for name, p in self.session.loaded.model.named_parameters()}


def _bytes(path: Path) -> int:
    if path.is_dir():
        return sum(file.stat().st_size for file in path.iterdir())
    return path.stat().st_size if path.exists() else 0


def measure(work: Path, steps: int, block: int) -> dict[str, Any]:
    """Blocks of steps in turn; each turn starts with another side."""
    sides = {name: Side(name, changes, work, steps) for name, changes in SIDES.items()}
    for side in sides.values():
        side.run(1)  # caches are cold
    gc.collect()
    gc.freeze()  # a full collection would fall into one side's block or another's
    turns: list[dict[str, tuple[float, float]]] = []
    names = list(sides)
    for turn in range((steps - 1) // block):
        order = names[turn % len(names) :] + names[: turn % len(names)]
        turns.append({name: sides[name].run(block) for name in order})
        print(f"block {turn + 1}: " + ", ".join(f"{name} {turns[-1][name][0]:.2f} s" for name in names), flush=True)
    first = sides["nothing"].weights()
    for side in sides.values():
        for name, value in side.weights().items():
            assert value.tobytes() == first[name].tobytes(), f"recording changed {name}"
    result: dict[str, Any] = {"turns": turns, "block": block, "ratios": {}, "runs": {}}
    for name, side in sides.items():
        result["runs"][name] = side.close()
        side.session.close()
        side.folder.release()
        for number, kind in enumerate(("wall", "cpu")):
            if name != "nothing":
                ratios = [turn[name][number] / turn["nothing"][number] for turn in turns]
                whole = sum(t[name][number] for t in turns) / sum(t["nothing"][number] for t in turns)
                result["ratios"][f"{name}/{kind}"] = [median(ratios), min(ratios), max(ratios), whole]
    return result


def report(result: dict[str, Any]) -> str:
    """The committed page."""
    machine, turns = result["machine"], len(result["turns"])
    lines = [
        "# What recording costs",
        "",
        f"{machine['cpu']}, Python {machine['python']}, torch {machine['packages']['torch']}, commit "
        f"{machine['commit']}, {machine['date']}: `{machine['command']}`",
        "",
        f"Seconds of quickstart steps over those of the same steps with `{' '.join(NOTHING)}`, which still writes",
        f"metrics and status: {turns} blocks of {result['block']} steps each, in turn, in one process on one thread.",
        "",
        "| recorded | wall: median [least, greatest] | CPU: median [least, greatest] | all blocks, wall | CPU |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in ("rollouts", "everything"):
        wall, cpu = result["ratios"][f"{name}/wall"], result["ratios"][f"{name}/cpu"]
        lines.append(
            f"| {name} | {wall[0]:.3f} [{wall[1]:.3f}, {wall[2]:.3f}] | {cpu[0]:.3f} [{cpu[1]:.3f}, {cpu[2]:.3f}] "
            f"| {wall[3]:.3f} | {cpu[3]:.3f} |"
        )
    lines += [
        "",
        "The phase `report` (metrics, status, rollouts, tokens, spans, console), over the whole of the steps:",
        "",
        "| recorded | report, ms a step | whole step, ms | share | KiB a step |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, run in result["runs"].items():
        report_s, step_s = run["seconds"]["report"], sum(turn[name][0] for turn in result["turns"])
        size = sum(run["bytes"].values()) / run["steps"] / 1024
        lines.append(
            f"| {name} | {1e3 * report_s / run['steps']:.1f} | {1e3 * step_s / run['steps']:.0f} "
            f"| {100 * report_s / step_s:.1f} % | {size:.0f} |"
        )
    lines += [
        "",
        "`report` is what the training thread waits for. It leaves out the thread that encodes tables, the copies that",
        "the learner makes of traced tokens, and the keeping of spans; those are in the ratios alone. Where least and",
        "greatest lie far apart, other work ran on the machine, and a ratio says no more than that spread allows.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=91)
    parser.add_argument("--block", type=int, default=3)
    parser.add_argument("--work", type=Path, help="for the runs; default: a folder that is removed")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    arguments = parser.parse_args()
    refuse_changes(arguments.out)
    with contextlib.ExitStack() as stack:
        work = arguments.work or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        result = measure(work, arguments.steps, arguments.block)
    result["machine"] = describe_machine()
    arguments.out.mkdir(exist_ok=True)
    (arguments.out / "recording.json").write_text(json.dumps(result, indent=1) + "\n")
    (arguments.out / "recording.md").write_text(report(result))
    print(report(result))


if __name__ == "__main__":
    main()
