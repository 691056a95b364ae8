"""Generation beside learning, measured: whole runs of the quickstart, engine and learner in processes of their own.

    python benchmarks/overlap.py --work WORK                 # five seeds, five modes of 60 steps
    python benchmarks/overlap.py --work WORK --minutes 10    # as far as that goes; the same line goes on
    python benchmarks/overlap.py --work WORK --small         # two seeds of 15 steps: a quarter of an hour on two cores

Modes: ``turns`` (``rollout.max_staleness: 0``, our synchronous mode: one process, whose engine computes with the
learner's tensors), S = 1, 2 and 4, and ``drop``: S = 2 without admission, where groups that grew too old are thrown
away. Seeds differ in the order of the prompts and in what is sampled; all start from one base model. Runs of one seed
follow each other, and every number is compared within its seed, since a machine that does other work is faster at one
time than at another. Finished runs are kept in WORK. Results go to ``benchmarks/results``.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from cached_runs import Curve, Rows, cached_run, measured_run
from machine import describe_machine, refuse_changes
from sampling_learning import Floats, at_budgets, interval

from dapo.models.builtin import ensure_builtin_model

HERE = Path(__file__).resolve().parent
DROP = ("rollout.max_staleness=2", "algorithm.dynamic_sampling.on_max_age=drop")
MODES: dict[str, tuple[str, ...]] = {
    "turns": (),
    "S = 1": ("rollout.max_staleness=1",),
    "S = 2": ("rollout.max_staleness=2",),
    "S = 4": ("rollout.max_staleness=4",),
    "drop": (*DROP, "algorithm.dynamic_sampling.lookahead=2"),
}
BUDGETS = (0.25, 0.5, 0.75, 1.0)
"""Of what the shortest curve of a seed reaches, in tokens and in seconds."""
TURN_STEPS = 8  # responses of the quickstart have 10 tokens: turns of 64 would end when all do
WARM_UP = 3  # steps that count for no seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--problems", type=int, default=256, help="held-out problems, two sampled responses each")
    parser.add_argument("--every", type=int, default=5, help="steps between two evaluations")
    parser.add_argument("--small", action="store_true", help="two seeds of 15 steps, 64 problems")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after so long")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "dapo_overlap")
    parser.add_argument("--models", type=Path, default=HERE.parent / "runs" / ".models", help="cache of base models")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "overlap.json")
    options = parser.parse_args()
    refuse_changes(options.out)
    if options.small:
        options.seeds, options.steps, options.problems = 2, 15, 64
    model = ensure_builtin_model("builtin/signed-sum", options.models)
    curves = collect(model, options)
    sizes = {"steps": options.steps, "problems": options.problems, "turn_steps": TURN_STEPS, "warm_up": WARM_UP}
    report = {"machine": describe_machine(), "options": sizes, "seeds": sorted(curves), **summarise(curves)}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))


# ---------------------------------------------------------------------- runs


def collect(model: Path, options: argparse.Namespace) -> dict[int, dict[str, Curve]]:
    """Seed -> mode -> curve, of the seeds that have every mode."""
    started, found = time.monotonic(), dict[int, dict[str, Curve]]()
    for seed in range(1, options.seeds + 1):
        for mode, settings in MODES.items():
            overrides = run_overrides(settings, model, seed, options)
            may_run = time.monotonic() - started < options.minutes * 60
            curve = cached_run(overrides, options.work, may_run, curve_of)
            if curve is not None:
                found.setdefault(seed, {})[mode] = curve
                print(f"seed {seed}, {mode}: {curve['step_seconds']:.2f} s a step", flush=True)
    whole = {seed: by_mode for seed, by_mode in found.items() if len(by_mode) == len(MODES)}
    if not whole:
        raise SystemExit("no seed is complete yet; start again to go on")
    return whole


def run_overrides(settings: tuple[str, ...], model: Path, seed: int, options: argparse.Namespace) -> list[str]:
    beside = (f"rollout.turn_steps={TURN_STEPS}",) if settings else ()
    return [*measured_run(model, seed, options.steps, options.problems, options.every), *beside, *settings]


def curve_of(rows: Rows) -> Curve:
    """What is kept of a run's metrics; evaluation counts for no seconds."""
    seconds = [row["time/step"] - row.get("time/evaluate", 0.0) for row in rows]
    elapsed = np.cumsum(seconds)
    evaluated = [n for n, row in enumerate(rows) if "validation/accuracy" in row]
    late = [n for n, row in enumerate(rows) if row["step"] > WARM_UP]
    total = {
        key: sum(rows[n].get(key, 0.0) for n in late)
        for key in ("time/engine_idle", "time/learner_idle", "time/step", "sampling/generated_tokens")
    }
    lost = sum(rows[n].get(f"cost/{fate}_tokens", 0.0) for n in late for fate in ("discarded", "expired"))
    return {
        "tokens": [rows[n].get("counters/generated_tokens", 0.0) for n in evaluated],
        "seconds": [float(elapsed[n]) for n in evaluated],
        "accuracy": [rows[n]["validation/accuracy"] for n in evaluated],
        "step_seconds": sum(seconds[n] for n in late) / len(late),
        "engine_idle": total["time/engine_idle"] / total["time/step"],
        "learner_idle": total["time/learner_idle"] / total["time/step"],
        "discarded": lost / total["sampling/generated_tokens"],
        "age_mean": float(np.mean([rows[n]["policy/staleness_mean"] for n in late])),
        "age_max": max(rows[n]["policy/staleness_max"] for n in late),
    }


# ---------------------------------------------------------------------- results


def summarise(curves: dict[int, dict[str, Curve]]) -> dict[str, Any]:
    """For each mode: means over seeds with their 95 % intervals; seconds and accuracies against ``turns``."""
    seeds = sorted(curves)
    report: dict[str, Any] = {"modes": {}}
    for mode in MODES:
        own, turns = ([curves[seed][name] for seed in seeds] for name in (mode, "turns"))
        ratios = [one["step_seconds"] / other["step_seconds"] for one, other in zip(own, turns, strict=True)]
        found: dict[str, Any] = {"seconds_over_turns": interval(np.array(ratios))}
        for key in ("step_seconds", "engine_idle", "learner_idle", "discarded", "age_mean"):
            found[key] = interval(np.array([curve[key] for curve in own]))
        found["age_max"] = max(curve["age_max"] for curve in own)
        for of in ("tokens", "seconds"):
            found[f"accuracy_at_{of}"] = [interval(column) for column in accuracies(curves, mode, of).T]
        report["modes"][mode] = found
    return report


def accuracies(curves: dict[int, dict[str, Curve]], mode: str, of: str) -> Floats:
    """[seeds, budgets]: of each seed at shares of what its shortest curve reaches."""
    rows = []
    for seed in sorted(curves):
        reach = min(curve[of][-1] for curve in curves[seed].values())
        rows.append(at_budgets({seed: curves[seed][mode]}, np.array(BUDGETS) * reach, of)[0])
    return np.array(rows)


def markdown(report: dict[str, Any]) -> str:
    machine, options = report["machine"], report["options"]
    lines = [
        "# Generation beside learning, measured\n",
        f"Made by `{machine['command']}` on {machine['cpu']}, commit {machine['commit']}, {machine['date']}: "
        f"{len(report['seeds'])} seeds, {options['steps']} steps of the quickstart (0.1 million parameters). Mean over "
        "seeds with its 95 % interval, from two seeds on. `turns` is one process on one core, the other modes are two "
        "processes (and the driver) that share the machine's cores: seconds say nothing about devices of their own. "
        "Evaluation is left out of all seconds, and so are the first "
        f"{options['warm_up']} steps.\n",
        "| mode | seconds per step over `turns` | engine idle | learner idle | discarded tokens | mean age | largest |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for mode, found in report["modes"].items():
        shares = (_cell(found[key], 100, 0, "%") for key in ("engine_idle", "learner_idle", "discarded"))
        ages = f"{_cell(found['age_mean'], 1, 2)} | {found['age_max']}"
        lines.append(f"| {mode} | {_cell(found['seconds_over_turns'], 1, 2)} | {' | '.join(shares)} | {ages} |")
    for of, said in (("tokens", "generated tokens"), ("seconds", "seconds")):
        lines += [
            f"\nHeld-out accuracy (%) at equal {said}, as shares of what the shortest run of a seed has\n",
            "| mode | " + " | ".join(f"{budget:.0%}" for budget in BUDGETS) + " |",
            "| --- " * (len(BUDGETS) + 1) + "|",
        ]
        for mode, found in report["modes"].items():
            lines.append(f"| {mode} | " + " | ".join(_cell(v, 100, 1) for v in found[f"accuracy_at_{of}"]) + " |")
    return "\n".join(lines) + "\n"


def _cell(value: dict[str, float | None], factor: float, digits: int, unit: str = "") -> str:
    mean, low, high = (None if part is None else f"{part * factor:.{digits}f}" for part in value.values())
    return f"{mean}{unit}" if low is None else f"{mean}{unit} [{low}, {high}]"


if __name__ == "__main__":
    main()
