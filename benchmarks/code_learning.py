"""Training on programs that the sandbox judges: from a sloppy start, held-out accuracy over steps and seeds.

    python benchmarks/code_learning.py --work FOLDER [--seeds 1 2 3] [--steps 20] [--write]

A problem is a chain of three operations, ``plus 4 times 3 minus 2``; the response is a program, ``def f(x): x+=4; x*=3;
x-=2; return x``, which two asserts call in the sandbox. The model has 0.1 million weights. It starts with examples of a
student who writes a plus for most operations, and is then trained by ``kind: code`` alone. Runs that are finished in
FOLDER are not made again. With ``--write`` table and figure go to benchmarks/results/code_learning.md and .png.
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
from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import read_metrics, series
from dapo.observe.status import read_status

RESULTS = Path(__file__).parent / "results"
OPERATIONS = {"plus": "+", "minus": "-", "times": "*"}
WORDS = (
    *OPERATIONS,
    *map(str, range(1, 10)),
    "program",
    "def",
    "f(x):",
    *(f"x{sign}={digit};" for sign in OPERATIONS.values() for digit in range(1, 10)),
    "return",
    "x",
)
SLIP = 0.6  # how often the student writes a plus for another operation
ACCURACY = "validation/accuracy"
Chain = list[tuple[str, int]]


def chain_of(seed: int, index: int) -> Chain:
    chance = random.Random(f"{seed} {index}")
    return [(chance.choice(list(OPERATIONS)), chance.randint(1, 9)) for _ in range(3)]


def held_out() -> list[Chain]:
    return [chain_of(2000, index) for index in range(128)]


def problem_of(chain: Chain) -> str:
    return " ".join(f"{name} {digit}" for name, digit in chain) + " program"


def program_of(chain: Chain, chance: random.Random | None = None) -> str:
    """Return a right program; with ``chance`` that of the student."""
    steps = []
    for name, digit in chain:
        slip = chance is not None and chance.random() < SLIP
        steps.append(f"x{'+' if slip else OPERATIONS[name]}={digit};")
    return " ".join(["def f(x):", *steps, "return x"])


def value(chain: Chain, x: int) -> int:
    for name, digit in chain:
        x = {"plus": x + digit, "minus": x - digit, "times": x * digit}[name]
    return x


def record(chain: Chain) -> dict[str, object]:
    tests = [f"assert f({x}) == {value(chain, x)}" for x in (2, -5)]
    return {"problem": problem_of(chain), "tests": tests, "solution": program_of(chain), "entry_point": "f"}


def write_lines(file: Path, records: Sequence[object]) -> None:
    file.write_text("".join(json.dumps(each) + "\n" for each in records))


def recipe(folder: Path, seed: int, steps: int) -> dict[str, object]:
    fields = {"problem": "problem", "answer": ""}
    return {
        "run": {"dir": str(folder / "runs"), "name": "dapo", "seed": seed, "reward_workers": 2},
        "model": {"path": str(folder / "base")},
        "data": {
            "train": [{"path": str(folder / "train.jsonl"), "fields": fields}],
            "validation": [{"path": str(folder / "held_out.jsonl"), "fields": fields}],
        },
        "rewards": [{"name": "accuracy", "kind": "code", "entry_point": "entry_point", "timeout": 30.0}],
        "rollout": {"prompts_per_step": 12, "group_size": 8, "max_response_tokens": 12},
        "algorithm": {"overlong_punishment": {"enabled": False}},
        "learner": {
            "learning_rate": 1e-3,
            "betas": [0.9, 0.95],
            "weight_decay": 0.0,
            "minibatch_prompts": 4,
            "schedule_unit": "optimizer",
        },
        "sft": {
            "train": [{"path": str(folder / "examples.jsonl")}],
            "epochs": 2,
            "batch_size": 32,
            "learning_rate": 3e-3,
            "warmup": 10,
            "every": 0,
        },
        "validation": {"every": 5, "samples": 1, "greedy": False},
        "trainer": {"steps": steps},
        "checkpoint": {"every": 10},
    }


def one_seed(folder: Path, seed: int, steps: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "base").exists():
        make_tiny_model(folder / "base", "llama", heads=2, seed=seed, words=WORDS)
    asked = {problem_of(chain) for chain in held_out()}
    train = [chain for index in range(2000) if problem_of(chain := chain_of(100 + seed, index)) not in asked]
    taught = [chain for index in range(4000) if problem_of(chain := chain_of(1000 + seed, index)) not in asked]
    write_lines(folder / "train.jsonl", [record(chain) for chain in train])
    write_lines(folder / "held_out.jsonl", [record(chain) for chain in held_out()])
    chance = random.Random(seed)
    examples = [{"prompt": problem_of(chain), "response": program_of(chain, chance)} for chain in taught]
    write_lines(folder / "examples.jsonl", examples)
    file = folder / "recipe.yaml"
    file.write_text(json.dumps(recipe(folder, seed, steps)))  # JSON is YAML
    for command, name, settings in (
        ("sft", "dapo-sft", []),
        ("train", "dapo", [f"model.path={folder / 'runs' / 'dapo-sft' / 'export'}"]),
    ):
        status = read_status(folder / "runs" / name / "status.json")
        if status is None:
            dapo([command, str(file), *settings])
        elif status.state != "finished":
            dapo([command, "--resume", str(folder / "runs" / name)])


def write(work: Path, seeds: Sequence[int]) -> str:
    """Write the figure, and return the page."""
    from matplotlib.figure import Figure

    machine = describe_machine()
    commits = commits_of(work / f"seed{seed}" / "runs" / "dapo" for seed in seeds)
    problems = len({problem_of(chain) for chain in held_out()})  # dapo keeps each once
    curves = {
        seed: series(read_metrics(work / f"seed{seed}" / "runs" / "dapo" / "metrics.jsonl"), ACCURACY) for seed in seeds
    }
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    axes = figure.subplots()
    for seed, (steps, values) in curves.items():
        axes.plot(steps, values, marker="o", label=f"seed {seed}")
    axes.set(xlabel="training step", ylabel="held-out accuracy", ylim=(0, 1))
    axes.legend()
    figure.savefig(RESULTS / "code_learning.png", dpi=120)
    lines = [
        "# Learning to write programs that pass their tests",
        "",
        f"{machine['cpu']}, Python {machine['python']}, commit {commits}, {machine['date']}: `{machine['command']}`.",
        f"Held-out accuracy ({problems} problems, one sampled program each) by `kind: code` in the sandbox.",
        "",
        "| seed | after `dapo sft` | after DAPO | steps |",
        "| --- | --- | --- | --- |",
    ]
    for seed, (steps, values) in curves.items():
        lines.append(f"| {seed} | {values[0]:.1%} | {values[-1]:.1%} | {steps[-1]} |")
    first, last = (statistics.mean(values[n] for _, values in curves.values()) for n in (0, -1))
    lines += [f"| mean | {first:.1%} | {last:.1%} | |", "", "![Held-out accuracy by step](code_learning.png)"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        refuse_changes(RESULTS)
    for seed in arguments.seeds:
        one_seed(arguments.work.resolve() / f"seed{seed}", seed, arguments.steps)
    if arguments.write:
        page = write(arguments.work, arguments.seeds)
        (RESULTS / "code_learning.md").write_text(page)
        print(page)


if __name__ == "__main__":
    main()
