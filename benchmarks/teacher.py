"""Does a teacher teach faster than a reward? SmolLM2-135M-Instruct learns sums both ways, with several seeds.

    python benchmarks/teacher.py --model MODEL --teacher FOLDER --work WORK [--seeds 1,2,3] [--threads 2]

MODEL: the wheel or folder of SmolLM2; FOLDER: an export of what `make chat-model` trains (`dapo export RUN FOLDER`).
Runs are made one after the other, and a call goes on where the last one stopped. The results name the commit.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from chat_model import make, spent_of
from machine import RESULTS, commits_of, describe_machine, refuse_changes

from dapo.observe.metrics import read_metrics

NAME = "teacher"
BY_REWARD = ("validation.every=2", "trainer.steps=16", "checkpoint.every=4")
BY_TEACHER = (  # a step generates less than half as many tokens: nothing is sampled again
    "validation.every=4",
    "trainer.steps=32",
    "checkpoint.every=8",
    "algorithm.dynamic_sampling.mode=off",
    "algorithm.overlong_punishment.enabled=false",
    "algorithm.overlong_filtering=false",
    "rewards.0.weight=0",
)


def curve(run: Path) -> list[tuple[int, float]]:
    """Return (generated tokens so far, held-out accuracy) at each evaluation."""
    tokens, points = 0, []
    for row in read_metrics(run / "metrics.jsonl"):
        tokens = int(row.get("counters/generated_tokens", tokens))
        if "validation/accuracy" in row:
            points.append((tokens, float(row["validation/accuracy"])))
    return points


def tokens_to(points: list[tuple[int, float]], accuracy: float) -> int | None:
    """Return the generated tokens at the first evaluation that reaches the accuracy; None: none does."""
    return next((tokens for tokens, reached in points if reached >= accuracy), None)


def write(found: dict[str, list[dict[str, Any]]], machine: dict[str, Any], out: Path) -> None:
    """Write NAME.json and NAME.md."""
    out.mkdir(parents=True, exist_ok=True)
    (out / f"{NAME}.json").write_text(json.dumps({"machine": machine, "runs": found}, indent=1) + "\n")
    lines = [
        "# A teacher or a reward",
        "",
        f"`benchmarks/teacher.py`: {machine['cpu']}; commit {machine['commit']}, {machine['date']}.",
        "",
        "SmolLM2-135M-Instruct on sums, 100 held-out ones, one sample each. Tokens are those generated for training up "
        "to the first evaluation with at least that accuracy; processor seconds are those of the whole run with its "
        "evaluations.",
        "",
        "| by | seed | accuracy before, best, last, % | tokens to 40 % | 50 % | 60 % | tokens | processor seconds |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for way, runs in found.items():
        for run in runs:
            points = run["curve"]
            reached = [100 * value for _, value in points]
            cells = [f"{tokens:,}" if (tokens := tokens_to(points, at)) else "never" for at in (0.4, 0.5, 0.6)]
            shown = f"{reached[0]:.0f}, {max(reached):.0f}, {reached[-1]:.0f}"
            cells += [f"{points[-1][0]:,}", f"{run['processor']:.0f}"]
            lines.append(f"| {way} | {run['seed']} | {shown} | {' | '.join(cells)} |")
    (out / f"{NAME}.md").write_text("\n".join(lines) + "\n")


def draw(found: dict[str, list[dict[str, Any]]], file: Path) -> None:
    """Draw held-out accuracy by generated tokens, a line a run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6.4, 3.4), layout="constrained")
    for (way, runs), colour in zip(found.items(), ("#c1693c", "#1f5fa8"), strict=True):
        for run in runs:
            tokens, accuracies = zip(*run["curve"], strict=True)
            label = f"by {way}" if run is runs[0] else None
            axes.plot(tokens, [100 * value for value in accuracies], color=colour, linewidth=1.5, label=label)
    axes.set(xlabel="generated tokens", ylabel="held-out sums right, %", ylim=(0, 100))
    axes.set_title(f"SmolLM2-135M-Instruct on sums, {len(runs)} seeds each", fontsize=10)
    axes.legend(loc="lower right")
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=130, facecolor="white")


def main() -> None:
    """Make the runs that are missing, and write what all of them show."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    refuse_changes(options.out)
    ways = {"reward": BY_REWARD, "teacher": (*BY_TEACHER, f"algorithm.teacher.path={options.teacher.resolve()}")}
    found: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
    runs = []
    for seed in options.seeds.split(","):
        for way, settings in ways.items():
            runs.append(options.work.resolve() / f"{way}-seed{seed}")
            make(
                runs[-1],
                [f"model.path={options.model.resolve()}", f"run.seed={seed}", *settings],
                options.threads,
            )
            spent = spent_of(runs[-1])["processor"]
            found[way].append({"seed": seed, "curve": curve(runs[-1]), "processor": spent})
    write(found, describe_machine() | {"commit": commits_of(runs)}, options.out)
    draw(found, options.out / f"{NAME}.png")
    print(f"{options.out / NAME}.md, .json and .png")


if __name__ == "__main__":
    main()
