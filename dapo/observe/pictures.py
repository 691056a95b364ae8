"""curve.png of a run: what it learned, drawn by matplotlib. Needs no display."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dapo.metrics.charts import CURVE, Series, table
from dapo.metrics.glossary import GLOSSARY
from dapo.metrics.metric import SHARE
from dapo.observe.metrics import Row, read_metrics, series
from dapo.observe.run_files import replacing
from dapo.observe.run_folder import RunFolder
from dapo.observe.supervised import is_supervised
from dapo.observe.text import clean, shorten

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette: told apart by colour-blind readers and in grey.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7")
STYLES: Sequence[Any] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (4, 1.5, 1, 1.5)))
GRID, GREY = "#E5E7EB", "#6B7280"
LONGEST_NAME = 70
EVERY_MARK = 60
"""Points up to which each evaluation has a mark."""
LOSSES = "losses"
"""The only chart of a supervised run."""
ENDS = "validation/accuracy"
"""The line whose label has its first and last value."""


def write_curve(run: RunFolder) -> Path:
    """Draw RUN/curve.png from RUN/metrics.jsonl and return its path."""
    return write(curve_figure(read_metrics(run.metrics), run.path.resolve().name), run.curve)


def write(figure: Figure, path: Path) -> Path:
    """Write a figure as PNG, at once."""
    with replacing(path) as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a name in letters that the font lacks is drawn as boxes
        figure.savefig(temporary, format="png")
    return path


def curve_figure(rows: Sequence[Row], name: str) -> Figure:
    """Draw what a run called ``name`` learned, from its lines: one chart above, two in a row below."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    supervised = is_supervised(rows)
    charts = [one for one in table() if one["section"] == CURVE and (one["id"] == LOSSES) == supervised]
    below = len(charts) // 2
    margins = ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1)  # inches around each chart
    figure = Figure(figsize=(9, 2.75 * (1 + below) + 0.5), dpi=150, layout=margins, facecolor="white")
    FigureCanvasAgg(figure)  # not pyplot: no display, no global state
    grid = figure.add_gridspec(1 + below, 2, height_ratios=[1.35, *[1.0] * below])
    for n, chart in enumerate(charts, 1):
        _draw(figure.add_subplot(grid[n // 2, n % 2] if n > 1 else grid[0, :]), chart, rows)
    figure.suptitle(_plain(f"{name}: what was learned"), x=0.012, ha="left", fontweight="bold", fontsize=13)
    return figure


def _draw(axes: Axes, chart: Mapping[str, Any], rows: Sequence[Row]) -> None:
    axes.grid(True, color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(labelsize=9, color=GREY)
    lines = [(line, series(rows, line["key"])) for line in chart["series"]]
    shown = [(line, steps, values) for line, (steps, values) in lines if steps]
    axes.set_title(chart["title"], loc="left", fontsize=10.5, fontweight="bold", pad=20)
    for (line, steps, values), colour, style in zip(shown, COLOURS, STYLES, strict=False):
        _line(axes, line, (steps, values), rows, {"color": colour, "linestyle": style})
    if not shown:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center", va="center", color=GREY)
        axes.set_xticks([])
        axes.set_yticks([])
        return
    _axis(axes, GLOSSARY[chart["series"][0]["key"]].unit == SHARE, min(min(values) for _, _, values in shown))
    if len(shown) > 1:  # between title and chart, where it hides no line
        look = {"fontsize": 8, "handlelength": 1.9, "handletextpad": 0.4, "columnspacing": 0.9, "frameon": False}
        axes.legend(
            loc="lower left", bbox_to_anchor=(-0.01, 1), ncols=len(shown), borderaxespad=0, borderpad=0.3, **look
        )


def _line(
    axes: Axes, line: Series, curve: tuple[Sequence[int], Sequence[float]], rows: Sequence[Row], look: dict[str, Any]
) -> None:
    """Draw a metric, and the band around it where its ends are known at the same steps."""
    steps, values = curve
    marked = line["key"].startswith("validation/") and len(steps) <= EVERY_MARK
    mark: dict[str, Any] = {"marker": "o", "markersize": 3.5} if marked or len(steps) == 1 else {}
    ends = f": {100 * values[0]:.1f}% to {100 * values[-1]:.1f}%" if line["key"] == ENDS and len(values) > 1 else ""
    axes.plot(steps, values, label=line["label"] + ends, linewidth=1.9 if marked else 1.5, **look, **mark)
    if "low" in line:
        low, high = series(rows, line["low"]), series(rows, line["high"])
        if low[0] and low[0] == high[0]:
            axes.fill_between(low[0], low[1], high[1], color=look["color"], alpha=0.15, linewidth=0)


def _axis(axes: Axes, share: bool, least: float) -> None:
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    axes.set_xlabel("training step", fontsize=9)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=7, steps=[1, 2, 5, 10]))
    if share:
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    elif least >= 0:
        axes.set_ylim(0, 1.06 * axes.get_ylim()[1])


def _plain(text: str) -> str:
    """Return a name as it is: no formula, no line break."""
    return shorten(clean(text, newlines=False), LONGEST_NAME).replace("$", r"\$")
