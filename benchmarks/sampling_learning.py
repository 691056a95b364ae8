"""What dynamic sampling does for learning: held-out accuracy at equal numbers of generated tokens, over several seeds.

    python benchmarks/sampling_learning.py --work WORK                    # all arms, five seeds: half an hour
    python benchmarks/sampling_learning.py --work WORK --minutes 4        # as far as that goes; the same line goes on
    python benchmarks/sampling_learning.py --work WORK --seeds 2 --steps 20 --arms default off

Every run is ``dapo train`` on the quickstart, from one base model; arms differ in dynamic sampling's settings only,
seeds in the order of the prompts and in what is sampled. Accuracies are read off each curve at common budgets of
generated tokens, and compared seed by seed. Finished runs are kept in WORK and not repeated, unless the package or a
setting changed. Results go to ``benchmarks/results``, with a picture.
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
from numpy.typing import NDArray

from dapo.config.schema import DynamicSampling
from dapo.models.builtin import ensure_builtin_model

HERE = Path(__file__).resolve().parent
REFERENCE = "default"
LOOKAHEADS = (0.0, 0.25, 0.5, 1.0)
Floats = NDArray[np.float64]
Interval = dict[str, float | None]

# 97.5 % quantile of Student's t by degrees of freedom, from 1.
T_QUANTILES = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11)


def arms_and_panels() -> tuple[dict[str, dict[str, Any]], dict[str, list[str]]]:
    """Settings of dynamic sampling by the arm's name, and the arms that each panel of the picture shows."""
    arms: dict[str, dict[str, Any]] = {
        REFERENCE: {},
        "off": {"mode": "off"},
        "discard": {"surplus": "discard", "unfinished": "discard"},
        "discard and drain": {"surplus": "discard", "unfinished": "drain"},
    }
    panels = {
        "Dynamic sampling or not": [REFERENCE, "off"],
        "What is left at the end of a step": [REFERENCE, "discard", "discard and drain"],
    }
    if "lookahead" in DynamicSampling.model_fields:
        default = DynamicSampling.model_fields["lookahead"].default
        others = {f"lookahead {value:g}": {"lookahead": value} for value in LOOKAHEADS if value != default}
        arms |= others
        panels["Lookahead"] = [REFERENCE, *others]
    return arms, panels


def main() -> None:
    arms, panels = arms_and_panels()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arms", nargs="+", choices=list(arms), default=list(arms))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument(
        "--steps", type=int, default=60, help="training steps; without dynamic sampling half as many more"
    )
    parser.add_argument("--problems", type=int, default=512, help="held-out problems, two sampled responses each")
    parser.add_argument("--level", type=float, default=0.8, help="accuracy whose price in tokens is compared")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after so long")
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "dapo_sampling_learning")
    parser.add_argument("--models", type=Path, default=HERE.parent / "runs" / ".models", help="cache of base models")
    parser.add_argument("--out", type=Path, default=HERE / "results" / "sampling_learning.json")
    options = parser.parse_args()
    refuse_changes(options.out)

    model = ensure_builtin_model("builtin/signed-sum", options.models)
    chosen = {name: arms[name] for name in arms if name in options.arms}
    curves = collect_curves(chosen, model, options)
    report: dict[str, Any] = {
        "machine": describe_machine(),
        "options": {"steps": options.steps, "problems": options.problems},
    }
    report |= summarise(curves, options.level)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=1) + "\n")
    options.out.with_suffix(".md").write_text(markdown(report))
    shown = {title: [name for name in names if name in curves] for title, names in panels.items()}
    draw(curves, report["grid"], {title: names for title, names in shown.items() if len(names) > 1}, options.out)
    print(markdown(report))


# ---------------------------------------------------------------------- runs


def collect_curves(
    arms: dict[str, dict[str, Any]], model: Path, options: argparse.Namespace
) -> dict[str, dict[int, Curve]]:
    """Arm -> seed -> curve; seed by seed, so that an early end leaves whole sets of arms."""
    started, curves = time.monotonic(), {name: dict[int, Curve]() for name in arms}
    for seed in range(1, options.seeds + 1):
        for name, settings in arms.items():
            steps = options.steps * 3 // 2 if settings.get("mode") == "off" else options.steps
            overrides = run_overrides(settings, model, seed, steps, options.problems)
            may_run = time.monotonic() - started < options.minutes * 60
            curve = cached_run(overrides, options.work, may_run, curve_of)
            if curve is not None:
                curves[name][seed] = curve
                print(f"seed {seed}, {name}: {curve['accuracy'][-1]:.3f} after {curve['tokens'][-1]:,.0f} tokens")
    # Pairs need both sides: only seeds that every arm has count.
    common = set.intersection(*(set(by_seed) for by_seed in curves.values()))
    if not common:
        raise SystemExit("no seed is complete yet; start again to go on")
    return {name: {seed: by_seed[seed] for seed in sorted(common)} for name, by_seed in curves.items()}


def run_overrides(settings: dict[str, Any], model: Path, seed: int, steps: int, problems: int) -> list[str]:
    sampling = [f"algorithm.dynamic_sampling.{key}={value}" for key, value in settings.items()]
    return [*measured_run(model, seed, steps, problems, every=5), *sampling]


def curve_of(rows: Rows) -> Curve:
    """What is kept of a run's metrics; evaluation counts for no seconds."""
    evaluated = [row for row in rows if "validation/accuracy" in row]
    last = rows[-1]
    return {
        "steps": [row["step"] for row in evaluated],
        "tokens": [row.get("counters/generated_tokens", 0.0) for row in evaluated],
        "accuracy": [row["validation/accuracy"] for row in evaluated],
        "decode_steps": last["counters/decode_steps"] / last["step"],
        "seconds": sum(row["time/step"] - row.get("time/evaluate", 0.0) for row in rows) / last["step"],
    }


# ---------------------------------------------------------------------- statistics


def interval(values: Floats) -> Interval:
    """Mean over seeds and its 95 % interval (Student's t); None where a seed has no value, or there is only one."""
    n, mean = len(values), float(values.mean())
    if np.isnan(mean):
        return {"mean": None, "low": None, "high": None}
    if n < 2:
        return {"mean": mean, "low": None, "high": None}
    quantile = T_QUANTILES[n - 2] if n - 2 < len(T_QUANTILES) else 2.1
    reach = quantile * float(values.std(ddof=1)) / n**0.5
    return {"mean": mean, "low": mean - reach, "high": mean + reach}


def at_budgets(by_seed: dict[int, Curve], grid: Floats, of: str = "tokens") -> Floats:
    """Accuracy [seeds, budgets], interpolated between evaluations; budgets of ``tokens`` or ``steps``."""
    return np.array([np.interp(grid, curve[of], curve["accuracy"]) for curve in by_seed.values()])


def price_of(curve: Curve, level: float) -> float:
    """Generated tokens at which the curve first reaches ``level``; nan where it does not."""
    tokens, accuracy = np.array(curve["tokens"]), np.array(curve["accuracy"])
    above = np.flatnonzero(accuracy >= level)
    if not len(above):
        return float("nan")
    i = int(above[0])
    if i == 0:
        return float(tokens[0])
    share = (level - accuracy[i - 1]) / (accuracy[i] - accuracy[i - 1])
    return float(tokens[i - 1] + share * (tokens[i] - tokens[i - 1]))


def summarise(curves: dict[str, dict[int, Curve]], level: float) -> dict[str, Any]:
    """Accuracy of each arm at common budgets, differences from the reference, and the price of ``level``."""
    every = [curve for by_seed in curves.values() for curve in by_seed.values()]
    end, steps = (min(curve[of][-1] for curve in every) for of in ("tokens", "steps"))
    grid, budgets = np.linspace(0.0, end, 101), end * np.array([0.25, 0.5, 0.75, 1.0])
    reference = curves.get(REFERENCE)
    arms: dict[str, Any] = {}
    for name, by_seed in curves.items():
        found = at_budgets(by_seed, budgets)
        prices = np.array([price_of(curve, level) for curve in by_seed.values()])
        arms[name] = {
            "accuracy": [interval(column) for column in found.T],
            "area": interval(at_budgets(by_seed, grid).mean(axis=1)),
            "price": interval(prices),
            "at_steps": interval(at_budgets(by_seed, np.array([steps]), of="steps")[:, 0]),
            "decode_steps": float(np.mean([curve["decode_steps"] for curve in by_seed.values()])),
            "seconds": float(np.mean([curve["seconds"] for curve in by_seed.values()])),
        }
        if reference is not None and name != REFERENCE:
            own = np.array([price_of(curve, level) for curve in reference.values()])
            arms[name]["against_reference"] = {
                "accuracy": [interval(column) for column in (at_budgets(reference, budgets) - found).T],
                "area": interval((at_budgets(reference, grid) - at_budgets(by_seed, grid)).mean(axis=1)),
                "price_ratio": interval(prices / own),
            }
    seeds = list(next(iter(curves.values())))
    return {
        "seeds": seeds,
        "level": level,
        "steps": steps,
        "budgets": budgets.tolist(),
        "grid": grid.tolist(),
        "arms": arms,
    }


# ---------------------------------------------------------------------- report


def markdown(report: dict[str, Any]) -> str:
    machine, options, level = report["machine"], report["options"], report["level"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    budgets = [f"{budget / 1e3:.0f} k" for budget in report["budgets"]]
    lines = [
        "# Dynamic sampling and learning",
        "",
        f"{machine['cpu']}, 1 thread; Python {machine['python']}, {packages}; commit {machine['commit']}, "
        f"{machine['date']}.",
        "",
        f"`{machine['command']}`",
        "",
        f"{len(report['seeds'])} seeds, {options['steps']} training steps (a half more with dynamic sampling off), "
        f"{options['problems']} held-out problems, 2 samples each. Mean over seeds with its 95 % interval.",
        "",
        "## Held-out accuracy, %, after so many generated tokens",
        "",
    ]
    last = [f"1,000 tokens to {level:.0%}", f"after {report['steps']} steps", "decode steps a step", "seconds a step"]
    rows = [["", *budgets, "mean over the run", *last]]
    for name, arm in report["arms"].items():
        cells = [_cell(value, 100, 1) for value in [*arm["accuracy"], arm["area"]]]
        cells += [_cell(arm["price"], 1e-3, 0), _cell(arm["at_steps"], 100, 1)]
        rows.append([name, *cells, f"{arm['decode_steps']:.1f}", f"{arm['seconds']:.3f}"])
    lines += [*_table(rows), "", f"## `{REFERENCE}` less the arm, percentage points, seed by seed", ""]
    rows = [["", *budgets, "mean over the run", f"tokens to {level:.0%}, arm over `{REFERENCE}`"]]
    for name, arm in report["arms"].items():
        if "against_reference" in arm:
            found = arm["against_reference"]
            cells = [_cell(value, 100, 1, sign=True) for value in [*found["accuracy"], found["area"]]]
            rows.append([name, *cells, _cell(found["price_ratio"], 1, 2)])
    return "\n".join([*lines, *_table(rows)]) + "\n"


def _table(rows: list[list[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "| --- " * len(rows[0]) + "|", *lines[1:]]


def _cell(value: Interval, factor: float, digits: int, sign: bool = False) -> str:
    form = f"{'+' if sign else ''}.{digits}f"
    mean, low, high = (None if part is None else format(part * factor, form) for part in value.values())
    if mean is None:
        return "not reached"
    return mean if low is None else f"{mean} [{low}, {high}]"


def draw(curves: dict[str, dict[int, Curve]], grid: list[float], panels: dict[str, list[str]], out: Path) -> None:
    """Accuracy against generated tokens, the mean over seeds with its 95 % interval; beside ``out`` as .png."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    colours = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#6B7280")  # Okabe and Ito's, told apart in grey too
    figure = Figure(figsize=(4.6 * max(1, len(panels)), 4.2), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    tokens = np.array(grid)
    axes = figure.subplots(1, max(1, len(panels)), sharey=True, squeeze=False)[0]
    for ax, (title, names) in zip(axes, panels.items(), strict=False):
        for name, colour in zip(names, colours, strict=False):
            found = [interval(column) for column in at_budgets(curves[name], tokens).T]
            ax.plot(tokens / 1e3, [100 * (value["mean"] or 0.0) for value in found], color=colour, label=name)
            low, high = ([100 * (value[key] or 0.0) for value in found] for key in ("low", "high"))
            if found[0]["low"] is not None:
                ax.fill_between(tokens / 1e3, low, high, color=colour, alpha=0.15, linewidth=0)
        ax.set_title(title)
        ax.set_xlabel("generated tokens, thousands")
        ax.grid(alpha=0.3)
        ax.legend(frameon=False, loc="lower right")
    axes[0].set_ylabel("held-out accuracy, %")
    figure.savefig(out.with_suffix(".png"))


if __name__ == "__main__":
    main()
