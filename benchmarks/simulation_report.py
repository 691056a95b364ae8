"""Tables and the figure of ``sampling_simulation.py``."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

# Okabe and Ito's colours, which colour-blind readers tell apart; the markers differ too.
STYLES = {
    "ours, lookahead 0": ("#56B4E9", "o", "-"),
    "ours, lookahead 0.5": ("#0072B2", "s", "-"),
    "ours, lookahead 1": ("#000000", "D", "-"),
    "rounds of P": ("#D55E00", "^", "--"),
    "rounds of 3P": ("#E69F00", "v", "--"),
    "ms-swift": ("#CC79A7", "X", "--"),
    "verl 0.9 streaming": ("#009E73", "P", "--"),
}
ACCEPTANCE_STYLES = {0.8: ("#0072B2", "o"), 0.5: ("#000000", "s"), 0.2: ("#D55E00", "^")}

HEAD = """# Dynamic sampling by simulation, 16 to 1,024 engines

Made by `python benchmarks/sampling_simulation.py`; the same seed gives the same numbers on every machine. Seconds are
simulated. All assumptions stand in `simulated_engine.py`; sizes are in `sampling_simulation.json`.

- **x bound**: seconds to collect P kept groups over the bound. The bound is what the groups that had to be finished for
  them (rejected ones included) would take the fleet at its full speed. A step that trains rejected groups (ms-swift at
  its limit) counts for the share of P that was kept.
- **slots**: share of slot time in which a slot held a response. **speed**: tokens per second over full speed.
- **generated**: response tokens generated per token of a trained, kept group.
- **age**: training steps since dispatch of trained groups. The rules train on what their own step made: age 0.
"""


def report(rows: Sequence[Row]) -> str:
    """The results as Markdown."""
    parts = [HEAD]
    for kind, acceptance in sorted({(r["lengths"], r["acceptance"]) for r in rows}, key=lambda k: (k[0], -k[1])):
        chosen = [r for r in rows if (r["lengths"], r["acceptance"]) == (kind, acceptance)]
        parts += [f"## {kind} lengths, acceptance {acceptance}\n", *_tables(chosen)]
    return "\n".join(parts)


def _tables(rows: Sequence[Row]) -> list[str]:
    fleets = sorted({r["engines"] for r in rows})
    out = []
    if len(fleets) > 1:
        lines = [
            "| x bound | " + " | ".join(f"{n:,} engines" for n in fleets) + " |",
            "| --- |" + " --- |" * len(fleets),
        ]
        for name in dict.fromkeys(r["name"] for r in rows):
            by_fleet = {r["engines"]: f"{r['relative']:.2f}" for r in rows if r["name"] == name}
            lines.append(f"| {name} | " + " | ".join(by_fleet.get(n, "") for n in fleets) + " |")
        out.append("\n".join(lines) + "\n")
    head = "seconds per step | seconds per P kept | x bound | slots | speed | generated | age mean | age max"
    for fleet in fleets:
        chosen = [r for r in rows if r["engines"] == fleet]
        first = chosen[0]
        out.append(f"{fleet:,} engines, P = {first['prompts']}; bound {first['bound_seconds']:.0f} s per step:\n")
        lines = [f"| rule | {head} |", "| --- |" + " --- |" * 8]
        lines += [
            f"| {r['name']} | {r['seconds_per_step']:.0f} | {r['seconds_per_batch']:.0f} | {r['relative']:.2f}"
            f" | {r['slot_use']:.0%} | {r['speed_use']:.0%} | {r['generated_per_trained']:.2f}"
            f" | {r['age_mean']:.2f} | {r['age_max']:.0f} |"
            for r in chosen
        ]
        out.append("\n".join(lines) + "\n")
    return out


def plot(rows: Sequence[Row], path: Path, trade_off_fleet: int) -> None:
    """Three panels of time over fleet size, one of time over age."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    rows = [r for r in rows if r["lengths"] == "log-normal"]
    figure, panels = plt.subplots(2, 2, figsize=(13, 10), dpi=110)
    tops = [r["relative"] for r in rows]
    for panel, acceptance in zip(panels.flat, (0.8, 0.5, 0.2), strict=False):
        if chosen := [r for r in rows if r["acceptance"] == acceptance]:
            _over_fleets(panel, chosen, (0.9, 1.3 * max(tops)))
        panel.set_title(f"acceptance {acceptance}", loc="left", fontsize=12)
    if traded := [r for r in rows if r["engines"] == trade_off_fleet and r["rule"] == "ours"]:
        _over_age(panels[1, 1], traded)
    panels[1, 1].set_title(
        f"ours at {trade_off_fleet} engines: time against age, by lookahead (the numbers)", loc="left", fontsize=12
    )
    figure.suptitle(
        "Simulated seconds to collect P kept groups, relative to the fleet's full speed (1 = no waste, no idle slot)",
        fontsize=13,
    )
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


def _over_fleets(panel: Any, rows: Sequence[Row], limits: tuple[float, float]) -> None:
    ends = []
    for name, (colour, marker, line) in STYLES.items():
        points = sorted((r["engines"], r["relative"]) for r in rows if r["name"] == name)
        if points:
            x, y = zip(*points, strict=True)
            panel.plot(x, y, color=colour, marker=marker, linestyle=line, linewidth=2, markersize=7)
            ends.append((y[-1], name, colour))
    fleets = sorted({r["engines"] for r in rows})
    panel.set(xscale="log", yscale="log", ylim=limits, xlabel="engines", ylabel="time over bound")
    panel.set_xlim(fleets[0] * 0.85, fleets[-1] * 8)
    panel.set_xticks(fleets, [f"{n:,}" for n in fleets])
    panel.set_xticks([], minor=True)
    ticks = [t for t in (1, 2, 3, 5, 10, 20, 30, 50, 100) if t < limits[1]]
    panel.set_yticks(ticks, [str(t) for t in ticks])
    panel.set_yticks([], minor=True)
    panel.axhline(1.0, color="#999999", linewidth=1)
    panel.grid(axis="y", color="#dddddd", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
    for height, (value, name, colour) in zip(_apart([e[0] for e in sorted(ends)], limits), sorted(ends), strict=True):
        panel.annotate(
            name, (fleets[-1], value), (fleets[-1] * 1.35, height), color=colour, fontsize=10, va="center",
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.6},
        )  # fmt: skip


def _apart(values: Sequence[float], limits: tuple[float, float]) -> list[float]:
    """Heights for labels at ascending ``values`` on a logarithmic axis, at least a line of text from each other."""
    gap = math.log(limits[1] / limits[0]) / 19
    heights: list[float] = []
    for value in values:
        heights.append(max(math.log(value), heights[-1] + gap if heights else -math.inf))
    for i in range(len(heights) - 1, -1, -1):
        top = math.log(limits[1]) - gap / 2 if i == len(heights) - 1 else heights[i + 1] - gap
        heights[i] = min(heights[i], top)
    return [math.exp(height) for height in heights]


def _over_age(panel: Any, rows: Sequence[Row]) -> None:
    for acceptance, (colour, marker) in ACCEPTANCE_STYLES.items():
        chosen = sorted((r["lookahead"], r["age_mean"], r["relative"]) for r in rows if r["acceptance"] == acceptance)
        if not chosen:
            continue
        panel.plot(
            [c[1] for c in chosen], [c[2] for c in chosen], color=colour, marker=marker, linewidth=2, markersize=7
        )
        together: dict[tuple[float, float], list[str]] = {}  # where a cap binds, more lookahead changes nothing
        for lookahead, age, relative in chosen:
            together.setdefault((round(age, 2), round(relative, 2)), []).append(f"{lookahead:g}")
        for point, numbers in together.items():
            panel.annotate(", ".join(numbers), point, (5, 5), textcoords="offset points", color=colour, fontsize=9)
        panel.annotate(
            f"acceptance {acceptance}", (chosen[-1][1], chosen[-1][2]), (12, -12), textcoords="offset points",
            color=colour, fontsize=10, bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        )  # fmt: skip
    panel.axhline(1.0, color="#999999", linewidth=1)
    panel.set(xlabel="mean age of trained groups (training steps)", ylabel="time over bound")
    panel.set_xlim(0, 0.1 + 1.3 * max(r["age_mean"] for r in rows))
    panel.set_ylim(0.75, 1.08 * max(r["relative"] for r in rows))
    panel.grid(color="#dddddd", linewidth=0.6)
    panel.spines[["top", "right"]].set_visible(False)
