"""Measures of the runs of real_model.py, their differences seed by seed, and the tables."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Run = dict[str, Any]
"""What is kept of a run: see ``make_ours`` of real_model.py."""
Budgets = Mapping[str, float]
"""What all arms of a seed reached: ``step``, ``tokens`` (generated) and ``seconds`` (of training steps)."""

T_99 = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499)
"""99.5 % quantile of Student's t by degrees of freedom, from 1: half of a two-sided 99 % interval."""
FEWEST = 4
"""Seeds of which a difference is claimed."""
LAST = 4
"""Training steps whose mean is the value at the end."""
TITLES = {"first": "", "again": ", again with other seeds"}


class Measure(NamedTuple):
    """A number of a run, and how it is printed."""

    of: Callable[[Run, Budgets], float]
    factor: float = 1.0
    digits: int = 1
    unit: str = ""


def at(axis: str, name: str) -> Measure:
    """Return a measure of evaluations, in %: on the line between the two evaluations around the budget."""

    def of(run: Run, budgets: Budgets) -> float:
        places, values = ([one[key] for one in run["evaluations"]] for key in (axis, name))
        return float(np.interp(budgets[axis], places, values))

    return Measure(of, factor=100, unit="%")


def mean_of(name: str, first: int | None, last: int | None, factor: float = 1.0, unit: str = "") -> Measure:
    """Return the mean of a metric over training steps ``first`` to ``last``, both included, up to the common step.

    Args:
        name: of the metric, as ``KEPT`` of real_model.py has it. Steps without it are left out.
        first: None: the last four steps.
        last: None: the common step.
        factor: of the printed number.
        unit: of the printed number.
    """

    def of(run: Run, budgets: Budgets) -> float:
        steps = run["steps"][name][: int(budgets["step"])]
        chosen = steps[-LAST:] if first is None else steps[first - 1 : last]
        values = [one for one in chosen if one is not None]
        return float(np.mean(values)) if values else float("nan")

    return Measure(of, factor, digits=1 if unit == "%" else 3, unit=unit)


def given_up(kind: str | None = None) -> Measure:
    """Return a count: held-out problems with right responses in the first half of the evaluations, none in the second.

    Evaluations up to the common step count. ``kind``: sums, differences, or None for both.
    """

    def of(run: Run, budgets: Budgets) -> float:
        right = [one["right"] for one in run["evaluations"] if one["step"] <= budgets["step"]]
        half = len(right) // 2
        early, late = (np.sum(part, axis=0) for part in (right[:half], right[half:]))
        chosen = np.array([kind in (None, one) for one in run["kinds"][: len(late)]])
        return float(np.sum((early > 0) & (late == 0) & chosen))

    return Measure(of)


MEASURES = {
    "entropy of steps 8 to 16": mean_of("entropy", 8, 16, unit="nats"),
    "entropy at the end": mean_of("entropy", None, None, unit="nats"),
    "accuracy": at("step", "accuracy"),
    "greedy": at("step", "greedy"),
    "pass@8": at("step", "pass@8"),
    **{
        f"{name} at equal {axis}": at(axis, name)
        for axis in ("tokens", "seconds")
        for name in ("accuracy", "greedy", "pass@8")
    },
    "given up": given_up(),
    "given up sums": given_up("sums"),
    "given up differences": given_up("differences"),
    "clipped high": mean_of("clip_high", 1, None, 100, "%"),
    "clipped low": mean_of("clip_low", 1, None, 100, "%"),
    "kept groups": mean_of("kept", 1, None, 100, "%"),
    "truncated": mean_of("truncated", 1, None, 100, "%"),
    "tokens": Measure(at("step", "tokens").of, 1e-3, unit="thousands"),
    "seconds": Measure(at("step", "seconds").of, digits=0, unit="of a processor"),
}
"""Measures by their names in real_model.yaml. Those without "at equal" are taken at the common training step."""


def budgets_of(runs: Sequence[Run]) -> Budgets:
    """Return what the arm of a seed that reached least has reached, by axis.

    Steps are those that the arms were to make. A run that ended early, since too few groups could be kept, counts with
    its last values.
    """
    steps = min(run["settings"]["trainer.steps"] for run in runs)
    return {"step": steps} | {axis: min(run["evaluations"][-1][axis] for run in runs) for axis in ("tokens", "seconds")}


def interval(values: Sequence[float]) -> dict[str, Any]:
    """Return mean, 99 % interval by Student's t, and whether it is clear of 0.

    With one value there is no interval. With fewer than four nothing is shown.
    """
    n, mean = len(values), float(np.mean(values))
    found: dict[str, Any] = {"mean": mean, "low": None, "high": None, "shown": False, "seeds": list(values)}
    if n < 2:
        return found
    half = T_99[n - 2] * float(np.std(values, ddof=1)) / n**0.5
    return found | {"low": mean - half, "high": mean + half, "shown": n >= FEWEST and abs(mean) > half}


def compare(study: Mapping[str, Any], runs: Sequence[Run]) -> dict[str, Any]:
    """Return a study's measures, and its differences seed by seed, over the seeds that all of its arms have.

    Args:
        study: arms, differences, claims and beside, as real_model.yaml has them.
        runs: finished runs of one list of seeds.
    """
    by_seed: dict[int, dict[str, Run]] = {}
    for run in runs:
        by_seed.setdefault(run["seed"], {})[run["arm"]] = run
    whole = {seed: arms for seed, arms in sorted(by_seed.items()) if set(study["arms"]) <= set(arms)}
    budgets = {seed: budgets_of(list(arms.values())) for seed, arms in whole.items()}
    values = {
        arm: {
            name: [MEASURES[name].of(arms[arm], budgets[seed]) for seed, arms in whole.items()]
            for name in [*study["claims"], *study["beside"]]
        }
        for arm in study["arms"]
    }
    differences = [
        {
            "arms": [arm, less],
            **{
                kind: {
                    name: interval([a - b for a, b in zip(values[arm][name], values[less][name], strict=True)])
                    for name in study[kind]
                }
                for kind in ("claims", "beside")
            },
        }
        for arm, less in study["differences"]
        if whole
    ]
    return {
        "note": study.get("note"),
        "seeds": list(whole),
        "mixed": [seed for seed, arms in whole.items() if len({run["commit"] for run in arms.values()}) > 1],
        "commits": sorted({run["commit"] for arms in whole.values() for run in arms.values()}),
        "unfilled": [[run["arm"], run["seed"]] for run in runs if run["state"] == "unfilled"],
        "arms": values,
        "differences": differences,
        "shown": [
            [*one["arms"], name] for one in differences for name, found in one["claims"].items() if found["shown"]
        ],
        "curves": {
            arm: [{key: arms[arm][key] for key in ("seed", "evaluations", "steps")} for arms in whole.values()]
            for arm in study["arms"]
        },
    }


# ---------------------------------------------------------------------- tables and picture


def write(report: Mapping[str, Any], runs: Sequence[Run], out: Path, name: str) -> None:
    """Write NAME.json (the runs, a line each), NAME.md and a picture of each study, and print the tables."""
    out.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(map(json.dumps, runs))
    (out / f"{name}.json").write_text(f'{{"machine": {json.dumps(report["machine"])}, "runs": [\n{lines}\n]}}\n')
    text = page(report, name)
    (out / f"{name}.md").write_text(text)
    for study, lists in report["studies"].items():
        draw(lists["first"]["curves"], out / picture_of(study, name))
    print(text)


def picture_of(study: str, name: str) -> str:
    return f"{name}_{'_'.join(re.findall('[a-z]+', study.lower()))}.png"


def draw(arms: Mapping[str, Sequence[Run]], file: Path) -> None:
    """Draw a study, a line for each seed: entropy, and accuracy by tokens and by seconds."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(11, 3), layout="constrained")
    for n, (arm, runs) in enumerate(arms.items()):
        for run in runs:
            look = {"color": f"C{n}", "linewidth": 1, "alpha": 0.7}
            entropy = run["steps"]["entropy"]
            panels[0].plot(range(1, len(entropy) + 1), entropy, label=arm if run is runs[0] else None, **look)
            for panel, axis in zip(panels[1:], ("tokens", "seconds"), strict=True):
                places, shares = zip(*((one[axis], 100 * one["accuracy"]) for one in run["evaluations"]), strict=True)
                panel.plot(places, shares, **look)
    panels[0].set(xlabel="training step", ylabel="entropy, nats")
    panels[1].set(xlabel="generated tokens", ylabel="held-out sums right, %")
    panels[2].set(xlabel="processor seconds of training", ylabel="held-out sums right, %")
    if any(arms.values()):
        panels[0].legend(fontsize=8)
    figure.savefig(file, dpi=110, facecolor="white")
    pyplot.close(figure)


def page(report: Mapping[str, Any], name: str) -> str:
    """Return the report as Markdown."""
    machine = report["machine"]
    found = [of for lists in report["studies"].values() for of in lists.values()]
    commits = sorted({commit for of in found for commit in of["commits"]})
    lines = [
        "# DAPO's parts on a real model",
        "",
        f"`make bench-real-model`: {machine['cpu']}, one thread a run, Python {machine['python']}, torch "
        f"{machine['packages']['torch']}; commit {', '.join(commits) or machine['commit']}, {machine['date']}.",
        "",
        "SmolLM2-135M-Instruct on sums, at a rate at which its entropy falls to a third. Seeds, settings and measures "
        "were written down before the runs (`real_model.yaml`). Values of arms are means over seeds. Differences are "
        "taken seed by seed, with their 99 % interval. **Bold**: *shown*, the interval of a claim is clear of 0. Other "
        "measures are no claims, and never bold.",
        "",
        'Measures without "at equal" are taken at the last training step that all arms make, on the line '
        "between the evaluations around it. *Given up* counts held-out problems with right answers in the first half "
        "of the evaluations and none in the second. *Seconds* are those of training steps.",
        "",
        *table([["arm", "settings"], *([arm, settings_said(of)] for arm, of in report["arms"].items())]),
    ]
    if report["trial"]:
        lines += ["", f"**Trial of {report['trial']} steps: these numbers are no results.**"]
    if report["runs"] < report["planned"]:
        lines += ["", f"**Not finished: {report['runs']} of {report['planned']} runs.**"]
    for study, lists in report["studies"].items():
        for seeds, of in lists.items():
            lines += ["", f"## {study}{TITLES[seeds]}", ""]
            if seeds == "first":
                lines += [f"![Entropy and accuracy, a line for each seed]({picture_of(study, name)})", ""]
            lines += section(of)
        if "again" in lists:
            lines += ["", f"Shown with both lists of seeds: {'; '.join(shown_twice(*lists.values())) or 'nothing'}."]
    return "\n".join(lines) + "\n"


def settings_said(settings: Mapping[str, Any]) -> str:
    return ", ".join(
        f"`{key}={value:g}`" if isinstance(value, float) else f"`{key}={value}`" for key, value in settings.items()
    )


def shown_twice(first: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """Return the differences that both lists of seeds show with the same sign."""
    signs = [
        {
            f"{name} of {one['arms'][0]} less {one['arms'][1]}": found["mean"] > 0
            for one in of["differences"]
            for name, found in one["claims"].items()
            if found["shown"]
        }
        for of in (first, again)
    ]
    return [said for said, sign in signs[0].items() if signs[1].get(said) == sign]


def section(of: Mapping[str, Any]) -> list[str]:
    """Return the tables of a study with one list of seeds."""
    if not of["seeds"]:
        return ["No seed has all arms yet."]
    names = list(next(iter(of["arms"].values())))
    lines = [f"Seeds {', '.join(map(str, of['seeds']))}."]
    lines += [of["note"]] if of["note"] else []
    lines += [f"Arms of different commits: seed {', '.join(map(str, of['mixed']))}."] if of["mixed"] else []
    lines += [f"Ended early, since too few groups could be kept: {arm}, seed {seed}." for arm, seed in of["unfilled"]]
    means = [[arm, *(printed(name, np.mean(values[name])) for name in names)] for arm, values in of["arms"].items()]
    lines += ["", *table([["arm", *map(heading, names)], *means])]
    rows = [
        [
            " less ".join(one["arms"]),
            *(cell(name, found, bold=found["shown"]) for name, found in one["claims"].items()),
            *(cell(name, found, bold=False) for name, found in one["beside"].items()),
        ]
        for one in of["differences"]
    ]
    lines += ["", *table([["difference", *map(heading, names)], *rows])]
    rows = [
        [str(seed), arm, *(printed(name, values[name][place]) for name in names)]
        for place, seed in enumerate(of["seeds"])
        for arm, values in of["arms"].items()
    ]
    lines += ["", "Each seed:", "", *table([["seed", "arm", *map(heading, names)], *rows])]
    return [*lines, "", "Mean entropy of training responses by training step, nats:", "", *entropies(of)]


def entropies(of: Mapping[str, Any]) -> list[str]:
    """Return a table of the mean entropy of every fourth step, up to the last that all runs of an arm have."""
    rows = {}
    for arm, runs in of["curves"].items():
        common = min(len(run["steps"]["entropy"]) for run in runs)
        listed = [run["steps"]["entropy"][:common] for run in runs]
        rows[arm] = np.nanmean(np.array(listed, dtype=float), axis=0)  # a step may have none
    steps = [step for step in range(1, max(map(len, rows.values())) + 1) if step == 1 or not step % 4]
    cells = [[arm, *(f"{row[s - 1]:.3f}" if s <= len(row) else "" for s in steps)] for arm, row in rows.items()]
    return table([["arm", *map(str, steps)], *cells])


def heading(name: str) -> str:
    unit = MEASURES[name].unit
    return f"{name}, {unit}" if unit else name


def printed(name: str, value: float, sign: str = "") -> str:
    measure = MEASURES[name]
    return format(value * measure.factor, f"{sign}.{measure.digits}f")


def cell(name: str, found: Mapping[str, Any], bold: bool) -> str:
    """Return a difference with its interval."""
    mean = printed(name, found["mean"], "+")
    if found["low"] is None:
        return mean
    ends = (printed(name, found[end], "+") for end in ("low", "high"))
    return f"{'**' + mean + '**' if bold else mean} [{', '.join(ends)}]"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]
