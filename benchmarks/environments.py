"""Learning through turns: a guessing game and products by a calculator, each beside a control that cannot do it.

    nice python benchmarks/environments.py --work FOLDER [--seeds 1 2 3] [--write]

*game*: a number from 1 to 12 is to be guessed in two turns; a wrong guess is answered by how far off it is. A model of
0.1 million random weights learns it from rewards alone. Control: the same game whose replies say nothing.

*products*: of a number of three digits and one of two. The model calls a calculator, reads its result and says it. It
begins with examples of a sloppy student, who copies one digit in four wrongly. Control: as many examples of the same
student without a calculator, who writes products straight away, and the same training by reward.

Held-out problems are never trained on. Runs that are finished in FOLDER are not made again. With ``--write`` table and
figure go to benchmarks/results/environments.md and .png.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import re
import shutil
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from machine import commits_of, describe_machine, refuse_changes

import dapo
from dapo.models.tiny import make_tiny_model
from dapo.observe.metrics import read_metrics, series
from dapo.observe.status import read_status

RESULTS = Path(__file__).parent / "results"
ACCURACY = "validation/accuracy"
MOST = 12  # of the game
DIGITS = tuple("0123456789")
WORDS = {
    "game": ("game", "?", *map(str, range(1, MOST + 1)), *(f"{n:+d}" for n in range(1 - MOST, MOST) if n)),
    "products": (*DIGITS, "x", "=", "multiply", "and", "is"),
}
STEPS = {"game": 160, "products": 30}
SLIP = 0.25  # how often the student writes another digit
ARMS = {
    "game": ("game", "replies say how far off"),
    "game_mute": ("game", "control: replies say nothing"),
    "products": ("products", "with the calculator"),
    "products_alone": ("products", "control: without it"),
}
Problem = tuple[int, int]


# ---------------------------------------------------------------------- the game


def guess(prompt: Any, rng: random.Random, mute: bool = False) -> Any:
    """Play one episode: two guesses. ``mute``: every reply is the same."""
    hidden = int(prompt.answer)
    turn = yield "?"
    for last in (False, True):
        said = turn.text.strip()
        if said == str(hidden):
            return {"accuracy": 1.0}
        if last or not said.isdecimal():
            return {"accuracy": 0.0}
        turn = yield "?" if mute else f"{hidden - int(said):+d}"


def game_problems(seed: int, count: int) -> list[dict[str, str]]:
    """Return problems whose text says nothing of the hidden number."""
    chance = random.Random(f"game {seed}")
    names = {" ".join(chance.choices("123456789", k=6)): None for _ in range(count)}
    return [{"problem": f"game {name}", "answer": str(1 + chance.randrange(MOST))} for name in names]


# ---------------------------------------------------------------------- the products


def multiply(a: int, b: int) -> str:
    """Multiply two numbers; the result is spelled in five digits."""
    return f"is {spelled(a * b)}"


def read_calls(text: str) -> list[tuple[str, dict[str, int]]]:
    """Read ``multiply 1 2 3 and 4 5``."""
    found = re.search(r"multiply((?: \d)+) and((?: \d)+)", text)
    return [("multiply", {"a": number(found[1]), "b": number(found[2])})] if found else []


def spelled(value: int, digits: int = 5) -> str:
    return " ".join(f"{value:0{digits}d}")


def number(text: str) -> int:
    return int(text.replace(" ", ""))


def product_problems(seed: int, count: int) -> list[Problem]:
    chance = random.Random(f"products {seed}")
    return [(chance.randrange(100, 1000), chance.randrange(10, 100)) for _ in range(count)]


def asked(problem: Problem) -> str:
    return f"{spelled(problem[0], 3)} x {spelled(problem[1], 2)} ="


def examples_of(problem: Problem, chance: random.Random, *, alone: bool) -> list[dict[str, str]]:
    """Return what the student writes: a call, and the result that came back; ``alone``: the product straight away."""

    def sloppy(words: str) -> str:
        slips = (chance.choice(DIGITS) if chance.random() < SLIP else digit for digit in words.split())
        return " ".join(slips)

    first, second = spelled(problem[0], 3), spelled(problem[1], 2)
    if alone:
        return [{"prompt": asked(problem), "response": sloppy(spelled(math.prod(problem)))}]
    call = f"multiply {sloppy(first)} and {sloppy(second)}"
    result = multiply(**read_calls(call)[0][1])
    return [
        {"prompt": asked(problem), "response": call},
        {"prompt": f"{asked(problem)} {call} <eos> {result}", "response": sloppy(result.removeprefix("is "))},
    ]


# ---------------------------------------------------------------------- runs


def write_lines(file: Path, records: Sequence[object]) -> str:
    file.write_text("".join(json.dumps(each) + "\n" for each in records))
    return str(file)


def recipe(folder: Path, task: str, name: str, seed: int) -> dict[str, Any]:
    fields = {"problem": "problem", "answer": "answer"}
    return {
        "run": {"dir": str(folder), "name": name, "seed": seed, "reward_workers": 1},
        "model": {"path": str(base_model(folder, task, seed))},
        "data": {
            "train": [{"path": str(folder / f"{task}_train.jsonl"), "fields": fields}],
            "validation": [{"path": str(folder / f"{task}_held_out.jsonl"), "fields": fields}],
        },
        "rollout": {"prompts_per_step": 16, "group_size": 16, "max_response_tokens": 24},
        "algorithm": {
            "overlong_filtering": False,
            "overlong_punishment": {"enabled": False},
            "entropy_coefficient": 0.003,
            "dynamic_sampling": {"cap": {"groups": 6, "then": "train_partial"}},
        },
        "learner": {"learning_rate": 2e-3, "warmup": 2, "betas": [0.9, 0.95], "weight_decay": 0.0},
        "validation": {"every": 10, "samples": 4, "greedy": False},
        "trainer": {"steps": STEPS[task]},
        "checkpoint": {"every": 0},
        "logging": {"rollouts": 4},
    }


def finished(folder: Path) -> bool:
    status = read_status(folder / "status.json")
    return status is not None and status.state in ("finished", "unfilled")


def base_model(folder: Path, task: str, seed: int) -> Path:
    model = folder / f"{task}_base"
    if not model.exists():
        make_tiny_model(model, "llama", heads=2, seed=seed, words=WORDS[task])
    return model


def game(folder: Path, name: str, seed: int, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Train on the game from random weights. ``changes``: settings by their dotted keys."""
    held_out = game_problems(2000, 128)
    texts = {each["problem"] for each in held_out}
    write_lines(folder / "game_held_out.jsonl", held_out)
    train = [each for each in game_problems(100 + seed, 4000) if each["problem"] not in texts]
    write_lines(folder / "game_train.jsonl", train)
    made = recipe(folder, "game", name, seed)
    made["algorithm"]["entropy_coefficient"] = 0.01
    made["environment"] = {"args": {"mute": name == "game_mute"}, "max_turns": 2, "max_turn_tokens": 1, "lag": 2}
    dapo.train(made, environment=guess, **changes)


def products(folder: Path, name: str, seed: int, changes: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Train on products: examples first, then rewards, with ``changes`` of settings by their dotted keys."""
    alone = name == "products_alone"
    held_out = product_problems(2000, 128)
    records = [{"problem": asked(each), "answer": spelled(math.prod(each))} for each in held_out]
    write_lines(folder / "products_held_out.jsonl", records)
    train = [each for each in product_problems(100 + seed, 4000) if each not in held_out]
    write_lines(
        folder / "products_train.jsonl",
        [{"problem": asked(each), "answer": spelled(math.prod(each))} for each in train],
    )
    made = recipe(folder, "products", name, seed)
    made["rewards"] = [{"name": "accuracy", "kind": "exact"}]
    made["learner"]["learning_rate"] = 1e-3
    chance, taught = (
        random.Random(seed),
        [each for each in product_problems(1000 + seed, 12_000) if each not in held_out],
    )
    examples = [line for each in taught for line in examples_of(each, chance, alone=alone)]
    start = "products_alone" if alone else "products"  # of all runs of the task
    taught_by = folder / f"{start}-sft"
    if not finished(taught_by):
        epochs = 6 if alone else 3  # as many examples
        section = {"epochs": epochs, "batch_size": 32, "learning_rate": 1e-3, "warmup": 10, "every": 0}
        dapo.sft({**made, "run": {**made["run"], "name": start}, "sft": section}, train=examples)
    made["model"] = {"path": str(taught_by / "export")}
    if alone:
        dapo.train(made)
    else:
        made["environment"] = {"tool_format": read_calls, "max_turns": 2, "lag": 2}
        dapo.train(made, tools=[multiply], **changes)


def one_seed(folder: Path, seed: int, arms: Sequence[str]) -> None:
    """Make the runs of a seed that are not finished, from their beginning."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in arms:
        if finished(folder / name):
            continue
        shutil.rmtree(folder / name, ignore_errors=True)
        (game if ARMS[name][0] == "game" else products)(folder, name, seed)
        if not finished(folder / name):
            raise SystemExit(f"{name} of seed {seed} was interrupted; give the command again")


# ---------------------------------------------------------------------- what is written


def curve(work: Path, seed: int, name: str) -> tuple[Sequence[int], Sequence[float]]:
    return series(read_metrics(work / f"seed{seed}" / name / "metrics.jsonl"), ACCURACY)


def draw(work: Path, seeds: Sequence[int]) -> None:
    """Write the figure: a panel for each task, controls in grey."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.5), layout="constrained")
    panels = dict(zip(STEPS, figure.subplots(1, len(STEPS), sharey=True), strict=True))
    for name, (task, label) in ARMS.items():
        colour = "#6B7280" if label.startswith("control") else "#0072B2"
        for seed in seeds:
            said = label if seed == seeds[0] else None
            panels[task].plot(*curve(work, seed, name), color=colour, marker="o", ms=3, label=said)
    for task, axes in panels.items():
        axes.set(title=task, xlabel="training step", ylim=(0, 1))
        axes.legend()
    figure.axes[0].set_ylabel("held-out accuracy")
    figure.savefig(RESULTS / "environments.png", dpi=120)


def page(work: Path, seeds: Sequence[int]) -> str:
    """Return the table."""
    machine = describe_machine()
    commits = commits_of(work / f"seed{seed}" / name for name in ARMS for seed in seeds)
    lines = [
        "# Learning through turns",
        "",
        f"{machine['cpu']}, Python {machine['python']}, commit {commits}, {machine['date']}: `{machine['command']}`.",
        "Held-out accuracy on 128 problems, four sampled episodes each, before training by reward and at its last",
        "step. Replies are tokens of the episode without loss. Grey curves are controls. That of products has a start",
        "of its own: it imitated other examples, products without a call, six passes instead of three.",
        "",
        "| task | arm | seed | before | after | steps | turns | reply tokens of a step |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name, (task, label) in ARMS.items():
        for seed in seeds:
            steps, values = curve(work, seed, name)
            last = read_metrics(work / f"seed{seed}" / name / "metrics.jsonl")[-1]
            turns, replies = (last.get(f"environment/{key}") for key in ("turns_mean", "reply_tokens"))
            more = "1 | 0" if turns is None else f"{turns:.1f} | {replies:.0f}"
            lines.append(f"| {task} | {label} | {seed} | {values[0]:.1%} | {values[-1]:.1%} | {steps[-1]} | {more} |")
    mean = {
        name: [statistics.mean(curve(work, seed, name)[1][place] for seed in seeds) for place in (0, -1)]
        for name in ARMS
    }
    for name, (first, last) in mean.items():
        lines.append(f"| {ARMS[name][0]} | {ARMS[name][1]} | mean | {first:.1%} | {last:.1%} | | | |")
    lines += ["", "![Held-out accuracy by step](environments.png)"]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    if arguments.write:
        refuse_changes(RESULTS)
    for seed in arguments.seeds:
        one_seed(arguments.work.resolve() / f"seed{seed}", seed, arguments.arms)
    if arguments.write:
        draw(arguments.work, arguments.seeds)
        made = page(arguments.work, arguments.seeds)
        (RESULTS / "environments.md").write_text(made)
        print(made)


if __name__ == "__main__":
    main()
