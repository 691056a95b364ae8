"""Tables and figures of ``ablation_focused.py``: the measures of each row, and differences seed by seed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ablation_figures import band, figure_of, legend
from ablation_focused import Focused, Measure
from ablation_report import (
    RESULTS,
    Curves,
    Effect,
    Floats,
    beside_the_first,
    cell,
    complete,
    effect,
    published,
    table_lines,
    with_blocks,
)

COLOURS = ("#6B7280", "#0072B2", "#E69F00", "#009E73")  # Okabe and Ito's, told apart in grey too
TOGETHER = "All base models"
READING = (
    "Mean over seeds [95 % interval]; in the differences a seed is compared with itself. **Bold**: the paired 99 % "
    "interval excludes zero, which is what *shown* means."
)
Measured = dict[str, dict[str, Floats]]  # row -> measure -> its value for each seed


def write_focused(
    name: str,
    table: Focused,
    found: Mapping[str, Curves],
    machine: dict[str, Any],
    out: Path,
    page: Path | None,
    again: bool = False,
) -> None:
    """Write one table's results and figure into ``out``, and its short table into ``page`` if that has its marks.

    ``again``: the runs repeat the table with other seeds; they are compared with the published differences instead.
    """
    whole = {task: rows for task, every in found.items() if (rows := complete(every))[table.reference]}
    if not whole:
        print(f"{name}: no seed has every row yet; start again to go on")
        return
    measured = {task: measure(table, rows) for task, rows in whole.items()}
    seeds = {task: list(rows[table.reference]) for task, rows in whole.items()}
    if len(measured) > 1:
        measured[TOGETHER] = together(list(measured.values()))
        seeds[TOGETHER] = [seed for of_task in seeds.values() for seed in of_task]
    report = {
        "machine": machine,
        "tasks": {task: {"seeds": seeds[task], **described(table, of)} for task, of in measured.items()},
    }
    out.mkdir(parents=True, exist_ok=True)
    file = f"focused_{name}{'_again' * again}"
    (out / f"{file}.json").write_text(json.dumps(report, indent=1) + "\n")
    text = markdown(file, table, report)
    if again:
        text += "\n".join(["", *shown_again(table, published(f"focused_{name}"), report)]) + "\n"
    (out / f"{file}.md").write_text(text)
    draw(table, whole, out / f"{file}.png")
    if page is not None and not again and f"<!-- {name} -->" in page.read_text():
        page.write_text(with_blocks(page.read_text(), {name: page_block(name, table, report)}))
    print(text)


def measure(table: Focused, rows: Curves) -> Measured:
    """Row -> measure -> values [seeds]; rows of one seed share the least number of generated tokens."""
    seeds = list(rows[table.reference])
    least = {seed: min(of[seed]["points"]["tokens"][-1] for of in rows.values()) for seed in seeds}
    return {
        row: {key: np.array([one.of(of[seed], least[seed]) for seed in seeds]) for key, one in table.measures.items()}
        for row, of in rows.items()
    }


def together(every: list[Measured]) -> Measured:
    """The runs of all base models; each pair of base model and seed counts as one seed."""
    return {
        row: {key: np.concatenate([measured[row][key] for measured in every]) for key in every[0][row]}
        for row in every[0]
    }


def described(table: Focused, measured: Measured) -> dict[str, Any]:
    """Each row's measures, and the differences of the table's pairs that were run."""
    pairs = [pair for pair in table.pairs if set(pair) <= set(measured)]
    return {
        "rows": {row: {key: effect(values) for key, values in of.items()} for row, of in measured.items()},
        "differences": {
            f"{one} less {other}": {key: effect(measured[one][key] - measured[other][key]) for key in table.measures}
            for one, other in pairs
        },
    }


def shown_again(table: Focused, first: Mapping[str, Any], again: Mapping[str, Any]) -> list[str]:
    """Hold a repetition against the published differences, of all tasks together."""
    before, now = (list(report["tasks"].values())[-1]["differences"] for report in (first, again))
    return beside_the_first(
        before, now, {key: (one.heading, one.factor, one.digits) for key, one in table.measures.items()}
    )


def markdown(file: str, table: Focused, report: Mapping[str, Any]) -> str:
    machine = report["machine"]
    packages = ", ".join(f"{name} {number}" for name, number in machine["packages"].items())
    lines = [
        f"# {table.title}",
        "",
        f"`{machine['command']}`: {machine['cpu_hours']} processor hours on {machine['cpu']}, one thread a run; Python "
        f"{machine['python']}, {packages}; commit {machine['commit']}, {machine['date']}.",
        "",
        f"{table.said} {READING}",
    ]
    for task, found in report["tasks"].items():
        seeds = ", ".join(map(str, found["seeds"]))
        if task in table.tasks:
            said = table.tasks[task].said
            lines += ["", f"## {table.tasks[task].title}", "", f"{said[0].upper()}{said[1:]} Seeds {seeds}."]
        else:
            lines += ["", f"## {task}", "", f"{len(found['seeds'])} pairs of base model and seed."]
        lines += ["", *table_lines(_rows(found, dict(table.measures))), "", "Differences:", ""]
        lines += table_lines(_differences(found, dict(table.measures)))
    return "\n".join([*lines, "", f"![Curves of each row, mean and 95 % interval]({file}.png)"]) + "\n"


def page_block(name: str, table: Focused, report: Mapping[str, Any]) -> str:
    """Return the short table: each row's means, and the differences with their intervals."""
    found = list(report["tasks"].values())[-1]  # of all tasks, where there are several
    chosen = {key: one for key, one in table.measures.items() if one.page}
    means = [[*row] for row in _rows(found, chosen, intervals=False)]
    lines = table_lines([*means, *_differences(found, chosen)[1:]])
    several = len(report["tasks"]) > 1
    count = f"{len(report['tasks']) - 1} base models, {len(found['seeds'])} pairs" if several else ""
    said = count or f"{len(found['seeds'])} seeds"
    return "\n".join(
        [f"{said}, commit {report['machine']['commit']}: [all figures]({RESULTS}/focused_{name}.md).", "", *lines]
    )


def _rows(found: Mapping[str, Any], measures: Mapping[str, Measure], intervals: bool = True) -> list[list[str]]:
    rows = [["", *(one.heading for one in measures.values())]]
    for row, values in found["rows"].items():
        shown = [values[key] if intervals else _alone(values[key]) for key in measures]
        rows.append([row, *_cells(shown, measures)])
    return rows


def _differences(found: Mapping[str, Any], measures: Mapping[str, Measure]) -> list[list[str]]:
    rows = [["", *(one.heading for one in measures.values())]]
    for pair, values in found["differences"].items():
        rows.append([pair, *_cells([values[key] for key in measures], measures, sign=True)])
    return rows


def _alone(value: Effect) -> Effect:
    return value | {"low": None, "high": None}


def _cells(values: list[Effect], measures: Mapping[str, Measure], sign: bool = False) -> list[str]:
    return [cell(value, one.factor, one.digits, sign) for value, one in zip(values, measures.values(), strict=True)]


def draw(table: Focused, whole: Mapping[str, Curves], path: Path) -> None:
    """Draw each panel's curves, a line a row: the mean over all runs and its 95 % interval."""
    figure, grid = figure_of(1, len(table.panels), height=3.8)
    for ax, (over, name, label, factor) in zip(grid[0], table.panels, strict=True):
        for row, colour in zip(table.rows, COLOURS, strict=False):
            curves = [curve for rows in whole.values() for curve in rows.get(row, {}).values()]
            if curves:
                band(ax, curves, over, name, colour, row, factor)
        ax.set(xlabel="generated tokens, thousands" if over == "tokens" else "training step", ylabel=label)
    legend(figure, grid[0][0])
    figure.savefig(path)
