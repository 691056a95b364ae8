"""The pictures of one or several runs as PNG: curve.png of a run, and learning, health and cost of a report.

A run has a colour, a metric a line style; of runs that differ in their seed alone the mean is drawn, and a band from
the least to the greatest. Needs no display.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dapo.metrics.glossary import PHASES
from dapo.observe.files import replacing
from dapo.observe.metrics import Row, read_metrics, series
from dapo.observe.run_folder import RunFolder
from dapo.observe.supervised import HELD_OUT, TRAINED, is_supervised
from dapo.observe.text import clean, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers and in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#6B7280", "#000000")
STYLES = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))
GRID, GREY = "#E5E7EB", "#6B7280"
LONGEST_NAME, MOST_NAMES = 70, 12
CROWD = 2
"""More runs than this leave room for few metrics a panel."""
LOG_FROM = 30.0
"""Greatest over least value from which an axis that may be logarithmic is."""
EVERY_MARK = 60
"""Points up to which each evaluation has a mark."""


@dataclass(frozen=True, slots=True)
class Curve:
    """A metric of a run or of a family of seeds."""

    steps: Sequence[int] = ()
    values: Sequence[float] = ()
    low: Sequence[float] = ()  # () without a band
    high: Sequence[float] = ()


@dataclass(frozen=True, slots=True)
class Drawn:
    """A run or a family of seeds, drawn in its own colour."""

    name: str
    colour: str
    runs: Sequence[Mapping[str, Curve]]  # of each run, its metrics
    band: Mapping[str, Curve] = field(default_factory=dict)  # the metrics' means over the seeds; {} for a single run

    def curves(self, key: str) -> list[Curve]:
        """One, or one for each seed where there is no band of that metric."""
        if key in self.band:
            return [self.band[key]]
        return [run[key] for run in self.runs if key in run]


@dataclass(frozen=True, slots=True)
class Panel:
    """A plot: its title, the metrics in it with their names, and the kind of its axis."""

    title: str
    metrics: Sequence[tuple[str, str]]  # key, name in the legend
    unit: str = ""
    share: bool = False  # 0 to 100 %
    log: bool = False
    wide: bool = False
    ends: bool = False  # write the first and the last value of the first metric beside their points
    crowded: int = 1  # metrics that are left when many runs lie over each other


PICTURES: dict[str, tuple[str, Sequence[Panel]]] = {
    "learning": (
        "What was learned",
        (
            Panel(
                "held-out accuracy and its 95% interval",
                (("validation/accuracy", "sampled"), ("validation/greedy_accuracy", "greedy")),
                share=True,
                wide=True,
            ),
            Panel(
                "accuracy on training prompts",
                (("reward/accuracy", "all groups"), ("reward/accuracy_kept", "kept groups")),
                share=True,
            ),
            Panel("reward before shaping", (("reward/raw", "all groups"), ("reward/raw_kept", "kept groups"))),
        ),
    ),
    "health": (
        "Health",
        (
            Panel(
                "judged groups",
                (
                    ("groups/kept_share", "kept"),
                    ("groups/all_correct_share", "all correct"),
                    ("groups/all_wrong_share", "all wrong"),
                ),
                share=True,
                crowded=2,
            ),
            Panel("entropy of the policy", (("train/entropy", "entropy"),), "nats a token"),
            Panel(
                "tokens whose gradient the clip cut",
                (("train/clip_low", "low"), ("train/clip_high", "high"), ("train/clip_dual", "dual")),
                "%",
                crowded=2,
            ),
            Panel(
                "sampler against learner",
                (("train/gap_mean", "mean gap"), ("train/approx_kl", "KL to the old policy")),
                "nats a token",
                crowded=2,
            ),
            Panel(
                "response length",
                (("response/length_correct_mean", "correct"), ("response/length_wrong_mean", "wrong")),
                "tokens",
                crowded=2,
            ),
            Panel(
                "responses at the limit",
                (("response/truncated_share", "cut off"), ("response/penalized", "punished for length")),
                "%",
            ),
            Panel(
                "gradient norm", (("train/grad_norm", "mean of a step"), ("train/grad_norm_max", "largest")), log=True
            ),
            Panel("age of the trained groups", (("groups/age_mean", "mean"), ("groups/age_max", "oldest")), "versions"),
        ),
    ),
    "cost": (
        "What it cost",
        (
            Panel(
                "tokens of a step",
                (("sampling/generated_tokens", "generated"), ("sampling/trained_tokens", "trained")),
                crowded=2,
            ),
            Panel("seconds of a step", (("time/step", "step"),)),
            Panel("generated tokens a second", (("time/tokens_per_second", "tokens a second"),)),
            Panel("peak memory", (("memory/peak_rss_mib", "peak"),), "MiB"),
        ),
    ),
}


CURVE: Sequence[Panel] = (
    Panel(
        "accuracy",
        (
            ("validation/accuracy", "held-out, sampled (95% interval)"),
            ("validation/greedy_accuracy", "held-out, greedy"),
            ("reward/accuracy", "training prompts, sampled"),
        ),
        share=True,
        wide=True,
        ends=True,
    ),
    Panel(
        "judged groups, and truncated responses",
        (
            ("groups/kept_share", "kept"),
            ("groups/all_correct_share", "all correct"),
            ("groups/all_wrong_share", "all wrong"),
            ("response/truncated_share", "truncated responses"),
        ),
        share=True,
    ),
    Panel("entropy of the policy", (("train/entropy", "entropy"),), "nats a token"),
)
"""curve.png of a run, the picture that every run leaves."""
LOSSES: Sequence[Panel] = (
    Panel("loss", ((HELD_OUT, "held out"), (TRAINED, "training batch")), "nats a token", wide=True),
)
"""curve.png of a supervised run."""


def write_curve(run: RunFolder) -> Path:
    """Draw RUN/curve.png from RUN/metrics.jsonl and return its path."""
    return write(curve_figure(read_metrics(run.metrics), run.path.resolve().name), run.curve)


def curve_figure(rows: Sequence[Row], name: str) -> Figure:
    """Draw what a run called ``name`` learned, from its lines."""
    panels = LOSSES if is_supervised(rows) else CURVE
    keys = [key for panel in panels for one, _ in panel.metrics for key in (one, f"{one}_low", f"{one}_high")]
    curves = {key: Curve(*found) for key in keys if (found := series(rows, key))[0]}
    return picture("What was learned", panels, [Drawn(name, COLOURS[0], [curves])])


# ---------------------------------------------------------------------------------------------------- drawing


def picture(title: str, panels: Sequence[Panel], drawn: Sequence[Drawn]) -> Figure:
    """Draw panels, two in a row, of one or several runs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    rows = (len(panels) + sum(panel.wide for panel in panels)) // 2
    names = len(drawn) > 1
    margins = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # inches around each panel
    figure = Figure(
        figsize=(9, 2.75 * rows + 0.5 + 0.12 * len(drawn) * names), dpi=150, layout=margins, facecolor="white"
    )
    FigureCanvasAgg(figure)  # not pyplot: no display, no global state
    heights = [1.35 if panels[0].wide and row == 0 else 1 for row in range(rows)]
    grid = figure.add_gridspec(rows, 2, height_ratios=heights)
    place = itertools.count()
    for panel in panels:
        at = next(place)
        spot = grid[at // 2, :] if panel.wide else grid[at // 2, at % 2]
        if panel.wide:
            next(place)
        _panel(figure.add_subplot(spot), panel, drawn)
    if names:
        _name_runs(figure, title, drawn)
    else:
        heading = f"{drawn[0].name}: {title[:1].lower()}{title[1:]}"
        figure.suptitle(_plain(heading), x=0.012, ha="left", fontweight="bold", fontsize=13)
    return figure


def _panel(axes: Axes, panel: Panel, drawn: Sequence[Drawn]) -> None:
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=9, color=GREY)
    alone = len(drawn) == 1
    metrics = panel.metrics[: panel.crowded] if len(drawn) > CROWD else panel.metrics
    left = f": {metrics[0][1]}" if len(metrics) == 1 < len(panel.metrics) else ""
    axes.set_title(
        panel.title + left + (f", {panel.unit}" if panel.unit else ""), loc="left", fontsize=10.5, fontweight="bold"
    )
    phases = panel.metrics[0][0] == "time/step"
    shown = _phases(axes, drawn[0]) if phases and alone and len(drawn[0].runs) == 1 else []
    for style, (key, name) in zip(STYLES, metrics, strict=False) if not shown else ():
        found = [curve for each in drawn for curve in each.curves(key)]
        if found and not (key.endswith("_dual") and not any(any(curve.values) for curve in found)):
            shown.append((style, name))
            for each in drawn:
                _lines(axes, each, key, style, COLOURS[len(shown) - 1] if alone else each.colour, panel)
    if not shown:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    _axis(axes, panel)
    if panel.ends and alone:
        _end_labels(axes, drawn[0].curves(metrics[0][0]))
    if len(shown) > 1 and not phases:
        _legend(axes, shown, alone)


def _lines(axes: Axes, each: Drawn, key: str, style: Any, colour: str, panel: Panel) -> None:
    scale = 100.0 if panel.unit == "%" else 1.0
    for curve in each.curves(key):
        values = [scale * value for value in curve.values]
        marked = key.startswith("validation/") and len(curve.steps) <= EVERY_MARK
        mark: dict[str, Any] = {"marker": "o", "markersize": 3.5} if marked or len(curve.steps) == 1 else {}
        width = 1.9 if marked else 1.5 if curve.low or len(each.runs) == 1 else 0.9
        axes.plot(curve.steps, values, color=colour, linestyle=style, linewidth=width, **mark)
        if curve.low:
            for member in (run[key] for run in each.runs if key in run):  # a band ends where its shortest run does
                axes.plot(member.steps, [scale * v for v in member.values], color=colour, linewidth=0.7, alpha=0.55)
            low, high = ([scale * value for value in side] for side in (curve.low, curve.high))
            axes.fill_between(curve.steps, low, high, color=colour, alpha=0.18, linewidth=0)
    if key == "validation/accuracy" and len(each.runs) == 1:
        low_ends, high_ends = (each.runs[0].get(f"{key}_{end}", Curve()) for end in ("low", "high"))
        if low_ends.steps and low_ends.steps == high_ends.steps:
            axes.fill_between(low_ends.steps, low_ends.values, high_ends.values, color=colour, alpha=0.15, linewidth=0)


def _end_labels(axes: Axes, curves: Sequence[Curve]) -> None:
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for curve in curves:
        for index, offset, side in ((0, (8, -3), "left"), (-1, (2, -22), "right")) if len(curve.steps) > 1 else ():
            axes.annotate(
                f"{100 * curve.values[index]:.1f}%",
                (curve.steps[index], curve.values[index]),
                xytext=offset,
                textcoords="offset points",
                ha=side,
                color=COLOURS[0],
                fontweight="bold",
                bbox=box,
            )


def _phases(axes: Axes, each: Drawn) -> list[tuple[Any, str]]:
    """Phases of one run on top of each other; [] where they were not all measured at the same steps."""
    curves = {name: each.runs[0].get(f"time/{name}", Curve()) for name in PHASES}
    steps = each.runs[0].get("time/step", Curve()).steps
    rows = {name: dict(zip(curve.steps, curve.values, strict=True)) for name, curve in curves.items() if curve.steps}
    if len(steps) < 2 or not rows:
        return []
    sums = {name: sum(row.values()) for name, row in rows.items()}
    largest = sorted(sums, key=lambda name: -sums[name])[:4]
    parts = {name: [rows[name].get(step, 0.0) for step in steps] for name in largest}
    rest = [name for name in rows if name not in largest]
    if rest:
        parts["the rest"] = [sum(rows[name].get(step, 0.0) for name in rest) for step in steps]
    colours = [*COLOURS[: len(largest)], "#9CA3AF"]
    axes.stackplot(steps, list(parts.values()), colors=colours[: len(parts)], alpha=0.85, linewidth=0)
    top = sorted(sum(values) for values in zip(*parts.values(), strict=True))
    axes.set_ylim(0, 1.25 * top[min(len(top) - 1, int(0.98 * len(top)))])  # one slow step must not flatten all others
    from matplotlib.patches import Patch

    handles = [Patch(color=colour, alpha=0.85) for colour in colours[: len(parts)]]
    axes.legend(handles, list(parts), loc="upper left", fontsize=8.5, frameon=False, ncols=3, handlelength=1.2)
    return [("-", name) for name in parts]


def _axis(axes: Axes, panel: Panel) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator, PercentFormatter

    axes.set_xlabel("training step", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
    if panel.share:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
        return
    lines = [float(value) for line in axes.get_lines() for value in np.asarray(line.get_ydata(), np.float64)]
    positive = [value for value in lines if value > 0]
    if panel.log and positive and max(positive) > LOG_FROM * min(positive):
        axes.set_yscale("log", nonpositive="mask")
        return
    if min(lines, default=0.0) >= 0:
        axes.set_ylim(0, 1.06 * max([*lines, *axes.get_ylim()]) if lines else None)
    if axes.get_ylim()[1] >= 10_000:
        axes.yaxis.set_major_formatter(FuncFormatter(_thousands()))


def _legend(axes: Axes, shown: Sequence[tuple[Any, str]], alone: bool) -> None:
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=COLOURS[n] if alone else GREY, linestyle=style, linewidth=1.8)
        for n, (style, _) in enumerate(shown)
    ]
    names = [name for _, name in shown]
    axes.legend(handles, names, loc="best", fontsize=8.5, handlelength=2.4, framealpha=0.8, edgecolor="none")


def _name_runs(figure: Figure, title: str, drawn: Sequence[Drawn]) -> None:
    from matplotlib.lines import Line2D

    chosen = drawn[:MOST_NAMES]
    handles = [Line2D([], [], color=each.colour, linewidth=3) for each in chosen]
    names = [_plain(each.name) for each in chosen]
    if len(drawn) > MOST_NAMES:
        handles.append(Line2D([], [], color="none"))
        names.append(f"and {len(drawn) - MOST_NAMES} more")
    figure.legend(
        handles,
        names,
        loc="outside upper left",
        ncols=2 if max(map(len, names)) > 25 else 3,
        frameon=False,
        fontsize=9.5,
        title=title,
        title_fontproperties={"weight": "bold", "size": 13},
        alignment="left",
    )


def write(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, at once."""
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in letters that the font lacks is drawn as boxes
        figure.savefig(temporary, format="png")
    return path


# ---------------------------------------------------------------------------------------------------- small parts


def _plain(text: str) -> str:
    """Return a name as it is: no formula, no line break; one that begins with `_` is not left out of the legend."""
    safe = shorten(clean(text, newlines=False), LONGEST_NAME).replace("$", r"\$")
    return f" {safe}" if safe.startswith("_") else safe


def _thousands() -> Callable[[float, int], str]:
    return lambda value, _: f"{value / 1000:,.0f}k" if value < 1e6 else f"{value / 1e6:,.1f}M"
