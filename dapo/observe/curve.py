"""The curve of a run in a terminal: drawn with characters, or its values in a line."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from dapo.observe.metrics import Row, series
from dapo.observe.supervised import HELD_OUT, TRAINED


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


def values_in_words(rows: Sequence[Row], *keys: str, share: bool = False, most: int = 10) -> Text | None:
    """Return a curve as a line of at most ``most`` values, first and last among them, for places without drawing.

    Args:
        rows: of the run.
        keys: the first of these metrics that has two values is shown.
        share: of 1, shown in percent.
        most: values shown.
    """
    for steps, values in (series(rows, key) for key in keys):
        if len(steps) > 1:
            count = min(most, len(steps))
            chosen = [i * (len(steps) - 1) // (count - 1) for i in range(count)]
            return Text(
                "  ".join(
                    f"{steps[i]}: {100 * values[i]:.1f}" if share else f"{steps[i]}: {values[i]:.3f}" for i in chosen
                )
            )
    return None
