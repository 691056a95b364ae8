"""Tables and the figure of ``overlap_simulation.py``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]
MODES = ("turns", "turns+", "S=1", "S=2", "S=4", "drop")

# Okabe and Ito's colours, which colour-blind readers tell apart; the markers differ too.
STYLES = {
    "turns": ("#000000", "o", "-"),
    "turns+": ("#009E73", "P", "-"),
    "S=1": ("#CC79A7", "X", "--"),
    "S=2": ("#0072B2", "s", "-"),
    "S=4": ("#56B4E9", "D", "-"),
    "drop": ("#D55E00", "^", "--"),
}
NAMES = {"turns": "turns (S = 0)", "turns+": "turns, lookahead 2", "drop": "S = 2, drop when old"}

HEAD = """# Generation beside learning, by simulation

Made by `python benchmarks/overlap_simulation.py`; the same seed gives the same numbers on every machine. Nothing here
was measured on a device: seconds are simulated, all assumptions stand in `simulated_engine.py`, in the text at the top
of `overlap_simulation.py` and in `overlap_simulation.json` ({assumed}).

Cells: tokens trained per device second, all devices counted, over those of `turns` (our synchronous mode, with
carrying over and its default `lookahead` of 0.5); in brackets the share of generated tokens that was discarded, where
any was. Above 1 a mode wins; what `turns, lookahead 2` wins needs no generation beside learning. **share**: of a step
of turns that is learning, with all devices. **scaling** a: learning on n of D devices takes (D / n)^a times as long; 1
divides perfectly. Cases without a row or a number have not been computed yet: the same command goes on with them.
"""


def report(rows: Sequence[Row], assumed: dict[str, Any]) -> str:
    """The results as Markdown."""
    said = ", ".join(f"{key} {value}" for key, value in assumed.items())
    main = [row for row in rows if row["devices"] == 16 and row["verifier"] == 2.0]
    size = [row for row in rows if (row["acceptance"], row["share"], row["scaling"]) == (0.5, 0.3, 0.7)]
    late = [row for row in size if row["devices"] == 16]
    parts = [HEAD.format(assumed=said)]
    parts += ["## 16 devices\n", _table(main, ("acceptance", "share", "scaling"))]
    parts += ["## By number of devices\n\nAcceptance 0.5, share 0.3, scaling 0.7.\n"]
    parts += [_table([row for row in size if row["verifier"] == 2.0], ("devices",))]
    parts += ["## By seconds that a verdict takes\n\n16 devices, otherwise as above.\n", _table(late, ("verifier",))]
    parts += ["## Who waits\n\n16 devices, acceptance 0.5, share 0.3, scaling 0.7.\n", _idle(late)]
    return "\n".join(parts)


def _table(rows: Sequence[Row], by: Sequence[str]) -> str:
    keys = sorted({tuple(row[name] for name in by) for row in rows})
    lines = [
        "| " + " | ".join(by) + " | devices that learn | " + " | ".join(NAMES.get(m, m) for m in MODES[1:]) + " |",
        "| --- " * (len(by) + len(MODES)) + "|",
    ]
    for key in keys:
        found = {row["mode"]: row for row in rows if tuple(row[name] for name in by) == key}
        if "turns" not in found or len(found) == 1:
            continue
        cells = [_cell(found.get(mode), found["turns"]) for mode in MODES[1:]]
        learners = next((f"{row['learners']} of {row['devices']}" for m, row in found.items() if row["learners"]), "")
        lines.append("| " + " | ".join([*(f"{value:g}" for value in key), learners, *cells]) + " |")
    return "\n".join(lines) + "\n"


def _cell(row: Row | None, turns: Row) -> str:
    if row is None:
        return ""
    text = f"{row['trained_per_device_second'] / turns['trained_per_device_second']:.2f}"
    return f"{text} ({row['discarded']:.0%})" if row["discarded"] >= 0.005 else text


def _idle(rows: Sequence[Row]) -> str:
    lines = [
        "| mode | seconds per step | slots that decode | learner busy | mean age | largest age |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in (row for row in rows if row["verifier"] == 2.0):
        lines.append(
            f"| {NAMES.get(row['mode'], row['mode'])} | {row['seconds_per_step']:.0f} | {row['engine_slot_use']:.0%} | "
            f"{row['learner_use']:.0%} | {row['age_mean']:.2f} | {row['age_max']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def plot(rows: Sequence[Row], file: Path) -> None:
    """Gain over turns by learner's share: a row of panels for each scaling, a column for each acceptance."""
    import matplotlib.pyplot as plt

    main = [row for row in rows if row["devices"] == 16 and row["verifier"] == 2.0]
    scalings, acceptances = (sorted({row[key] for row in main if row["learners"]}) for key in ("scaling", "acceptance"))
    size = (3.4 * len(acceptances), 2.9 * len(scalings) + 0.5)
    figure, axes = plt.subplots(
        len(scalings), len(acceptances), figsize=size, sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    panels = [(scaling, acceptance) for scaling in scalings for acceptance in acceptances]
    for panel, (scaling, acceptance) in zip(axes.flat, panels, strict=True):
        here = [row for row in main if (row["acceptance"], row["scaling"]) == (acceptance, scaling)]
        turns = {row["share"]: row["trained_per_device_second"] for row in here if row["mode"] == "turns"}
        for mode in MODES:
            own = sorted((row for row in here if row["mode"] == mode), key=lambda row: row["share"])
            colour, marker, style = STYLES[mode]
            panel.plot(
                [row["share"] for row in own],
                [row["trained_per_device_second"] / turns[row["share"]] for row in own],
                color=colour, marker=marker, linestyle=style, label=NAMES.get(mode, mode),
            )  # fmt: skip
        panel.set_title(f"acceptance {acceptance:g}, scaling {scaling:g}", fontsize=10)
        panel.grid(alpha=0.3)
    figure.supxlabel("learner's share of a step")
    figure.supylabel("trained tokens per device second over turns")
    axes[0][0].set_ylim(0, 1.8)
    figure.legend(*axes[0][0].get_legend_handles_labels(), ncols=len(MODES), fontsize=9, loc="outside upper center")
    figure.savefig(file, dpi=110)
    plt.close(figure)
