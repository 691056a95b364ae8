"""Three seeds of the recipe ``sums_smollm2``: SmolLM2-135M-Instruct learns sums on two cores. Curves, answers and cost.

    python benchmarks/chat_model.py --wheel WHEEL --work WORK [--seeds 1,2,3] [--threads 2] [--out benchmarks/results]

`make bench-chat-model` is this line. Runs are made one after the other, and a call goes on where the last one stopped:
a finished run is kept, an interrupted one is resumed. Processor seconds are those of all calls. The results name the
commit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from machine import HERE, RESULTS, commits_of, describe_machine, refuse_changes

from dapo.observe.metrics import read_metrics
from dapo.observe.samples import before_and_after, read_samples
from dapo.observe.status import read_status

RECIPE = "sums_smollm2"
NAME = "chat_model"
CHECKOUT = HERE.parent
ENDED = ("finished", "unfilled")
"""States of a run that is not made again; unfilled: too few groups could be kept."""


def spent_of(run: Path) -> dict[str, float]:
    """Return the seconds of all calls that made a run so far: by the watch, and of the processor."""
    file = run.with_suffix(".cost.json")
    return json.loads(file.read_text()) if file.exists() else {"wall": 0.0, "processor": 0.0}


def processor_of_children() -> float:
    """Return the processor seconds of all processes that this one started and that ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def state_of(run: Path) -> str:
    """Return the state that status.json names; "" without one."""
    status = read_status(run / "status.json")
    return status.state if status else ""


def make(run: Path, settings: Sequence[str], threads: int) -> None:
    """Make a run of the recipe with this checkout's package, or what is missing of the run.

    Raises:
        SystemExit: it did not end.
    """
    if state_of(run) in ENDED:
        return
    if (run / "checkpoints").is_dir() and any((run / "checkpoints").iterdir()):
        command = ["train", "--resume", str(run)]
    else:
        command = ["train", RECIPE, f"run.dir={run.parent}", f"run.name={run.name}", f"run.threads={threads}"]
        command += ["run.if_exists=backup", "logging.console=plain", *settings]
    began, before = time.monotonic(), processor_of_children()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run([sys.executable, "-m", "dapo", *command], env=environment, cwd=CHECKOUT, check=False)
    finally:
        spent = spent_of(run)
        spent["wall"] += time.monotonic() - began
        spent["processor"] += processor_of_children() - before
        run.parent.mkdir(parents=True, exist_ok=True)
        run.with_suffix(".cost.json").write_text(json.dumps(spent))
    if state_of(run) not in ENDED:
        raise SystemExit(f"{run} ended with {done.returncode}; the same command goes on with it")


def look_at(run: Path, seed: int) -> dict[str, Any]:
    """Return a run's evaluations, entropy, cost, and its three answers that changed most."""
    rows = read_metrics(run / "metrics.jsonl")
    evaluated = [row for row in rows if "validation/accuracy" in row]
    return {
        "seed": seed,
        "threads": yaml.safe_load((run / "recipe.resolved.yaml").read_text())["run"]["threads"],
        "steps": [row["step"] for row in evaluated],
        "sampled": [row["validation/accuracy"] for row in evaluated],
        "greedy": [row["validation/greedy_accuracy"] for row in evaluated],
        "truncated": [row["validation/truncated_share"] for row in evaluated],
        "entropy": [row["train/entropy"] for row in rows if "train/entropy" in row],
        "cost": spent_of(run),
        "answers": [
            {"problem": before.problem, "answer": before.answer, "before": before.response, "after": after.response}
            for before, after in before_and_after(read_samples(run / "samples.jsonl"))[:3]
        ],
    }


def write(found: list[dict[str, Any]], machine: dict[str, Any], out: Path) -> None:
    """Write NAME.json, NAME.md and NAME.png."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{NAME}.json").write_text(json.dumps({"machine": machine, "runs": found}, indent=1) + "\n")
    steps = found[0]["steps"]
    lines = [
        "# A chat model learns sums",
        "",
        f"`make bench-chat-model`: {machine['cpu']}, Python {machine['python']}, "
        f"torch {machine['packages']['torch']}; commit {machine['commit']}, {machine['date']}.",
        "",
        "SmolLM2-135M-Instruct, recipe `sums_smollm2`. Right answers to 100 held-out sums, %, one sample each (greedy "
        "in brackets). Minutes are of the whole run, with loading and evaluations, and with what else the machine did.",
        "",
        "| seed | "
        + " | ".join(f"step {step}" for step in steps)
        + " | threads | minutes by the watch | processor minutes |",
        "| --- |" + " --- |" * (len(steps) + 3),
    ]
    for one in found:
        shown = [f"{100 * s:.0f} ({100 * g:.0f})" for s, g in zip(one["sampled"], one["greedy"], strict=True)]
        shown += [str(one["threads"]), *(f"{one['cost'][kind] / 60:.1f}" for kind in ("wall", "processor"))]
        lines.append(f"| {one['seed']} | " + " | ".join(shown) + " |")
    mean = [sum(one["sampled"][n] for one in found) / len(found) for n in range(len(steps))]
    lines.append("| mean | " + " | ".join(f"{100 * value:.0f}" for value in mean) + " | | | |")
    lines += ["", f"Answers of seed {found[0]['seed']} that changed most:", ""]
    lines += ["| problem | before | after |", "| --- | --- | --- |"]
    for each in found[0]["answers"]:
        cells = [" ".join(each[key].split()).replace("|", "/") for key in ("problem", "before", "after")]
        lines.append("| " + " | ".join(cells) + " |")
    (out / f"{NAME}.md").write_text("\n".join(lines) + "\n")
    draw(found, mean, out / f"{NAME}.png")


def draw(found: list[dict[str, Any]], mean: list[float], file: Path) -> None:
    """Draw held-out accuracy by training step, a thin line a seed and a thick one for the mean."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.4), layout="constrained")
    for one in found:
        axes.plot(one["steps"], [100 * value for value in one["sampled"]], color="#9db7d5", linewidth=1)
    axes.plot(found[0]["steps"], [100 * value for value in mean], color="#1f5fa8", linewidth=2.5)
    axes.set(xlabel="training step", ylabel="held-out sums right, %", ylim=(0, 100))
    axes.set_title(f"SmolLM2-135M-Instruct on sums: {len(found)} seeds and their mean", fontsize=10)
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=130, facecolor="white")


def main() -> None:
    """Make the runs that are missing, and write what all of them show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--wheel", type=Path, required=True, help="the wheel, or the GGUF file, of SmolLM2-135M-Instruct"
    )
    parser.add_argument("--work", type=Path, required=True, help="where the runs are kept")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    refuse_changes(options.out)
    seeds = [int(seed) for seed in options.seeds.split(",")]
    runs = [options.work.resolve() / f"seed{seed}" for seed in seeds]
    for run, seed in zip(runs, seeds, strict=True):
        make(run, [f"model.path={options.wheel.resolve()}", f"run.seed={seed}"], options.threads)
    machine = describe_machine() | {"commit": commits_of(runs)}
    write([look_at(run, seed) for run, seed in zip(runs, seeds, strict=True)], machine, options.out)
    print(f"{options.out / NAME}.md, .json and .png")


if __name__ == "__main__":
    main()
