"""Real problems from nothing: random weights, a supervised start, then DAPO, on public sets and tasks of reasoning-gym.

    python benchmarks/real_problems.py --work WORK                        # every task, three seeds
    python benchmarks/real_problems.py --work WORK --minutes 10           # as far as that goes; the same line goes on
    python benchmarks/real_problems.py --work WORK --tasks gcd --seeds 4  # one task, another seed
    python benchmarks/real_problems.py --work WORK --small                # the whole way in a minute; says nothing

For each task and seed: a model of 0.25 million random weights that reads bytes, ``dapo sft`` on the generator's own
answers (word problems: the sets' own equations), then ``dapo train`` from its export, and ``dapo evaluate`` on the same
held-out problems before and after. When all of that is done, the same start is imitated further, on new examples, for
as many seconds as DAPO took: what reward has to be better than. Runs that are finished in WORK are not made again, and
one that was interrupted goes on. Word problems need the public sets in the folder DAPO_DATA, and are left out without.

Results of the seeds that are complete go to ``--out``. By default they go to benchmarks/results/real_problems.json, .md
and .png, and their tables to docs/evidence.md. ``--minutes 0`` writes what there is, and starts nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import real_tasks
from ablation_report import with_blocks
from machine import describe_machine, refuse_changes
from real_numbers import summarise
from real_report import draw, markdown, page_block
from real_tasks import TASKS, Given
from text_models import make_text_model

from dapo.cli.main import main as dapo
from dapo.observe.metrics import read_metrics, series
from dapo.observe.status import read_status

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "evidence.md"
SEEDS = (1, 2, 3)
BATCH = 64  # examples of a step of imitation
SAMPLES = 4  # sampled responses to a held-out problem
ARMS = {"before": "dapo-sft", "after": "dapo", "longer": "longer"}
"""What is evaluated, and the run that it is of."""


@dataclass(frozen=True)
class Scale:
    """Divides the work for a quick look."""

    divide: int = 1
    held_out: int = 200

    def of(self, count: int) -> int:
        return max(1, count // self.divide)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--minutes", type=float, default=math.inf, help="start no run after so long")
    parser.add_argument("--small", action="store_true", help="a fortieth of the work and 16 held-out problems")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "dapo_real_problems")
    parser.add_argument("--out", type=Path, help="default: benchmarks/results; with --small: in WORK")
    options = parser.parse_args(arguments)
    scale = Scale(40, 16) if options.small else Scale()
    out = options.out or (options.work if options.small else HERE / "results") / "real_problems.json"
    refuse_changes(out)
    tasks = [name for name in options.tasks if not skipped(name)]
    end = time.monotonic() + options.minutes * 60
    cells = [(seed, name) for seed in options.seeds for name in tasks]  # whole sets of tasks where it ends early
    for make in (start_and_dapo, longer):  # the comparison last
        for seed, name in cells:
            if time.monotonic() < end:
                make(place(options.work, name, seed, scale), name, seed, scale)
    found = {
        name: {seed: read_seed(place(options.work, name, seed, scale)) for seed in options.seeds} for name in tasks
    }
    command = f"python benchmarks/real_problems.py --work WORK --seeds {' '.join(map(str, options.seeds))}"
    report = {"machine": describe_machine() | {"command": command}, "tasks": summarise(found, TASKS)}
    if not report["tasks"]:
        raise SystemExit("no seed of any task is complete yet; start again to go on")
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(report, indent=1) + "\n")
    out.with_suffix(".md").write_text(markdown(report))
    draw(report, out.with_suffix(".png"))
    if out.parent == HERE / "results":
        PAGE.write_text(with_blocks(PAGE.read_text(), {"real problems": page_block(report)}))
    print(markdown(report))


def skipped(name: str) -> bool:
    reason = real_tasks.missing(name)
    if reason:
        print(f"{name} is left out: {reason}")
    return bool(reason)


def place(work: Path, name: str, seed: int, scale: Scale) -> Path:
    """The folder of a task and seed; other settings of the task or another scale are another folder."""
    task = TASKS[name]
    said = {key: value for key, value in asdict(task).items() if key not in ("hard", "size_of", "worked")}
    if task.worked:
        said["worked"] = task.worked.__name__
    digest = hashlib.sha256(json.dumps([said, asdict(scale)], sort_keys=True).encode()).hexdigest()[:8]
    return work / f"{name}-{digest}" / f"seed{seed}"


# ---------------------------------------------------------------------------------------------------- runs


def recipe(folder: Path, name: str, seed: int, scale: Scale, of: Given) -> dict[str, Any]:
    """One recipe for imitation and for DAPO."""
    task = TASKS[name]
    pattern = real_tasks.pattern(name)
    return {
        "run": {"dir": str(folder / "runs"), "name": "dapo", "seed": seed},
        "model": {"path": str(folder / "base")},
        "data": {"train": of.train, "validation": of.validation},
        "rewards": [{"name": "accuracy", "kind": "exact", **({"pattern": pattern} if pattern else {})}],
        "rollout": {"prompts_per_step": 16, "group_size": 16, "max_response_tokens": task.response_tokens},
        # A start that is nearly all right or all wrong fills no batch: such a step trains on what there is.
        "algorithm": {"dynamic_sampling": {"cap": {"groups": 4, "then": "train_partial"}}},
        "learner": {
            "learning_rate": task.learning_rate,
            "betas": [0.9, 0.95],
            "weight_decay": 0.0,
            "minibatch_prompts": 8,
            "schedule_unit": "optimizer",
        },
        "sft": {
            "train": [{"path": str(folder / "imitated.jsonl")}],
            "validation": [{"path": str(folder / "loss.jsonl")}],
            "epochs": task.epochs,
            "batch_size": BATCH,
            "learning_rate": 3e-3,
            "warmup": 20,
            "every": 100,
        },
        "validation": {"every": 0, "samples": SAMPLES},
        "trainer": {"steps": max(2, scale.of(task.steps))},
        "checkpoint": {"every": 20, "keep": 1},
        "logging": {"console": "quiet", "rollouts": "none", "tokens": 0, "spans": False},
    }


def prepare(folder: Path, name: str, seed: int, scale: Scale) -> Path:
    """Data, random model and recipe of a task and seed; returns the recipe's file."""
    file = folder / "recipe.yaml"
    if file.exists():
        return file
    folder.mkdir(parents=True, exist_ok=True)
    task = TASKS[name]
    of = real_tasks.given(folder, name, seed, scale.of(task.examples), scale.held_out)
    held_out = [problem for problems in of.held_out.values() for problem in problems]
    imitated = real_tasks.without_held_out(of.imitated, held_out)
    real_tasks.write_examples(folder / "imitated.jsonl", imitated)
    real_tasks.write_examples(folder / "more.jsonl", real_tasks.without_held_out(of.more, held_out))
    real_tasks.write_examples(folder / "loss.jsonl", of.loss)
    texts = [f"{problem.problem} {said}" for problem, said in imitated]
    make_text_model(folder / "base", texts, vocabulary=task.vocabulary, phrases=of.phrases, seed=seed, **task.shape)
    facts = {
        "leaks": {
            "imitated": real_tasks.leaks((p for p, said in of.imitated if said), held_out),
            "rewarded": real_tasks.leaks((p for problems in of.rewarded.values() for p in problems), held_out),
        },
        "commonest": {
            key: Counter(p.answer for p in problems).most_common(1)[0][0] for key, problems in of.rewarded.items()
        },
        "boilerplate": of.phrases,
        "parameters": parameters(folder / "base"),
    }
    (folder / "facts.json").write_text(json.dumps(facts))
    unfinished = folder / "recipe.json"
    unfinished.write_text(json.dumps(recipe(folder, name, seed, scale, of)))  # JSON is YAML
    return unfinished.rename(file)


def parameters(model: Path) -> int:
    from safetensors import safe_open

    with safe_open(str(model / "model.safetensors"), framework="numpy") as weights:
        return sum(math.prod(weights.get_slice(key).get_shape()) for key in weights.keys())  # noqa: SIM118


def run(command: str, file: Path, folder: Path, *settings: str) -> None:
    """Make a run, unless it is there: one that ended stays, one that was interrupted goes on."""
    status = read_status(folder / "status.json")
    if status is not None and status.state in ("finished", "unfilled"):
        return
    code = dapo([command, str(file), *settings] if status is None else [command, "--resume", str(folder)])
    status = read_status(folder / "status.json")
    if status is None or status.state not in ("finished", "unfilled"):
        raise SystemExit(f"dapo {command} {file} ended with {code}; start again to go on")


def evaluated(folder: Path, arm: str) -> None:
    """Every answer of an arm's model to the held-out problems, as lines of JSON."""
    answers = folder / f"{arm}.jsonl"
    if answers.exists():
        return
    unfinished = folder / f"{arm}.unfinished.jsonl"
    unfinished.unlink(missing_ok=True)
    if code := dapo(["evaluate", str(folder / "runs" / ARMS[arm]), "--out", str(unfinished)]):
        raise SystemExit(f"dapo evaluate of {folder / 'runs' / ARMS[arm]} ended with {code}")
    unfinished.rename(answers)


def start_and_dapo(folder: Path, name: str, seed: int, scale: Scale) -> None:
    file, runs = prepare(folder, name, seed, scale), folder / "runs"
    run("sft", file, runs / "dapo-sft")
    evaluated(folder, "before")
    run("train", file, runs / "dapo", f"model.path={runs / 'dapo-sft' / 'export'}")
    evaluated(folder, "after")


def longer(folder: Path, name: str, seed: int, scale: Scale) -> None:
    """Imitate further from the start, for as many seconds as DAPO took on it."""
    if not (folder / "after.jsonl").exists():
        return
    runs = folder / "runs"
    steps = steps_in_time(seconds(runs / "dapo"), seconds(runs / ARMS["before"]))
    epochs = -(-steps * BATCH // max(1, sum(1 for _ in (folder / "more.jsonl").open())))
    settings = [f"sft.train=[{{path: {folder / 'more.jsonl'}}}]", f"sft.steps={steps}", f"sft.epochs={epochs}"]
    export = f"model.path={runs / 'dapo-sft' / 'export'}"
    run("sft", folder / "recipe.yaml", runs / "longer", export, "run.name=longer", *settings)
    evaluated(folder, "longer")


def seconds(run: Path) -> list[float]:
    """Of each training step."""
    return [
        value for step, value in zip(*series(read_metrics(run / "metrics.jsonl"), "time/step"), strict=True) if step
    ]


def steps_in_time(of_dapo: Sequence[float], of_imitation: Sequence[float]) -> int:
    """Steps of imitation that take as long as all of DAPO's, 1 at least: by medians, which other work moves least."""
    return max(1, round(statistics.median(of_dapo) * len(of_dapo) / statistics.median(of_imitation)))


# ---------------------------------------------------------------------------------------------------- results


def read_seed(folder: Path) -> dict[str, Any] | None:
    """What is known of a task and seed; None before DAPO's model was evaluated."""
    if not (folder / "after.jsonl").exists():
        return None
    runs = folder / "runs"
    answers = {
        arm: [json.loads(line) for line in (folder / f"{arm}.jsonl").read_text().splitlines()]
        for arm in ARMS
        if (folder / f"{arm}.jsonl").exists()
    }
    facts = json.loads((folder / "facts.json").read_text())
    sft, trained = (read_metrics(runs / name / "metrics.jsonl") for name in ("dapo-sft", "dapo"))
    status = read_status(runs / "dapo" / "status.json")
    return {
        **facts,
        "answers": answers,
        "steps": {arm: len(seconds(runs / run)) for arm, run in ARMS.items() if arm in answers},
        "seconds": {arm: round(sum(seconds(runs / run)), 1) for arm, run in ARMS.items() if arm in answers},
        "loss": {"trained": series(sft, "train/loss")[1][-20:], "held_out": series(sft, "validation/loss")[1][-1]},
        "trained_on": {key: accuracy_in_training(trained, key) for key in facts["commonest"]},
        "ended": status.state if status is not None else "",
    }


def accuracy_in_training(rows: Sequence[dict[str, Any]], name: str) -> float | None:
    """Mean accuracy on training problems of a set in the last ten steps that met it."""
    values = series(rows, f"source/{name}/accuracy")[1] or series(rows, "reward/accuracy")[1]
    return statistics.mean(values[-10:]) if values else None


if __name__ == "__main__":
    main()
