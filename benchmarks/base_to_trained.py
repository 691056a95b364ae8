"""From a model that cannot do a task at all to a trained one: DAPO alone, `dapo sft`, and DAPO behind it.

    nice -n 15 python benchmarks/base_to_trained.py --work FOLDER [--seeds 1 2 3] [--write]

The quickstart's task with problems of 3 and 4 terms, and a model of the quickstart's size with random weights. For each
seed: DAPO from the random model (no response is ever right, so no group says anything), supervised training on the
solutions of a sloppy student, who reads a minus as a plus more often than not (as in the quickstart's own start: worked
solutions without a mistake would leave nothing to train for), then from its export DAPO on every parameter, and DAPO on
an adapter (LoRA) with a KL term against the start.
Runs that are finished in FOLDER are not made again, and a run that was interrupted goes on. With ``--write`` the table
and the figure go to benchmarks/results/base_to_trained.md and .png.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from machine import commits_of, describe_machine, refuse_changes

from dapo.cli.main import main as dapo
from dapo.data.signed_sum import SignedSum, make_problem, sloppy_solution
from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import Row, read_metrics, series
from dapo.observe.status import read_status

RESULTS = Path(__file__).parent / "results"
EXAMPLES, HELD_OUT_EXAMPLES = 11_000, 64
HELD_OUT = {"seed": 2, "size": 128}
TERMS = {"max_terms": 4}
ACCURACY, GREEDY = "validation/accuracy", "validation/greedy_accuracy"
ARMS = {
    "nothing": "DAPO from random weights",
    "dapo": "DAPO from the supervised start",
    "lora_kl": "DAPO, LoRA and KL from there",
}
COLOURS = {"nothing": "#6B7280", "dapo": "#0072B2", "lora_kl": "#E69F00"}


def recipe(folder: Path, seed: int, steps: int) -> dict[str, object]:
    """One recipe for both: problems with a reward, and examples to imitate."""
    return {
        "run": {"dir": str(folder / "runs"), "name": "dapo", "seed": seed},
        "model": {"path": str(folder / "base")},
        "data": {
            "train": [{"task": "signed_sum", "seed": 100 + seed, "size": 4000, "options": TERMS}],
            "validation": [{"task": "signed_sum", "name": "held_out", **HELD_OUT, "options": TERMS}],
        },
        "rewards": [{"name": "accuracy", "kind": "exact", "pattern": r"=\s*(-?\d+)\s*$"}],
        "rollout": {"prompts_per_step": 32, "group_size": 16, "max_response_tokens": 24},
        "algorithm": {"dynamic_sampling": {"cap": {"groups": 3}}, "overlong_punishment": {"cache_length": 8}},
        "learner": {
            "learning_rate": 5e-4,
            "betas": [0.9, 0.95],
            "weight_decay": 0.0,
            "minibatch_prompts": 8,
            "schedule_unit": "optimizer",
        },
        "sft": {
            "train": [{"path": str(folder / "examples.jsonl")}],
            "validation": [{"path": str(folder / "held_out.jsonl")}],
            "epochs": 3,
            "batch_size": 32,
            "learning_rate": 3e-3,
            "warmup": 10,
            "every": 200,
        },
        "validation": {"every": 10, "samples": 4},
        "trainer": {"steps": steps},
        "checkpoint": {"every": 10},
    }


def solution(problem: SignedSum, seed: int, index: int) -> str:
    """What the student writes: the chain alone, with its mistakes."""
    return sloppy_solution(problem, random.Random(f"{seed} {index}"), rambler_share=0.0)


def prepare(folder: Path, seed: int, steps: int) -> Path:
    """The random model, the examples and the recipe of a seed; returns the recipe's file."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "base").exists():
        make_tiny_model(folder / "base", "llama", heads=2, seed=seed)
    asked = {make_problem(HELD_OUT["seed"], index, **TERMS).prompt for index in range(HELD_OUT["size"])}
    for name, count, of in (("examples", EXAMPLES, 1000 + seed), ("held_out", HELD_OUT_EXAMPLES, 2000)):
        problems = [(index, make_problem(of, index, **TERMS)) for index in range(count)]
        lines = [
            json.dumps({"prompt": problem.prompt, "response": solution(problem, of, index)})
            for index, problem in problems
            if problem.prompt not in asked
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    file = folder / "recipe.json"
    file.write_text(json.dumps(recipe(folder, seed, steps)))
    return file.rename(folder / "recipe.yaml")  # JSON is YAML


def run(command: str, file: Path, folder: Path, *settings: str) -> None:
    """Make a run, unless it is there: one that ended stays, one that was interrupted goes on."""
    status = read_status(folder / "status.json")
    if status is None:
        dapo([command, str(file), *settings])
    elif status.state not in ("finished", "unfilled"):
        dapo([command, "--resume", str(folder)])


def one_seed(folder: Path, seed: int, steps: int) -> None:
    file, runs = prepare(folder, seed, steps), folder / "runs"
    run("sft", file, runs / "dapo-sft")
    start = f"model.path={runs / 'dapo-sft' / 'export'}"
    run("train", file, runs / "dapo", start)
    adapter = ["model.lora.rank=16", "learner.learning_rate=3.0e-3", "algorithm.kl_coefficient=0.01"]
    run("train", file, runs / "lora_kl", start, "run.name=lora_kl", *adapter)
    run("train", file, runs / "nothing", "run.name=nothing")


def rows_of(work: Path, seed: int, name: str) -> list[Row]:
    return read_metrics(work / f"seed{seed}" / "runs" / name / "metrics.jsonl")


def at(rows: Sequence[Row], key: str, first: bool = False) -> float:
    values = series(rows, key)[1]
    return values[0 if first else -1]


def table(work: Path, seeds: Sequence[int], steps: int) -> str:
    """Markdown: what each seed measured at each point of the way."""
    lines = [
        "| seed | random weights | after `dapo sft` | then DAPO | then DAPO, LoRA and KL | held-out loss, sft |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    columns: list[list[float]] = [[], [], [], []]
    for seed in seeds:
        found = [
            at(rows_of(work, seed, "nothing"), ACCURACY, first=True),
            at(rows_of(work, seed, "dapo"), ACCURACY, first=True),
            at(rows_of(work, seed, "dapo"), ACCURACY),
            at(rows_of(work, seed, "lora_kl"), ACCURACY),
        ]
        for column, value in zip(columns, found, strict=True):
            column.append(value)
        sft = rows_of(work, seed, "dapo-sft")
        losses = f"{at(sft, 'validation/loss', first=True):.2f} to {at(sft, 'validation/loss'):.3f}"
        lines.append(f"| {seed} | {' | '.join(f'{value:.1%}' for value in found)} | {losses} |")
    means = " | ".join(f"**{statistics.mean(column):.1%}**" for column in columns)
    lines.append(f"| mean | {means} | |")
    return "\n".join(lines)


def report(work: Path, seeds: Sequence[int], steps: int) -> str:
    sft = rows_of(work, seeds[0], "dapo-sft")
    stopped = [read_status(work / f"seed{s}" / "runs" / "nothing" / "status.json") for s in seeds]
    unfilled = sum(status is not None and status.state == "unfilled" for status in stopped)
    machine = describe_machine()
    commits = commits_of(work / f"seed{seed}" / "runs" / arm for seed in seeds for arm in ARMS)
    return "\n".join(
        [
            "# From a model that cannot do the task to a trained one",
            "",
            "Made by `python benchmarks/base_to_trained.py --work FOLDER --seeds "
            f"{' '.join(map(str, seeds))} --steps {steps} --write` on {machine['cpu']}, commit "
            f"{commits}, {machine['date']}. The quickstart's task with 3 and 4 terms, a model "
            "of 0.1 million parameters with random weights, one CPU thread. Accuracy is that of four sampled responses "
            "to each of 128 held-out problems.",
            "",
            table(work, seeds, steps),
            "",
            f"`dapo sft` took {sft[-1]['step']} steps of 32 of {EXAMPLES:,} solutions of a sloppy student; both arms "
            f"behind it {steps} steps of 32 prompts with 16 responses. DAPO from random weights was stopped in "
            f"{unfilled} of {len(seeds)} seeds in its first step: too few groups had right and wrong responses.",
            "",
            "![held-out accuracy over the steps of DAPO](base_to_trained.png)",
            "",
        ]
    )


def draw(work: Path, seeds: Sequence[int], path: Path) -> None:
    """Held-out accuracy of each arm: each seed thin, their mean broad."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import PercentFormatter

    figure = Figure(figsize=(8, 4.5), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, label in ARMS.items():
        curves = [series(rows_of(work, seed, name), ACCURACY) for seed in seeds]
        for steps, values in curves:
            axes.plot(steps, values, color=COLOURS[name], alpha=0.35, linewidth=1, marker="." if len(steps) < 2 else "")
        common = sorted(set.intersection(*(set(steps) for steps, _ in curves)))
        means = [statistics.mean(dict(zip(*curve, strict=True))[step] for curve in curves) for step in common]
        mark = "o" if len(common) < 2 else ""
        axes.plot(common, means, color=COLOURS[name], linewidth=2.5, marker=mark, label=label)
    axes.set(xlabel="training step of DAPO", ylabel="held-out accuracy", ylim=(-0.02, 1.02))
    axes.set_title(f"Mean of {len(seeds)} seeds (thin: each)", loc="left")
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.grid(True, color="#E5E7EB")
    axes.legend(loc="center right", frameon=False)
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        refuse_changes(RESULTS)
    for seed in arguments.seeds:
        one_seed(arguments.work / f"seed{seed}", seed, arguments.steps)
    print(table(arguments.work, arguments.seeds, arguments.steps))
    if arguments.write:
        draw(arguments.work, arguments.seeds, RESULTS / "base_to_trained.png")
        (RESULTS / "base_to_trained.md").write_text(report(arguments.work, arguments.seeds, arguments.steps))


if __name__ == "__main__":
    main()
