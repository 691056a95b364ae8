"""Our step against that of TRL's GRPOTrainer: the same model, data, sizes, optimiser and number of steps.

    make bench-trl                                   # all settings, in an environment that holds both
    python benchmarks/against_trl.py --settings quickstart --pairs 1

The two alternate, each run in a process of its own, so that a machine that slows down slows both. The first step of
every run is not counted. Dynamic sampling is off on both sides: TRL has none. Results go to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from statistics import mean, median
from typing import Any

import yaml
from machine import describe_machine, refuse_changes

HERE = Path(__file__).resolve().parent
SIDES = ("trl", "dapo")
PHASES = ("step", "generate", "score", "learn")
PACKAGES = ("torch", "transformers", "trl", "accelerate", "datasets")


@dataclass(frozen=True)
class Setting:
    """One comparison. ``steps`` are rollout batches, the first of which is not counted."""

    name: str
    model: str  # ``warm``: the quickstart's start; ``rambler``: its heavy-tailed sister; two with random weights
    max_response_tokens: int
    cache_length: int
    learning_rate: float
    steps: int
    prompts: int = 32
    group_size: int = 16
    minibatches: int = 4
    reward: str = "answer"
    pattern: str = r"\?"  # for reward ``pattern``: about half of a random model's responses hold this word
    data_seed: int = 1
    seed: int = 1


SETTINGS = (
    Setting("quickstart", "warm", 32, 12, 5e-4, steps=8),
    # Most responses are as short as above, a few go on to the limit. The learning rate is too small to change that.
    Setting("tail", "rambler", 256, 64, 1e-7, steps=3),
    # 3.4 and 25 million parameters. A random model ends a response with probability about 1/80 at each token: lengths
    # from 1 to the limit, mean about 75 and 65.
    Setting("3m-tail", "random", 256, 64, 1e-7, steps=2, prompts=16, minibatches=4, reward="pattern"),
    Setting("25m-tail", "large", 128, 32, 1e-7, steps=2, prompts=8, group_size=8, minibatches=2, reward="pattern"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--settings", nargs="+", choices=[s.name for s in SETTINGS], default=[s.name for s in SETTINGS])
    parser.add_argument("--pairs", type=int, default=3, help="alternations of the two sides")
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=list(SIDES))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--matmul-precision", choices=["highest", "high", "medium"], default="highest")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="overrides of our recipe")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "against_trl.json")
    arguments = parser.parse_args()
    refuse_changes(arguments.out)

    results = []
    with tempfile.TemporaryDirectory() as scratch:
        wanted = {s.model for s in SETTINGS if s.name in arguments.settings}
        models = make_models(wanted, Path(scratch), arguments.threads)
        for setting in SETTINGS:
            if setting.name in arguments.settings:
                results.append(compare(setting, models[setting.model], arguments, Path(scratch)))
    report = {"machine": described(arguments), "results": results}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(report, indent=1) + "\n")
    table = markdown(report)
    arguments.out.with_suffix(".md").write_text(table)
    print(table)


def make_models(wanted: set[str], scratch: Path, threads: int) -> dict[str, Path]:
    """Hugging Face folders by the name that a setting gives them."""
    import torch

    from dapo.models.builtin import ensure_builtin_model
    from dapo.models.tiny import make_tiny_model

    torch.set_num_threads(threads)
    cache = HERE.parent / "runs" / ".models"
    make = {
        "warm": lambda: ensure_builtin_model("builtin/signed-sum", cache),
        "rambler": lambda: ensure_builtin_model("builtin/signed-sum-rambler", cache),
        "random": lambda: make_tiny_model(
            scratch / "random", hidden=256, layers=4, ffn=768, seed=1, initializer_range=0.02
        ),
        "large": lambda: make_tiny_model(
            scratch / "large", hidden=512, layers=8, heads=8, kv_heads=8, ffn=1536, seed=1, initializer_range=0.02
        ),
    }
    return {name: make[name]() for name in wanted}


def compare(setting: Setting, model: Path, arguments: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    """Runs both sides ``pairs`` times, alternating which goes first."""
    common = asdict(setting) | {
        "model": str(model),
        "threads": arguments.threads,
        "matmul_precision": arguments.matmul_precision,
    }
    run = {"trl": run_trl, "dapo": run_dapo}
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in arguments.sides}
    for pair in range(arguments.pairs):
        order = arguments.sides if pair % 2 == 0 else arguments.sides[::-1]
        for side in order:
            folder = Path(tempfile.mkdtemp(dir=scratch))
            start, cpu = time.perf_counter(), os.times()
            result = run[side](common, folder, arguments)
            wall, after = time.perf_counter() - start, os.times()
            result["process_cpu_share"] = (
                after.children_user + after.children_system - cpu.children_user - cpu.children_system
            ) / wall
            runs[side].append(summary(result))
            seconds = runs[side][-1]["step"]
            print(f"{setting.name} pair {pair + 1} {side}: {seconds:.3f} s a step", file=sys.stderr, flush=True)
    return {"setting": asdict(setting), "runs": runs, "ratios": ratios(runs)}


def run_trl(common: dict[str, Any], folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    (folder / "setting.json").write_text(json.dumps(common))
    execute([str(HERE / "trl_worker.py"), str(folder / "setting.json"), str(folder / "out.json")], arguments.threads)
    result: dict[str, Any] = json.loads((folder / "out.json").read_text())
    return result


def run_dapo(common: dict[str, Any], folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe(common, folder)))
    execute(["-m", "dapo", "train", str(folder / "recipe.yaml"), *arguments.set], arguments.threads)
    rows = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    rows = [row for row in rows if "time/generate" in row]
    steps = [
        {
            # TRL neither evaluates nor saves here
            "step": row["time/step"] - row.get("time/evaluate", 0.0) - row.get("time/save", 0.0),
            "generate": row["time/generate"],
            "score": row["time/score"] + row["time/judge"],
            "learn": row["time/learn"],
            "generated_tokens": row["sampling/generated_tokens"],
            "accuracy": row["reward/accuracy"],
        }
        for row in rows
    ]
    return {"steps": steps, "peak_rss_mib": max(row["memory/peak_rss_mib"] for row in rows)}


def recipe(common: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Our side's recipe, key by key what ``trl_worker.py`` gives to GRPOConfig."""
    by_answer = common["reward"] == "answer"
    return {
        "preset": "dapo",
        "run": {"dir": str(folder), "name": "run", "seed": common["seed"], "threads": common["threads"]},
        "model": {"path": common["model"], "device": "cpu", "matmul_precision": common["matmul_precision"]},
        "data": {
            "train": [{"task": "signed_sum", "seed": common["data_seed"], "size": common["prompts"] * common["steps"]}],
            "prompt": "raw",
            "shuffle": False,
        },
        "rewards": [
            {"name": "accuracy", "kind": "task"}
            if by_answer
            else {"name": "accuracy", "kind": "regex", "pattern": common["pattern"]}
        ],
        "rollout": {
            "prompts_per_step": common["prompts"],
            "group_size": common["group_size"],
            "max_response_tokens": common["max_response_tokens"],
        },
        "algorithm": {
            "dynamic_sampling": {"mode": "off"},
            "overlong_punishment": {"cache_length": common["cache_length"]},
            "overlong_filtering": True,
            "truncated_vote": True,
            "advantage": {"eps": 1e-4},
        },
        "learner": {
            "learning_rate": common["learning_rate"],
            "betas": [0.9, 0.95],
            "weight_decay": 0.0,
            "minibatch_prompts": common["prompts"] // common["minibatches"],
            "schedule_unit": "optimizer",
            "warmup": 10,
        },
        "validation": {"every": 0},
        "trainer": {"steps": common["steps"]},
        "checkpoint": {"every": 0},
        "logging": {"rollouts": "none", "console": "quiet"},
    }


def execute(arguments: list[str], threads: int) -> None:
    environment = os.environ | {
        "OMP_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Means over the counted steps: seconds by phase, tokens, tokens per second."""
    counted = result["steps"][1:]
    row: dict[str, Any] = {phase: mean(step[phase] for step in counted) for phase in PHASES}
    row["generated_tokens"] = mean(step["generated_tokens"] for step in counted)
    row["generated_per_second"] = row["generated_tokens"] / row["generate"]
    row["tokens_per_second"] = row["generated_tokens"] / row["step"]
    row["accuracy"] = mean(step["accuracy"] for step in counted)
    row["peak_rss_mib"] = result["peak_rss_mib"]
    row["process_cpu_share"] = result["process_cpu_share"]  # below about 0.95 x threads: the machine was not idle
    row["steps"] = result["steps"]
    return row


def ratios(runs: dict[str, list[dict[str, Any]]]) -> dict[str, list[float]]:
    """[median, least, greatest] over the pairs; above 1: ours is faster (or smaller)."""
    if set(runs) != set(SIDES):
        return {}
    pairs = list(zip(runs["trl"], runs["dapo"], strict=True))
    faster = {
        "step": [t["step"] / d["step"] for t, d in pairs],
        "generation_rate": [d["generated_per_second"] / t["generated_per_second"] for t, d in pairs],
        "learning": [(t["score"] + t["learn"]) / (d["score"] + d["learn"]) for t, d in pairs],
        "tokens_per_second": [d["tokens_per_second"] / t["tokens_per_second"] for t, d in pairs],
        "peak_rss": [t["peak_rss_mib"] / d["peak_rss_mib"] for t, d in pairs],
    }
    return {name: [median(values), min(values), max(values)] for name, values in faster.items()}


def described(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the machine, with this comparison's own settings and packages."""
    return describe_machine() | {
        "threads": arguments.threads,
        "matmul_precision": arguments.matmul_precision,
        "packages": {name: version(name) for name in PACKAGES},
    }


def markdown(report: dict[str, Any]) -> str:
    machine = report["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    lines = [
        "# Against TRL's GRPOTrainer",
        "",
        f"{machine['cpu']}, {machine['threads']} thread(s), matmul precision {machine['matmul_precision']}; Python "
        f"{machine['python']}, {packages}; commit {machine['commit']}, {machine['date']}.",
        "",
        f"`{machine['command']}`",
        "",
        "Seconds per step (mean over the counted steps; median over runs). `score` holds rewards, advantages and, on "
        "TRL's side, old log-probabilities. Ratios are TRL / ours (rates: ours / TRL): median [least, greatest] of the "
        "pairs.",
    ]
    for result in report["results"]:
        lines += ["", f"## {result['setting']['name']}", "", _settings_line(result["setting"]), ""]
        lines += _phase_table(result["runs"])
        lines += [""] + [
            f"- {name.replace('_', ' ')}: **{middle:.2f}** [{low:.2f}, {high:.2f}]"
            for name, (middle, low, high) in result["ratios"].items()
        ]
    return "\n".join(lines) + "\n"


def _settings_line(setting: dict[str, Any]) -> str:
    return (
        f"{setting['prompts']} prompts x {setting['group_size']} responses, {setting['minibatches']} optimiser steps, "
        f"at most {setting['max_response_tokens']} tokens, learning rate {setting['learning_rate']}, "
        f"{setting['steps'] - 1} counted steps a run, model `{setting['model']}`."
    )


def _phase_table(runs: dict[str, list[dict[str, Any]]]) -> list[str]:
    columns = {
        "step": "{:.3f}",
        "generate": "{:.3f}",
        "score": "{:.3f}",
        "learn": "{:.3f}",
        "generated_per_second": "{:,.0f}",
        "tokens_per_second": "{:,.0f}",
        "generated_tokens": "{:,.0f}",
        "accuracy": "{:.3f}",
        "peak_rss_mib": "{:,.0f}",
        "process_cpu_share": "{:.2f}",
    }
    lines = ["| | " + " | ".join(columns).replace("_", " ") + " |", "| --- " * (len(columns) + 1) + "|"]
    for side, results in runs.items():
        cells = [form.format(median(run[key] for run in results)) for key, form in columns.items()]
        lines.append(f"| {side} | " + " | ".join(cells) + " |")
    return lines


if __name__ == "__main__":
    main()
