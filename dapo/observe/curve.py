"""The picture of a run: RUN/curve.png, and the same curve in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from dapo.observe.metrics import Row, read_metrics, series
from dapo.observe.run_folder import RunFolder
from dapo.observe.supervised import HELD_OUT, TRAINED, is_supervised

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Blue, orange, green, purple of Okabe and Ito's palette: told apart by colour-blind readers and in grey.
_BLUE, _ORANGE, _GREEN, _PURPLE, _GREY = "#0072B2", "#E69F00", "#009E73", "#CC79A7", "#6B7280"


def write_curve(run: RunFolder) -> Path:
    """Draw RUN/curve.png from RUN/metrics.jsonl and return its path."""
    rows = read_metrics(run.metrics)
    draw = draw_losses if is_supervised(rows) else draw_curve
    draw(rows, run.curve, title=run.path.resolve().name)
    return run.curve


def draw_curve(rows: Sequence[Row], path: Path, title: str) -> None:
    """Accuracy on top; below it what dynamic sampling does, and entropy with length. Needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    margins = ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.12)  # inches around each panel
    figure = Figure(figsize=(9, 7), dpi=150, layout=margins, facecolor="white")
    FigureCanvasAgg(figure)  # not pyplot: no display, no global state
    grid = figure.add_gridspec(2, 2, height_ratios=[1.5, 1])
    _accuracy_panel(figure.add_subplot(grid[0, :]), rows, title)
    _sampling_panel(figure.add_subplot(grid[1, 0]), rows)
    _policy_panel(figure.add_subplot(grid[1, 1]), rows)
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(path)


def draw_losses(rows: Sequence[Row], path: Path, title: str) -> None:
    """Both losses over the steps, as a picture. Needs no display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4.5), dpi=150, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    for key, label, style in (
        (TRAINED, "training batch", {"color": _GREY, "linewidth": 1}),
        (HELD_OUT, "held out", {"color": _BLUE, "linewidth": 2, "marker": "o", "markersize": 4}),
    ):
        steps, values = series(rows, key)
        if steps:
            axes.plot(steps, values, label=label, **style)
    axes.set_title(f"{title}: loss, nats a token", loc="left", fontweight="bold")
    axes.set_xlabel("training step")
    axes.set_ylim(bottom=0)
    axes.grid(True, color="#E5E7EB", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper right", frameon=False)
    temporary = path.with_name(f".{path.name}.tmp")
    figure.savefig(temporary, format="png")
    temporary.replace(path)


def _accuracy_panel(axes: Axes, rows: Sequence[Row], title: str) -> None:
    _share_axis(axes)
    _line(axes, rows, "reward/accuracy", "training prompts, sampled", _GREY, linewidth=1, alpha=0.7)
    steps, lows = series(rows, "validation/accuracy_low")
    high_steps, highs = series(rows, "validation/accuracy_high")
    if steps and steps == high_steps:
        axes.fill_between(steps, lows, highs, color=_BLUE, alpha=0.15, linewidth=0)
    _line(
        axes, rows, "validation/greedy_accuracy", "held-out, greedy", _ORANGE, marker="o", markersize=3, linestyle="--"
    )
    _line(
        axes,
        rows,
        "validation/accuracy",
        "held-out, sampled (95 % interval)",
        _BLUE,
        marker="o",
        markersize=4,
        linewidth=2,
    )
    _end_labels(axes, *series(rows, "validation/accuracy"))
    axes.set_title(f"{title}: accuracy", loc="left", fontweight="bold")
    _legend(axes, "lower right")


def _end_labels(axes: Axes, steps: Sequence[int], values: Sequence[float]) -> None:
    """Write the first and the last value beside their points."""
    box = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none", "alpha": 0.85}
    for index, offset, side in ((0, (8, -3), "left"), (-1, (2, -22), "right")) if len(steps) > 1 else ():
        axes.annotate(
            f"{100 * values[index]:.1f} %",
            (steps[index], values[index]),
            xytext=offset,
            textcoords="offset points",
            ha=side,
            color=_BLUE,
            fontweight="bold",
            bbox=box,
        )


def _sampling_panel(axes: Axes, rows: Sequence[Row]) -> None:
    _share_axis(axes)
    _line(axes, rows, "groups/kept_share", "kept", _GREEN)
    _line(axes, rows, "groups/all_correct_share", "all correct", _BLUE)
    _line(axes, rows, "groups/all_wrong_share", "all wrong", _ORANGE)
    _line(axes, rows, "response/truncated_share", "truncated responses", _PURPLE, linestyle="--")
    axes.set_title("judged groups, and truncated responses", loc="left", fontsize=10, fontweight="bold")
    _legend(axes, "best")


def _policy_panel(axes: Axes, rows: Sequence[Row]) -> None:
    _plain_axis(axes)
    _line(axes, rows, "train/entropy", "entropy, nats", _PURPLE)
    axes.set_ylim(bottom=0)
    axes.tick_params(axis="y", labelcolor=_PURPLE)
    axes.set_ylabel("entropy, nats", color=_PURPLE)
    axes.set_title("policy entropy, and mean response length", loc="left", fontsize=10, fontweight="bold")
    lengths = axes.twinx()
    _plain_axis(lengths)
    lengths.grid(False)
    _line(lengths, rows, "response/length_mean", "length, tokens", _GREEN)
    lengths.tick_params(axis="y", labelcolor=_GREEN)
    lengths.set_ylabel("length, tokens", color=_GREEN)
    lengths.set_ylim(bottom=0)


def _line(axes: Axes, rows: Sequence[Row], key: str, label: str, color: str, **style: Any) -> None:
    steps, values = series(rows, key)
    if steps:
        axes.plot(steps, values, label=label, color=color, **style)


def _share_axis(axes: Axes) -> None:
    from matplotlib.ticker import PercentFormatter

    _plain_axis(axes)
    axes.set_ylim(0, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _plain_axis(axes: Axes) -> None:
    axes.set_xlabel("training step")
    axes.grid(True, color="#E5E7EB", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _legend(axes: Axes, where: str) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc=where, frameon=False, fontsize=9)


def terminal_curve(rows: Sequence[Row], width: int, height: int = 14) -> Text | None:
    """Draw held-out accuracy over the steps with characters; None with fewer than two evaluations.

    Blocks are sampled responses, dots greedy ones. There is no legend in the plot, where it would cover a line.
    """
    sampled, greedy = series(rows, "validation/accuracy"), series(rows, "validation/greedy_accuracy")
    if len(sampled[0]) < 2:
        return None
    return _drawn([_in_percent(greedy), _in_percent(sampled)], (0, 100), width, height)


def terminal_losses(rows: Sequence[Row], width: int, height: int = 14) -> Text | None:
    """Draw both losses of a supervised run over the steps: blocks held out, dots training; None with too few steps."""
    trained, held_out = series(rows, TRAINED), series(rows, HELD_OUT)
    values = [*trained[1], *held_out[1]]
    if max(len(trained[0]), len(held_out[0])) < 2:
        return None
    return _drawn([trained, held_out], (min(0.0, *values), 1.05 * max(values) or 1.0), width, height)


def _in_percent(found: tuple[Sequence[int], Sequence[float]]) -> tuple[Sequence[int], list[float]]:
    return found[0], [100 * value for value in found[1]]


def _drawn(
    lines: Sequence[tuple[Sequence[int], Sequence[float]]], limits: tuple[float, float], width: int, height: int
) -> Text:
    """Draw up to two lines, steps and values of each: the first with dots, the second with blocks over it."""
    import plotext

    plotext.terminal.limit(False, False)  # the caller knows the width; there may be no terminal to ask
    figure = plotext.figure
    figure.clear()
    figure.theme("simple")
    figure.plot_size(width, height)
    for (steps, values), marker in zip(lines, ("braille", "hd"), strict=True):
        if steps:
            figure.draw(figure.signal(list(steps), list(values), marker=marker).lines())
    figure.ruler("y").lim(*limits)
    known = [step for steps, _ in lines for step in steps]
    marked = _marked_steps(min(known), max(known))
    figure.ruler("x").ticks(marked, [str(step) for step in marked])
    return Text.from_ansi(figure.build().string())


def _marked_steps(first: int, last: int, most: int = 7) -> list[int]:
    """Return the steps that are marked below a curve: both ends, and round whole numbers between them."""
    powers = (10**digits for digits in range(len(str(last)) + 1))
    apart = next(width for power in powers for width in (power, 2 * power, 5 * power) if last - first < most * width)
    between = [step for step in range(apart, last, apart) if 2 * min(step - first, last - step) >= apart]
    return [first, *between, last]


def curve_in_words(rows: Sequence[Row], most: int = 10) -> Text | None:
    """Return the curve as a line of at most ``most`` evaluations, first and last among them, for places without
    drawing."""
    steps, values = series(rows, "validation/accuracy")
    if len(steps) < 2:
        return None
    count = min(most, len(steps))
    chosen = [i * (len(steps) - 1) // (count - 1) for i in range(count)]
    return Text("  ".join(f"{steps[i]}: {100 * values[i]:.1f}" for i in chosen))
