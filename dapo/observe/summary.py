"""Summary at a run's end: whether it learned, what changed, where everything is, what to do next."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dapo.observe import supervised
from dapo.observe.columns import changes_by_value, fallen_said
from dapo.observe.console import Console
from dapo.observe.curve import terminal_curve, terminal_losses, values_in_words
from dapo.observe.evaluations import read_held_out
from dapo.observe.held_out import HeldOut, accuracy_of, chance_between
from dapo.observe.metrics import Row, read_metrics
from dapo.observe.pictures import write_curve
from dapo.observe.report_extra import INSTALL, PICTURES, PLOTS, missing
from dapo.observe.run_folder import RunFolder
from dapo.observe.samples import Sample, before_and_after, gain, read_samples
from dapo.observe.text import clean, interval, number, percent, shorten
from dapo.words import counted

_QUIET = "bright_black"
_HEIGHT = 16
"""Lines of the curve: 0, 25, 50, 75 and 100 % are then equally far apart."""


def print_summary(run: RunFolder, console: Console, next_command: str) -> None:
    """Draw RUN/curve.png and print the end of a run from its files alone.

    A picture that cannot be drawn is named and left out: the run itself is done and saved. Without the extra ``report``
    the curve is given in words.

    Args:
        run: the run's folder; metrics.jsonl and samples.jsonl are read.
        console: where to print.
        next_command: a command to try next.
    """
    rows, samples = read_metrics(run.metrics), read_samples(run.samples)
    absent = missing(PLOTS)
    try:
        if not missing(PICTURES):
            write_curve(run)
    except Exception as error:
        logging.getLogger(__name__).warning("the curve could not be drawn: %s: %s", type(error).__name__, error)
    width = min(console.rich.width, 100)
    console.print(summary(rows, samples, width, lambda step: read_held_out(run.evaluation_file(step))))
    console.print(paths(run), soft_wrap=True)
    if absent:
        said = (
            f"no plots: {' and '.join(absent)} not installed here; {INSTALL}, here or wherever the run's files are read"
        )
        console.print(Text(said, style=_QUIET), soft_wrap=True)
    console.print(Text.assemble("next: ", (next_command, "bold cyan")), soft_wrap=True)


def summary(
    rows: Sequence[Row],
    samples: Sequence[Sample],
    width: int,
    problems: Callable[[int], HeldOut | None] = lambda step: None,
) -> RenderableType:
    """Outcome, curve and answers as one renderable; ``problems`` returns those of a step's evaluation."""
    if supervised.is_supervised(rows):
        try:
            drawn = terminal_losses(rows, width - 4, _HEIGHT)
        except (ImportError, OSError):
            drawn = None
        told = Text("loss, nats a token, by training step; blocks: held out, dots: training", style=_QUIET)
        plot = (
            [told, drawn]
            if drawn is not None
            else [values_in_words(rows, supervised.HELD_OUT, supervised.TRAINED) or Text()]
        )
        steps = Text(counted(rows[-1]["step"], "training step"))
        return Group(Text(), steps, Text(), supervised.loss_table(rows), Text(), *plot, Text())
    parts: list[RenderableType] = [Text(), outcome(rows, problems), Text()]
    points = [point for row in rows if (point := accuracy_of(row, problems)) is not None]
    if said := fallen_said(changes_by_value(points), points):
        parts += [Text(said, style="yellow"), Text()]
    try:
        curve = terminal_curve(rows, width - 4, _HEIGHT)
    except (ImportError, OSError):  # plotext has a compiled part, which some platforms lack
        curve = None
    if (shown := curve or values_in_words(rows, "validation/accuracy", share=True)) is not None:
        marks = "; blocks: sampled, dots: greedy" if curve else ""
        parts += [Text(f"held-out accuracy, %, by training step{marks}", style=_QUIET), shown, Text()]
    pairs = before_and_after(samples)
    if pairs:
        which = ", those that gained most" if gain(*pairs[0]) > 0 else "; none went from wrong to right"
        parts += [Text(f"answers to held-out problems before and after{which}", style=_QUIET), Text()]
    parts += [_pair(*pair) for pair in pairs]
    if lost := [pair for pair in before_and_after(samples, lost=True) if pair not in pairs]:
        parts += [Text("and those that lost most", style=_QUIET), Text(), *(_pair(*pair) for pair in lost)]
    return Group(*parts)


def outcome(rows: Sequence[Row], problems: Callable[[int], HeldOut | None] = lambda step: None) -> RenderableType:
    """Numbers of the first and of the last evaluation side by side."""
    evaluated = [row for row in rows if row.get("validation/accuracy") is not None]
    points = [point for row in evaluated if (point := accuracy_of(row, problems)) is not None]
    if not evaluated:
        tried = sum(bool(row.get("validation/unscored")) for row in rows)
        said = (
            f"{tried} evaluation{'s were' if tried > 1 else ' was'} made, and no response in it could be scored: there "
            "is no held-out accuracy. samples.jsonl has the reasons."
            if tried
            else "Nothing was evaluated: there is no held-out accuracy to report."
        )
        return Text(said, style="yellow")
    ends = [evaluated[0], evaluated[-1]][: len(evaluated)]
    change, noise = points[-1].accuracy - points[0].accuracy, chance_between(points[0], points[-1])
    table = Table(box=None, padding=(0, 3, 0, 0), header_style=_QUIET)
    table.add_column("held-out")
    for row in ends:
        table.add_column(f"step {row['step']}", justify="right")
    accuracies = [Text(percent(row["validation/accuracy"]), style="bold") for row in ends]
    if abs(change) > noise:
        accuracies[-1].stylize("green" if change > 0 else "red")
    table.add_row("accuracy, sampled", *accuracies)
    table.add_row("95 % interval", *(Text(_interval(row), style=_QUIET) for row in ends))
    unscored = any(row.get("validation/unscored") for row in ends)
    for title, key, form in (
        *([("if unscored are wrong", "validation/accuracy_unscored_wrong", percent)] if unscored else []),
        ("accuracy, greedy", "validation/greedy_accuracy", percent),
        ("response length", "validation/length_mean", number),
        ("truncated", "validation/truncated_share", percent),
    ):
        values = [row.get(key) for row in ends]
        if values.count(None) < len(values):
            table.add_row(title, *map(form, values))
    return Group(Text(counted(rows[-1]["step"], "training step")), Text(), table)


def paths(run: RunFolder) -> Text:
    """Return the paths of the run's files, a line each; only those that exist."""
    text = Text()
    for title, path in (
        ("curve", run.curve),
        ("metrics", run.metrics),
        ("rollouts", run.rollouts),
        ("checkpoints", run.checkpoints),
        ("recipe", run.resolved_recipe),
        ("log", run.log),
    ):
        if path.exists():
            text.append(f"{title:<14}", style=_QUIET).append(clean(str(path), newlines=False) + "\n")
    return text


def _interval(row: Row) -> str:
    return interval(row.get("validation/accuracy_low"), row.get("validation/accuracy_high")) or "–"


def _pair(before: Sample, after: Sample) -> RenderableType:
    """One held-out problem with the answers before and after. All of it is untrusted text."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False)
    table.add_column(no_wrap=True, style=_QUIET)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    gold = Text(f"   expected {_shown(before.answer, 80)}", style=_QUIET) if before.answer else Text()
    table.add_row("problem", "", Text(_shown(before.problem or before.prompt, 300), style="bold").append_text(gold))
    for sample in (before, after):
        mark, style = (
            ("?", "yellow") if sample.accuracy is None else ("✓", "green") if sample.accuracy >= 1 else ("✗", "red")
        )
        ending = Text(" (cut at the limit)", style="yellow") if sample.truncated else Text()
        table.add_row(
            f"step {sample.step}", Text(mark, style=style), Text(_shown(sample.response, 300)).append_text(ending)
        )
    return Padding(table, (0, 0, 1, 0))


def _shown(text: str, limit: int) -> str:
    return shorten(clean(text).strip(), limit)
