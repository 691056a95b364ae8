"""Tables of the ablation: measures of each row, paired differences over seeds, and what is shown by them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ablation_rows import FULL, PARTS, TASKS, rung, without
from numpy.typing import NDArray
from sampling_learning import T_QUANTILES

HERE = Path(__file__).resolve().parent
Floats = NDArray[np.float64]
Curve = dict[str, Any]  # "points": lists by name, one entry an evaluation; "steps": one a training step
Curves = Mapping[str, Mapping[int, Curve]]  # row -> seed -> curve
Effect = dict[str, Any]  # "mean", "low" and "high" of the 95 % interval, "shown", and "seeds": the value of each
Effects = dict[str, dict[str, dict[str, Effect]]]  # part or variant -> how it was taken -> measure -> effect

# 99.5 % quantile of Student's t by degrees of freedom, from 1.
T_STRICT = (63.66, 9.92, 5.84, 4.60, 4.03, 3.71, 3.50, 3.36, 3.25, 3.17, 3.11, 3.05, 3.01, 2.98, 2.95, 2.92, 2.90)

AXES = {"steps": "step", "tokens": "tokens", "time": "cpu"}
"""At equal what accuracies are compared, and the points' name for it."""
LADDER, LESS, CHANGED = "ladder", "less", "changed"
COLUMNS: dict[str, tuple[str, float, int]] = {
    "steps": ("at equal steps, %", 100, 1),
    "tokens": ("equal tokens, %", 100, 1),
    "time": ("equal time, %", 100, 1),
    "pass": ("pass@8, %", 100, 1),
    "entropy": ("entropy, nats", 1, 3),
    "length": ("length", 1, 1),
    "truncated": ("cut off, %", 100, 1),
}
"""Measure -> heading, factor and digits; the first three are held-out accuracy."""
FURTHER: dict[str, tuple[str, float, int]] = {
    "kept": ("groups kept, %", 100, 0),
    "clip_high": ("clipped high, %", 100, 2),
    "length_bias": ("length of trained over finished", 1, 3),
    "age": ("age of tokens", 1, 2),
    "total_tokens": ("tokens, thousands", 1e-3, 0),
    "total_time": ("processor seconds", 1, 1),
}
"""Shown for the rows, without a claim about their differences."""


def write_results(
    table: str, found: Mapping[str, Curves], machine: dict[str, Any], out: Path, page: Path | None, again: bool = False
) -> None:
    """Write the results and figures of one table into ``out``, and the parts' summary into ``page``.

    ``again``: the runs repeat the table with other seeds; they are compared with the published differences instead.
    """
    from ablation_figures import draw_parts, draw_variants

    whole = {task: complete(rows) for task, rows in found.items()}
    whole = {task: rows for task, rows in whole.items() if rows[FULL]}
    if not whole:
        print(f"{table}: no seed has every row yet; start again to go on")
        return
    report: dict[str, Any] = {"machine": machine, "tasks": {}}
    for task, rows in whole.items():
        measured = measure_all(rows)
        report["tasks"][task] = {
            "seeds": list(rows[FULL]),
            "rows": {row: {key: effect(values) for key, values in of.items()} for row, of in measured.items()},
            "effects": part_effects(measured) if table == "parts" else variant_effects(measured),
        }
    name = "ablation" if table == "parts" else f"ablation_{table}"
    out.mkdir(parents=True, exist_ok=True)
    text = markdown(table, report)
    if again:
        before, now = (differences_by_name(each) for each in (published(name), report))
        text += "\n".join(["", *beside_the_first(before, now, COLUMNS)]) + "\n"
        name += "_again"
    else:
        text += "\n".join(["", "## Figures", "", *figures(table)]) + "\n"
        (draw_parts if table == "parts" else draw_variants)(whole, report, out)
    (out / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    (out / f"{name}.md").write_text(text)
    if page is not None and table == "parts":
        pair = (published("ablation"), report) if again else (report, published("ablation_again"))
        page.write_text(with_blocks(page.read_text(), page_blocks(*pair)))
    print(text)


# ---------------------------------------------------------------------- statistics


def complete(rows: Curves) -> dict[str, dict[int, Curve]]:
    """Only the seeds that every row has: differences are taken seed by seed."""
    common = sorted(set.intersection(*(set(seeds) for seeds in rows.values())))
    return {row: {seed: seeds[seed] for seed in common} for row, seeds in rows.items()}


FEWEST = 4
"""Seeds of which something is claimed: two or three may lie together by chance."""


def effect(values: Floats) -> Effect:
    """Mean over seeds with its 95 % interval, and whether the 99 % interval is clear of zero.

    A table has dozens of intervals, and one in twenty of those at 95 % misses by chance: so a claim takes 99 %, and
    ``FEWEST`` seeds.
    """
    values = np.asarray(values, dtype=np.float64)
    n, mean = len(values), float(np.mean(values))
    if np.isnan(mean):
        return {"mean": None, "low": None, "high": None, "shown": False}
    found: Effect = {"mean": mean, "low": None, "high": None, "shown": False}
    found["seeds"] = [float(f"{value:.6g}") for value in values]  # so that a reader can compute the rest again
    if n < 2:
        return found
    error = float(values.std(ddof=1)) / n**0.5
    wide, strict = (quantiles[min(n - 2, len(quantiles) - 1)] * error for quantiles in (T_QUANTILES, T_STRICT))
    return found | {"low": mean - wide, "high": mean + wide, "shown": n >= FEWEST and abs(mean) > strict}


def budgets_of(rows: Mapping[str, Curve]) -> dict[str, float]:
    """What the row that has least of it reached, of one seed: training steps, generated tokens, processor seconds."""
    return {
        axis: min(curve["points"][name][-1] for curve in rows.values() if curve["points"][name] is not None)
        for axis, name in AXES.items()
    }


def at_budget(curve: Curve, axis: str, budget: float) -> float:
    """Held-out accuracy there, on the line between two evaluations; nan where that axis was not measured."""
    points = curve["points"]
    if points[AXES[axis]] is None:
        return float("nan")
    return float(np.interp(budget, points[AXES[axis]], points["accuracy"]))


def measures(curve: Curve, budgets: Mapping[str, float]) -> dict[str, float]:
    """What is compared of one run."""
    points = curve["points"]
    steps = {name: np.array([np.nan if v is None else v for v in values]) for name, values in curve["steps"].items()}
    last = max(1, len(steps["entropy"]) // 4)
    return {
        **{axis: at_budget(curve, axis, budget) for axis, budget in budgets.items()},
        **{name: points[name][-1] for name in ("pass", "length", "truncated")},
        "entropy": _mean(steps["entropy"][-last:]),
        "kept": _mean(steps["kept"]),
        "clip_high": _mean(steps["clip_high"]),
        "length_bias": _mean(steps["trained_length"]) / _mean(steps["finished_length"]),
        "age": _mean(steps["age"]),
        "total_tokens": points["tokens"][-1],
        "total_time": float("nan") if points["cpu"] is None else points["cpu"][-1],
    }


def _mean(values: Floats) -> float:
    return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")


def measure_all(rows: Curves) -> dict[str, dict[str, Floats]]:
    """Row -> measure -> its value for each seed."""
    by_seed = []
    for seed in rows[FULL]:
        of_seed = {row: seeds[seed] for row, seeds in rows.items()}
        budgets = budgets_of(of_seed)
        by_seed.append({row: measures(curve, budgets) for row, curve in of_seed.items()})
    return {row: {key: np.array([one[row][key] for one in by_seed]) for key in by_seed[0][row]} for row in rows}


def difference(measured: Mapping[str, Mapping[str, Floats]], one: str, other: str) -> dict[str, Effect]:
    """Row ``one`` less row ``other``, seed by seed."""
    return {key: effect(measured[one][key] - measured[other][key]) for key in COLUMNS}


def part_effects(measured: Mapping[str, Mapping[str, Floats]]) -> Effects:
    """What a part adds where the ladder switches it on, and what the whole has more than without it."""
    effects: Effects = {}
    for number, part in enumerate(PARTS):
        taken = {LADDER: (rung(number + 1), rung(number)), LESS: (FULL, without(part))}
        effects[part] = {how: difference(measured, *pair) for how, pair in taken.items() if set(pair) <= set(measured)}
    return effects


def variant_effects(measured: Mapping[str, Mapping[str, Floats]]) -> Effects:
    return {row: {CHANGED: difference(measured, row, FULL)} for row in measured if row != FULL}


# ---------------------------------------------------------------------- a repetition


def published(name: str) -> dict[str, Any]:
    """Return the published table that a repetition is held against."""
    found: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return found


def differences_by_name(report: Mapping[str, Any]) -> dict[str, dict[str, Effect]]:
    """Return every difference of a report. Of the last part the ladder's is the whole's too, and comes once."""
    return {
        f"{TASKS[task].title}: {what}{'' if how == CHANGED else f', {how}'}": values
        for task, found in report["tasks"].items()
        for what, ways in found["effects"].items()
        for how, values in ways.items()
        if how != LADDER or what != list(PARTS)[-1]
    }


def beside_the_first(
    before: Mapping[str, Mapping[str, Effect]],
    now: Mapping[str, Mapping[str, Effect]],
    columns: Mapping[str, tuple[str, float, int]],
) -> list[str]:
    """Return what became of each difference that the first seeds showed.

    Args:
        before: difference -> measure -> its effect, of the first seeds.
        now: the same of the repetition, which may lack some.
        columns: measure -> heading, factor and digits.
    """
    rows, verdicts = [["", "", "first seeds", "these seeds", ""]], []
    for name, measures in before.items():
        for key, (heading, factor, digits) in columns.items():
            if name not in now or not measures[key]["shown"]:
                continue
            pair = measures[key], now[name][key]
            verdicts.append(verdict(*pair))
            rows.append([name, heading, *(cell(each, factor, digits, sign=True) for each in pair), verdicts[-1]])
    count = f"{verdicts.count(SHOWN_AGAIN)} of {len(verdicts)} differences that the first seeds showed are shown again."
    return ["## Beside the first seeds", "", count, "", *table_lines(rows)]


SHOWN_AGAIN = "shown again"


def verdict(first: Effect, again: Effect) -> str:
    """Say whether a repetition shows what the first seeds showed."""
    if first["mean"] * again["mean"] < 0:
        return "the opposite is shown" if again["shown"] else "the sign is another"
    return SHOWN_AGAIN if again["shown"] else "same sign, not shown"


# ---------------------------------------------------------------------- text


HEADS = {
    "parts": (
        "What each part of DAPO does",
        "The ladder of the paper's table 1, and DAPO less one part each. Differences are *with the part less without "
        "it*: `ladder` where the ladder switches it on, `less` in the whole recipe.",
    ),
    "variants": (
        "Variants of DAPO",
        "Each row changes DAPO's whole recipe in one respect; differences are *the row less DAPO*. DAPO itself carries "
        "over what is left, has a lookahead of 0.5, and generates and learns in turns. In `S = 1` to `4` generation "
        "goes on beside learning in other processes, whose seconds are not counted.",
    ),
}
READING = (
    "Held-out accuracy is that of 8 sampled responses a problem, compared at what the row with least of it reached, "
    "seed by seed: training steps, generated tokens, or processor seconds of the run (runs go in parallel, so not the "
    "wall clock's; evaluation left out). Entropy is the mean over the last quarter of the steps; pass@8, length and "
    "the share of responses cut off are those of the last evaluation. Mean over seeds [95 % interval]. **Bold**: the "
    "paired 99 % interval is clear of zero, which is what *shown* means here, since there are dozens of intervals."
)


def markdown(table: str, report: Mapping[str, Any]) -> str:
    machine, (title, said) = report["machine"], HEADS[table]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    lines = [
        f"# {title}",
        "",
        f"`{machine['command']}`: {machine['cpu_hours']} processor hours on {machine['cpu']}, one thread a run; Python "
        f"{machine['python']}, {packages}; commit {machine['commit']}, {machine['date']}.",
        "",
        f"{said} {READING}",
    ]
    for name, found in report["tasks"].items():
        task, seeds = TASKS[name], found["seeds"]
        lines += ["", f"## {task.title}", "", f"{task.said[0].upper()}{task.said[1:]} {len(seeds)} seeds: "]
        lines[-1] += f"{', '.join(map(str, seeds))}."
        columns = COLUMNS | FURTHER
        rows = [["", *(heading for heading, _, _ in columns.values())]]
        for row, values in found["rows"].items():
            rows.append([row, *(cell(values[key], factor, digits) for key, (_, factor, digits) in columns.items())])
        lines += ["", *table_lines(rows), "", "Differences, seed by seed:", ""]
        rows = [["", *(heading for heading, _, _ in COLUMNS.values())]]
        for what, ways in found["effects"].items():
            for how, values in ways.items():
                cells = [cell(values[key], f, digits, sign=True) for key, (_, f, digits) in COLUMNS.items()]
                rows.append([what if how == CHANGED else f"{what}, {how}", *cells])
        lines += table_lines(rows)
    return "\n".join(lines) + "\n"


def figures(table: str) -> list[str]:
    """Return the pictures of a table, which lie beside its page."""
    if table == "variants":
        return ["![Accuracy and length of each variant less DAPO's](ablation_variants.png)"]
    parts = [f"![{part}: DAPO, DAPO without it, and GRPO]({name})" for part, name in FIGURES.items()]
    return ["![All differences](ablation.png)", *parts]


def table_lines(rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(row) + " |" for row in rows]
    return [lines[0], "| --- " * len(rows[0]) + "|", *lines[1:]]


def cell(value: Effect, factor: float, digits: int, sign: bool = False) -> str:
    """``mean [low, high]``; a difference (``sign``) that is shown has its mean in bold."""
    if value["mean"] is None:
        return ""
    form = f"{'+' if sign else ''}.{digits}f"
    mean, low, high = (
        None if value[key] is None else format(value[key] * factor, form) for key in ("mean", "low", "high")
    )
    bold = "**" if sign and value["shown"] else ""
    return f"{bold}{mean}{bold}" if low is None else f"{bold}{mean}{bold} [{low}, {high}]"


FIGURES = {part: f"ablation_{part.replace(' ', '_').replace('-', '_')}.png" for part in PARTS}
RESULTS = "../benchmarks/results"  # as a page of docs/ says it


def page_blocks(first: Mapping[str, Any], again: Mapping[str, Any]) -> dict[str, str]:
    """Return what a page shows of the parts by the name of its place: a table in words.

    Args:
        first: the published table.
        again: its repetition with other seeds.
    """
    lines = [f"{_seeds_said(first)}, and {_seeds_said(again)}. **Bold**: both show it; *once*: one of them does.", ""]
    lines += table_lines(_summary(first["tasks"], again["tasks"]))
    return {"ablation": "\n".join(lines)}


def _seeds_said(report: Mapping[str, Any]) -> str:
    counts = sorted({len(found["seeds"]) for found in report["tasks"].values()})
    return f"{' to '.join(map(str, counts[:1] + counts[1:][-1:]))} seeds a task of commit {report['machine']['commit']}"


def _summary(first: Mapping[str, Any], again: Mapping[str, Any]) -> list[list[str]]:
    """Each part on each task in words: at equal steps, and at equal tokens."""
    tasks = [name for name in first if name in again]
    rows = [["part of the whole recipe", *(TASKS[name].title.lower() for name in tasks)]]
    for part in PARTS:
        cells = []
        for name in tasks:
            pair = [of[name]["effects"][part].get(LESS) for of in (first, again)]
            if None in pair:  # rows were left out
                cells.append("")
                continue
            words = {axis: _word(*(values[axis] for values in pair)) for axis in ("steps", "tokens")}
            same = len(set(words.values())) == 1
            cells.append(words["steps"] if same else ", ".join(f"{said} ({axis})" for axis, said in words.items()))
        rows.append([part, *cells])
    return rows


def _word(first: Effect, again: Effect) -> str:
    shown = [value for value in (first, again) if value["shown"]]
    words = {"helps" if value["mean"] > 0 else "costs" for value in shown}
    if len(words) != 1:  # none, or each shows the opposite of the other
        return "not shown"
    return f"**{words.pop()}**" if len(shown) == 2 else f"{words.pop()} *once*"


def with_blocks(page: str, blocks: Mapping[str, str]) -> str:
    """``page`` with each text between its marks ``<!-- NAME -->`` and ``<!-- end of NAME -->``.

    Raises:
        ValueError: the page has no such marks.
    """
    for name, text in blocks.items():
        begin, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        if not pattern.search(page):
            raise ValueError(f"the page has no place for a table: expected the lines {begin} and {end}")
        page = pattern.sub(f"{begin}\n\n{text}\n\n{end}".replace("\\", r"\\"), page)
    return page
