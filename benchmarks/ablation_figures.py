"""Figures of the ablation: one for each part of DAPO, one of all differences, one of the variants."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ablation_report import CHANGED, FIGURES, LADDER, LESS, Curves, Effect, Effects, Floats, effect
from ablation_rows import FULL, GRPO, PARTS, TASKS, without

COLOURS = {FULL: "#0072B2", "less": "#E69F00", GRPO: "#6B7280"}  # Okabe and Ito's, told apart in grey too
AXIS_COLOURS = {"steps": "#0072B2", "tokens": "#E69F00", "time": "#009E73"}
OWN: dict[str, tuple[str, str]] = {
    "overlong filtering": ("truncated", "held-out responses cut off, %"),
    "clip-higher": ("entropy", "entropy of the policy, nats"),
    "soft overlong punishment": ("length", "held-out response, tokens"),
    "token-level loss": ("length", "held-out response, tokens"),
    "dynamic sampling": ("accuracy", "held-out accuracy, %"),
}
"""What a part is meant to change, below its accuracy; dynamic sampling's is the accuracy over tokens."""


def draw_parts(whole: Mapping[str, Curves], report: Mapping[str, Any], out: Path) -> None:
    """``ablation.png`` with all differences, and a figure for each part."""
    ways = {LADDER: "o", LESS: "s"}
    names = {LADDER: "switched on, on the ladder", LESS: "in the whole recipe"}
    axes = ("steps", "tokens")
    figure, grid = figure_of(1, len(whole), height=4.4, shared=True)
    for ax, (task, found) in zip(grid[0], report["tasks"].items(), strict=True):
        marks = {
            f"{names[how]}, equal {axis}": (AXIS_COLOURS[axis], ways[how], _of(found["effects"], how, axis))
            for how in ways
            for axis in axes
        }
        _forest(ax, list(PARTS), marks, 100)
        ax.set(title=TASKS[task].title, xlabel="accuracy with the part less without, points")
    legend(figure, grid[0][0], shown=True)
    figure.savefig(out / "ablation.png")
    for part in PARTS:
        if all(without(part) in rows for rows in whole.values()):
            _draw_part(part, whole, out / FIGURES[part])


def _draw_part(part: str, whole: Mapping[str, Curves], path: Path) -> None:
    figure, grid = figure_of(2, len(whole), height=6.2)
    shown = {FULL: FULL, without(part): f"DAPO less {part}", GRPO: GRPO}
    own, label = OWN[part]
    for column, (task, rows) in enumerate(whole.items()):
        above, below = grid[0][column], grid[1][column]
        for row, said in shown.items():
            if row not in rows:
                continue
            colour = COLOURS["less" if row == without(part) else row]
            curves = list(rows[row].values())
            band(above, curves, "step", "accuracy", colour, said)
            band(below, curves, "tokens" if own == "accuracy" else "step", own, colour, said)
        above.set(title=TASKS[task].title, ylabel="held-out accuracy, %" if not column else "")
        above.set_xlabel("training step")
        below.set_xlabel("generated tokens, thousands" if own == "accuracy" else "training step")
        below.set_ylabel("" if column else label)
    legend(figure, grid[0][0])
    figure.savefig(path)


def draw_variants(whole: Mapping[str, Curves], report: Mapping[str, Any], out: Path) -> None:
    """``ablation_variants.png``: accuracy and length of each variant, less DAPO's."""
    names = list(next(iter(report["tasks"].values()))["effects"])
    figure, grid = figure_of(2, len(whole), height=8.0, shared="row")
    for column, (task, found) in enumerate(report["tasks"].items()):
        marks = {
            f"equal {axis}": (colour, "o", _of(found["effects"], CHANGED, axis))
            for axis, colour in AXIS_COLOURS.items()
        }
        _forest(grid[0][column], names, marks, 100)
        grid[0][column].set(title=TASKS[task].title, xlabel="accuracy less DAPO's, points")
        _forest(grid[1][column], names, {"": ("#6B7280", "o", _of(found["effects"], CHANGED, "length"))}, 1)
        grid[1][column].set_xlabel("length of a response less DAPO's, tokens")
    legend(figure, grid[0][0], shown=True)
    figure.savefig(out / "ablation_variants.png")


# ---------------------------------------------------------------------- pieces


def figure_of(rows: int, columns: int, height: float, shared: bool | str = False) -> tuple[Any, Any]:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1.2 + 3.9 * columns, height), dpi=110, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure, figure.subplots(rows, columns, squeeze=False, sharey=shared)


def legend(figure: Any, ax: Any, shown: bool = False) -> None:
    handles, labels = ax.get_legend_handles_labels()
    title = "full marks: shown" if shown else None
    figure.legend(handles, labels, loc="outside lower center", ncols=min(4, len(labels)), frameon=False, title=title)


def _of(effects: Effects, how: str, measure: str) -> dict[str, Effect]:
    return {what: ways[how][measure] for what, ways in effects.items() if how in ways}


def _forest(
    ax: Any, names: Sequence[str], marks: Mapping[str, tuple[str, str, dict[str, Effect]]], factor: float
) -> None:
    """Differences with their 95 % intervals, a line of marks for each name; full marks are those that are shown."""
    for n, (label, (colour, mark, effects)) in enumerate(marks.items()):
        offset = (n - (len(marks) - 1) / 2) * 0.7 / len(marks)
        ax.plot([], [], mark, color=colour, label=label)
        for place, name in enumerate(names):
            value = effects.get(name)
            if value is None or value["mean"] is None:
                continue
            y, low = place + offset, value["mean"] if value["low"] is None else value["low"]
            high = value["mean"] if value["high"] is None else value["high"]
            ax.plot([low * factor, high * factor], [y, y], color=colour, linewidth=1.4)
            face = colour if value["shown"] else "white"
            ax.plot(value["mean"] * factor, y, mark, color=colour, markerfacecolor=face, markersize=5)
    ax.axvline(0, color="#111827", linewidth=0.8)
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.grid(axis="x", alpha=0.3)


def band(
    ax: Any,
    curves: Sequence[Mapping[str, Any]],
    over: str,
    name: str,
    colour: str,
    label: str,
    factor: float | None = None,
) -> None:
    """Mean over seeds and its 95 % interval, at common places of the axis ``over``."""
    if name in curves[0]["points"]:
        end = min(curve["points"][over][-1] for curve in curves)
        grid = np.linspace(0, end, 61)
        values = np.array([np.interp(grid, curve["points"][over], curve["points"][name]) for curve in curves])
    else:
        lines = [[np.nan if v is None else v for v in curve["steps"][name]] for curve in curves]
        grid = np.arange(1, len(lines[0]) + 1, dtype=np.float64)
        values = np.array(lines)
    found = [effect(column) for column in values.T]
    if factor is None:
        factor = 100 if name in ("accuracy", "truncated") else 1
    x: Floats = grid / (1000 if over == "tokens" else 1)
    mean, low, high = (
        factor * np.array([np.nan if value[key] is None else value[key] for value in found])
        for key in ("mean", "low", "high")
    )
    ax.plot(x, mean, color=colour, label=label)
    ax.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    ax.grid(alpha=0.3)
